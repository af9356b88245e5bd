//! [`Rows`]: the sorted list of locks, and the selected row.
//!
//! The order is a search tree whose keys do not change over time. A change costs O(log n), and the cost of a screen is
//! proportional to the number of its rows.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use lockkeeper::{FencingToken, LockChange, LockInfo, QueueEntry, ZnodePath};

use crate::live::{Sort, rank, searched};

/// A holder of a lock, or a lock without holders. Ordered by rank, then by lock and token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    rank: i64,
    pub(super) lock: ZnodePath,
    pub(super) token: Option<FencingToken>,
}

#[derive(Debug)]
pub(super) struct Rows {
    locks: BTreeMap<ZnodePath, LockInfo>,
    order: BTreeSet<Row>,
    waiters: usize,
    sort: Sort,
    reversed: bool,
    filter: String,
    selected: Option<Row>,
    /// Number of rows above the selected row on the screen.
    above: usize,
    /// True if the screen shows the first row. It then also shows new rows that appear above.
    at_top: bool,
}

impl Rows {
    pub(super) fn new() -> Self {
        Self {
            locks: BTreeMap::new(),
            order: BTreeSet::new(),
            waiters: 0,
            sort: Sort::Name,
            reversed: false,
            filter: String::new(),
            selected: None,
            above: 0,
            at_top: true,
        }
    }

    pub(super) fn locks(&self) -> usize {
        self.locks.len()
    }

    pub(super) fn waiters(&self) -> usize {
        self.waiters
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn order(&self) -> (Sort, bool) {
        (self.sort, self.reversed)
    }

    pub(super) fn lock(&self, path: &ZnodePath) -> Option<&LockInfo> {
        self.locks.get(path)
    }

    pub(super) fn holder(&self, lock: &ZnodePath, token: FencingToken) -> Option<&QueueEntry> {
        let holders = &self.locks.get(lock)?.holders;
        holders.iter().find(|it| it.fencing_token == token)
    }

    pub(super) fn selected(&self) -> Option<&Row> {
        self.selected.as_ref()
    }

    pub(super) fn apply(&mut self, change: LockChange, all: bool) {
        if all {
            self.locks.clear();
            self.waiters = 0;
            for lock in change.changed {
                self.waiters += lock.waiters;
                self.locks.insert(lock.path.clone(), lock);
            }
            self.rebuild();
            return;
        }
        for path in change.freed {
            self.replace(path, None);
        }
        for lock in change.changed {
            self.replace(lock.path.clone(), Some(lock));
        }
    }

    fn replace(&mut self, path: ZnodePath, lock: Option<LockInfo>) {
        if let Some(old) = self.locks.remove(&path) {
            self.waiters -= old.waiters;
            let rows: Vec<_> = self.rows_of(&old).collect();
            for row in &rows {
                self.order.remove(row);
            }
        }
        if let Some(new) = lock {
            self.waiters += new.waiters;
            let rows: Vec<_> = self.rows_of(&new).collect();
            self.order.extend(rows);
            self.locks.insert(path.clone(), new);
        }
        if self.selected.as_ref().is_some_and(|row| row.lock == path) || self.selected.is_none() {
            self.select_again();
        }
    }

    fn rows_of<'a>(&'a self, lock: &'a LockInfo) -> impl Iterator<Item = Row> + 'a {
        let nobody = lock.holders.is_empty().then_some(None);
        let holders = lock.holders.iter().map(Some).chain(nobody);
        let shown = holders.filter(|holder| matches(&self.filter, lock, *holder));
        shown.map(|holder| Row {
            rank: rank(self.sort, lock, holder),
            lock: lock.path.clone(),
            token: holder.map(|it| it.fencing_token),
        })
    }

    fn rebuild(&mut self) {
        let rows: BTreeSet<_> = self
            .locks
            .values()
            .flat_map(|lock| self.rows_of(lock))
            .collect();
        self.order = rows;
        self.select_again();
    }

    /// Finds the selected row again. If the row's holder is gone, selects another row of the same lock, or else the
    /// next row.
    fn select_again(&mut self) {
        let Some(old) = self.selected.take() else {
            self.selected = self.end(true);
            return;
        };
        let mut of_lock = None;
        if let Some(lock) = self.locks.get(&old.lock) {
            let mut rows = self.rows_of(lock);
            let first = rows.next();
            let same = first.iter().cloned().chain(rows);
            let same = same.into_iter().find(|row| row.token == old.token);
            of_lock = same.or(first);
        }
        self.selected = of_lock
            .or_else(|| self.below(Some(&old)).next().cloned())
            .or_else(|| self.above(Some(&old)).next().cloned());
    }

    /// Returns the rows below `from` on the screen, nearest first, or all rows if `from` is `None`.
    fn below<'a>(&'a self, from: Option<&Row>) -> Box<dyn Iterator<Item = &'a Row> + 'a> {
        self.rows_from(from, !self.reversed)
    }

    fn above<'a>(&'a self, from: Option<&Row>) -> Box<dyn Iterator<Item = &'a Row> + 'a> {
        self.rows_from(from, self.reversed)
    }

    fn rows_from<'a>(
        &'a self,
        from: Option<&Row>,
        upwards: bool,
    ) -> Box<dyn Iterator<Item = &'a Row> + 'a> {
        let from = from.map_or(Unbounded, Excluded);
        match upwards {
            true => Box::new(self.order.range::<Row, _>((from, Unbounded))),
            false => Box::new(self.order.range::<Row, _>((Unbounded, from)).rev()),
        }
    }

    fn end(&self, is_first: bool) -> Option<Row> {
        let ends = match is_first != self.reversed {
            true => self.order.first(),
            false => self.order.last(),
        };
        ends.cloned()
    }

    /// Sorts by this order, or reverses the current order. Selects the first row, because the user wants to see the
    /// start of the new order.
    pub(super) fn sort_by(&mut self, sort: Sort) {
        match sort == self.sort {
            true => self.reversed = !self.reversed,
            false => (self.sort, self.reversed) = (sort, false),
        }
        self.rebuild();
        self.first();
    }

    pub(super) fn filter_by(&mut self, text: &str) {
        self.filter = text.to_lowercase();
        self.rebuild();
    }

    pub(super) fn step(&mut self, by: isize) {
        let Some(old) = self.selected.clone() else {
            return;
        };
        let count = by.unsigned_abs();
        let rows = match by > 0 {
            true => self.below(Some(&old)),
            false => self.above(Some(&old)),
        };
        let (mut steps, mut new) = (0, None);
        for row in rows.take(count) {
            (steps, new) = (steps + 1, Some(row.clone()));
        }
        self.selected = new.or(Some(old));
        self.above = match by > 0 {
            true => self.above.saturating_add(steps),
            false => self.above.saturating_sub(steps),
        };
    }

    pub(super) fn page(&mut self, by: isize) {
        let above = self.above;
        self.step(by);
        self.above = above;
        self.at_top = false;
    }

    pub(super) fn first(&mut self) {
        self.selected = self.end(true);
        self.above = 0;
    }

    pub(super) fn last(&mut self) {
        self.selected = self.end(false);
        self.above = usize::MAX;
        self.at_top = false;
    }

    pub(super) fn window(&mut self, height: usize) -> (Vec<Row>, usize) {
        let (Some(selected), true) = (self.selected.clone(), height > 0) else {
            return (Vec::new(), 0);
        };
        let mut ahead: Vec<_> = self.above(Some(&selected)).take(height).cloned().collect();
        let behind = self.below(Some(&selected)).take(height - 1).cloned();
        let behind: Vec<_> = std::iter::once(selected.clone()).chain(behind).collect();
        let from_top = ahead.len() < height;
        ahead.truncate(height - 1);
        let mut above = match from_top && self.at_top {
            true => ahead.len(),
            false => self.above.min(ahead.len()),
        };
        above = above.max(height.saturating_sub(behind.len()).min(ahead.len()));
        self.above = above;
        self.at_top = from_top && above == ahead.len();
        ahead.truncate(above);
        let rows = ahead.into_iter().rev().chain(behind).take(height);
        (rows.collect(), above)
    }
}

fn matches(filter: &str, lock: &LockInfo, holder: Option<&QueueEntry>) -> bool {
    filter.is_empty() || searched(lock, holder).contains(filter)
}
