//! [`Board`]: everything that the dashboard knows about a store. Does no I/O.
//!
//! Each sort order is a search tree, so a change costs O(log n). The cost of a [`Window`] grows with the number of
//! locks that it skips and shows. A filter searches the text of every lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{LockChange, LockInfo, LockMetadata, QueueEntry, ZnodePath};
use serde_json::{Value, json};

use super::handovers::{Handovers, passed};
use crate::live::{News, SILENCE, Sort, granted_at, rank, searched};
use crate::locks::names::escaped;
use crate::locks::{LEADER_DATA, json, leader_data};

pub(super) const MAX_ROWS: usize = 200;

const MAX_HOLDERS: usize = 3;

const MAX_TEXT: usize = 1 << 10;

/// Maximum size of a lock's searchable text, in bytes. A semaphore can have many holders, each with its own text.
const MAX_SEARCHED: usize = 4 << 10;

const LOCK_BYTES: usize = 1 << 10;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cursor {
    pub(super) sort: Sort,
    pub(super) reverse: bool,
    pub(super) filter: String,
    pub(super) offset: usize,
    pub(super) limit: usize,
}

#[derive(Debug)]
pub(super) struct Row {
    lock: LockInfo,
    holder_count: usize,
    searched: String,
    ranks: [i64; Sort::ALL.len()],
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct Window {
    locks: usize,
    matching: usize,
    held: usize,
    waiters: usize,
    overdue: usize,
    offset: usize,
    rows: Vec<Arc<Row>>,
    is_complete: bool,
}

/// Totals of the locks that fit into the board.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) held: usize,
    pub(super) waiters: usize,
    pub(super) hand_overs: u64,
    /// Time since the oldest known grant, in milliseconds, or 0 if there is none.
    pub(super) oldest_hold_ms: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoreState {
    pub(super) state: &'static str,
    pub(super) reason: Option<String>,
}

#[derive(Debug)]
pub(super) struct Board {
    locks: BTreeMap<ZnodePath, Arc<Row>>,
    orders: [BTreeSet<(i64, ZnodePath)>; Sort::ALL.len()],
    held: usize,
    waiters: usize,
    /// Estimated memory of all locks, in bytes.
    bytes: usize,
    max_bytes: usize,
    is_complete: bool,
    was_read: bool,
    pub(super) handovers: Handovers,
    store: StoreState,
    heard: Instant,
}

impl Board {
    pub(super) fn new(max_bytes: usize, now_ms: i64, now: Instant) -> Self {
        Self {
            locks: BTreeMap::new(),
            orders: Default::default(),
            held: 0,
            waiters: 0,
            bytes: 0,
            max_bytes,
            is_complete: true,
            was_read: false,
            handovers: Handovers::new(now_ms),
            store: StoreState::new("reading", None),
            heard: now,
        }
    }

    pub(super) fn apply(&mut self, news: News, now_ms: i64, now: Instant) {
        match news {
            News::Reading => self.store = StoreState::new("reading", None),
            News::Heard => {}
            News::Locks { change, all } => self.change(change, all, now_ms),
            News::Suspended => {
                self.store = StoreState::new("suspended", None);
                return;
            }
            News::Lost(why) => {
                self.store = StoreState::new("lost", why);
                return;
            }
        }
        self.heard = now;
    }

    fn change(&mut self, change: LockChange, all: bool, now_ms: i64) {
        let told = self.store.reason.take().filter(|_| !all);
        let unreadable = change.unreadable.first().map(|(path, why)| {
            let count = change.unreadable.len();
            let text = format!(
                "{count} znodes cannot be read, such as {}: {why}",
                path.as_str()
            );
            cut(&escaped(&text), MAX_TEXT)
        });
        self.store = StoreState::new("connected", unreadable.or(told));
        if all {
            *self = Self {
                locks: BTreeMap::new(),
                orders: Default::default(),
                held: 0,
                waiters: 0,
                bytes: 0,
                is_complete: true,
                was_read: true,
                handovers: std::mem::replace(&mut self.handovers, Handovers::new(now_ms)),
                store: self.store.clone(),
                ..*self
            };
        }
        for path in &change.freed {
            self.remove(path);
        }
        let mut passed_on = 0;
        for lock in change.changed {
            if let Some(old) = self.remove(&lock.path) {
                passed_on += passed(&old.lock.holders, &lock.holders);
            }
            self.insert(lock);
        }
        self.handovers.add(now_ms, passed_on);
    }

    fn remove(&mut self, path: &ZnodePath) -> Option<Arc<Row>> {
        let row = self.locks.remove(path)?;
        self.bytes -= row.bytes;
        self.waiters -= row.lock.waiters;
        self.held -= usize::from(row.holder_count > 0);
        for (order, rank) in self.orders.iter_mut().zip(row.ranks) {
            order.remove(&(rank, path.clone()));
        }
        Some(row)
    }

    fn insert(&mut self, lock: LockInfo) {
        let row = Row::new(lock);
        if self.bytes + row.bytes > self.max_bytes {
            self.is_complete = false;
            return;
        }
        let path = row.lock.path.clone();
        self.bytes += row.bytes;
        self.waiters += row.lock.waiters;
        self.held += usize::from(row.holder_count > 0);
        for (order, rank) in self.orders.iter_mut().zip(row.ranks) {
            order.insert((rank, path.clone()));
        }
        self.locks.insert(path, Arc::new(row));
    }

    pub(super) fn lock(&self, path: &ZnodePath) -> Option<&Arc<Row>> {
        self.locks.get(path)
    }

    /// Returns the state of the connection. A connection counts as suspended if the store has been silent for too long.
    pub(super) fn store(&self, now: Instant) -> StoreState {
        let silent = now.saturating_duration_since(self.heard);
        match self.store.state {
            "connected" if silent > SILENCE => {
                let reason = "the store does not answer".to_owned();
                StoreState::new("suspended", Some(reason))
            }
            _ => self.store.clone(),
        }
    }

    /// Returns the rows at a cursor, or the last rows if the cursor's offset is past the end.
    pub(super) fn window(&self, cursor: &Cursor, now_ms: i64) -> Window {
        let limit = cursor.limit.min(MAX_ROWS);
        let order = &self.orders[cursor.sort.index()];
        let (matching, all): (usize, Option<Vec<&Arc<Row>>>) = match cursor.filter.is_empty() {
            true => (order.len(), None),
            false => {
                let rows = order.iter().filter_map(|(_, path)| self.locks.get(path));
                let rows = rows.filter(|row| row.searched.contains(&cursor.filter));
                let rows: Vec<_> = rows.collect();
                (rows.len(), Some(rows))
            }
        };
        let offset = match cursor.offset < matching {
            true => cursor.offset,
            false => matching.saturating_sub(limit),
        };
        fn part<'a, T>(
            rows: impl DoubleEndedIterator<Item = T> + 'a,
            cursor: &Cursor,
            from: usize,
            limit: usize,
        ) -> Vec<T>
        where
            T: 'a,
        {
            match cursor.reverse {
                true => rows.rev().skip(from).take(limit).collect(),
                false => rows.skip(from).take(limit).collect(),
            }
        }
        let rows = match all {
            Some(rows) => part(rows.into_iter(), cursor, offset, limit),
            None => {
                let paths = part(order.iter(), cursor, offset, limit);
                let rows = paths.into_iter();
                rows.filter_map(|(_, path)| self.locks.get(path)).collect()
            }
        };
        Window {
            locks: self.locks.len(),
            matching,
            held: self.held,
            waiters: self.waiters,
            overdue: self.overdue(now_ms),
            offset,
            rows: rows.into_iter().cloned().collect(),
            is_complete: self.is_complete,
        }
    }

    pub(super) fn figures(&self, now_ms: i64) -> Option<Figures> {
        if !self.was_read {
            return None;
        }
        let oldest = self.orders[Sort::Held.index()].first();
        let since = oldest
            .and_then(|(rank, _)| granted_at(*rank))
            .unwrap_or(i64::MAX);
        Some(Figures {
            held: self.held,
            waiters: self.waiters,
            hand_overs: self.handovers.total(),
            oldest_hold_ms: now_ms.saturating_sub(since).try_into().unwrap_or(0),
        })
    }

    /// Counts the locks with an overdue holder. In the sort order `Overdue`, a lock's rank is the time at which its
    /// holder becomes overdue.
    fn overdue(&self, now_ms: i64) -> usize {
        let end = (now_ms.saturating_add(1), ZnodePath::root());
        self.orders[Sort::Overdue.index()].range(..end).count()
    }
}

impl StoreState {
    fn new(state: &'static str, reason: Option<String>) -> Self {
        Self { state, reason }
    }

    pub(super) fn json(&self) -> Value {
        json!({ "state": self.state, "reason": self.reason })
    }
}

impl Row {
    fn new(mut lock: LockInfo) -> Self {
        let ranks = Sort::ALL.map(|sort| {
            let holders = lock.holders.iter().map(|it| rank(sort, &lock, Some(it)));
            holders.min().unwrap_or_else(|| rank(sort, &lock, None))
        });
        let mut searched_in = searched(&lock, None);
        for holder in &lock.holders {
            if searched_in.len() >= MAX_SEARCHED {
                break;
            }
            searched_in.push('\n');
            searched_in.push_str(&searched(&lock, Some(holder)));
        }
        let searched = cut(&searched_in, MAX_SEARCHED);
        let holder_count = lock.holders.len();
        lock.holders.truncate(MAX_HOLDERS);
        let mut bytes = LOCK_BYTES + lock.path.as_str().len() + searched.len();
        for holder in &mut lock.holders {
            holder.data = Default::default();
            if let Some(metadata) = &mut holder.metadata {
                shorten(metadata, 0);
                bytes += size(metadata);
            }
        }
        Self {
            lock,
            holder_count,
            searched,
            ranks,
            bytes,
        }
    }

    pub(super) fn holders(&self) -> &[QueueEntry] {
        &self.lock.holders
    }

    fn json(&self, now_ms: i64) -> Value {
        let mut object = json::lock(&self.lock, now_ms);
        object["holder_count"] = self.holder_count.into();
        object
    }
}

pub(super) fn shorten(metadata: &mut LockMetadata, backtrace: usize) {
    let data = metadata.other.remove(LEADER_DATA);
    metadata.other.clear();
    if let Some(Value::String(data)) = data {
        let data = cut(&data, MAX_TEXT);
        metadata.other.insert(LEADER_DATA.into(), data.into());
    }
    let by = metadata.revocation.as_mut().map(|it| &mut it.by);
    for text in [
        &mut metadata.label,
        &mut metadata.host,
        &mut metadata.reason,
    ]
    .into_iter()
    .chain(by)
    {
        *text = text.as_deref().map(|text| cut(text, MAX_TEXT));
    }
    let trace = metadata.backtrace.take().filter(|_| backtrace > 0);
    metadata.backtrace = trace.map(|text| cut(&text, backtrace));
}

fn size(metadata: &LockMetadata) -> usize {
    let by = metadata.revocation.as_ref().and_then(|it| it.by.as_ref());
    let texts = [&metadata.label, &metadata.host, &metadata.reason];
    let texts = texts.into_iter().flatten().chain(by);
    texts.map(String::len).sum::<usize>() + leader_data(metadata).map_or(0, str::len)
}

pub(super) fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let mut kept = text[..text.floor_char_boundary(bytes)].to_owned();
    kept.push('…');
    kept
}

impl Window {
    pub(super) fn json(&self, now_ms: i64) -> Value {
        let rows: Vec<_> = self.rows.iter().map(|row| row.json(now_ms)).collect();
        json!({
            "locks": self.locks,
            "matching": self.matching,
            "held": self.held,
            "waiters": self.waiters,
            "overdue": self.overdue,
            "offset": self.offset,
            "complete": self.is_complete,
            "rows": rows,
            "now_ms": now_ms,
        })
    }

    fn figures(&self) -> [usize; 7] {
        [
            self.locks,
            self.matching,
            self.held,
            self.waiters,
            self.overdue,
            self.offset,
            self.is_complete.into(),
        ]
    }
}

/// Compares the rows by pointer, because each change of a lock creates a new row.
impl PartialEq for Window {
    fn eq(&self, other: &Self) -> bool {
        let rows = || self.rows.iter().zip(&other.rows);
        self.figures() == other.figures()
            && self.rows.len() == other.rows.len()
            && rows().all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

pub(super) const PACE: Duration = Duration::from_millis(250);
