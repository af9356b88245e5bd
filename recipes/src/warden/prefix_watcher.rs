//! [`PrefixWatcher`]: a warden's loop over all locks below a prefix.
//!
//! [`Changes`] returns the locks to read again, and [`Walk`] reads them together. Only locks whose holders declare
//! durations are remembered, so an idle lock costs no memory, task, watch or request.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use lockkeeper_store::{BootInstant, Client, Error, Session, ZnodePath};
use parking_lot::Mutex;

use super::hold_times::{HoldTimes, is_same};
use super::lock_watcher::Watch;
use super::removal::{Removal, Removed};
use super::report::{Overdue, OverdueLevel, WardenReport, WardenStats, report, report_removal};
use crate::list_locks::{Changes, LockPrefix, Root, Walk};
use crate::observe::QueueEntry;
use crate::select::{Either, select};
use crate::stream::LossySender;

/// Maximum number of unreadable znodes to remember. At this limit we forget all of them, and report them again.
const MAX_UNREADABLE: usize = 1_024;

pub(super) struct PrefixWatcher {
    pub(super) client: Client,
    pub(super) prefix: LockPrefix,
    pub(super) times: Arc<Mutex<PrefixTimes>>,
    pub(super) reporter: LossySender<WardenReport>,
    pub(super) removal: Option<Removal>,
    /// Holders whose delete was not answered, for each lock.
    pub(super) unanswered: BTreeMap<ZnodePath, Vec<QueueEntry>>,
    pub(super) unreadable: BTreeSet<ZnodePath>,
}

#[derive(Debug, Default)]
pub(super) struct PrefixTimes {
    locks: BTreeMap<ZnodePath, LockTimes>,
    /// The locks, ordered by the time when their next holder becomes overdue.
    due: BTreeSet<(BootInstant, ZnodePath)>,
}

#[derive(Debug, Default)]
struct LockTimes {
    hold_times: HoldTimes,
    waiters: usize,
    due: Option<BootInstant>,
}

impl PrefixTimes {
    pub(super) fn overdue(&self, lock: &ZnodePath, now: BootInstant) -> Vec<Overdue> {
        let times = self.locks.get(lock);
        times.map_or_else(Vec::new, |times| times.hold_times.overdue(lock, now))
    }

    pub(super) fn overdue_all(&self, now: BootInstant) -> Vec<Overdue> {
        let locks = self.locks.iter();
        locks
            .flat_map(|(path, times)| times.hold_times.overdue(path, now))
            .collect()
    }

    pub(super) fn add_to(&self, stats: &mut WardenStats, now: BootInstant) {
        for times in self.locks.values() {
            times.hold_times.add_to(stats, now);
            stats.waiters += times.waiters;
        }
    }

    /// Returns the newly overdue holders, and the holders that may be removed.
    fn update(
        &mut self,
        lock: &ZnodePath,
        holders: Vec<QueueEntry>,
        waiters: usize,
        now: BootInstant,
    ) -> (Vec<Overdue>, Vec<QueueEntry>) {
        let states = |holder: &QueueEntry| {
            let metadata = holder.metadata.as_ref();
            metadata.is_some_and(|it| OverdueLevel::ALL.iter().any(|at| at.after(it).is_some()))
        };
        if !self.locks.contains_key(lock) && !holders.iter().any(states) {
            return Default::default();
        }
        let times = self.locks.entry(lock.clone()).or_default();
        times.waiters = waiters;
        times.hold_times.update(holders, now);
        let newly_overdue = times.hold_times.newly_overdue(lock, now);
        let removable = times.hold_times.removable(lock, now);
        self.schedule(lock);
        (newly_overdue, removable)
    }

    fn remove(&mut self, lock: &ZnodePath, holder: &QueueEntry) {
        if let Some(times) = self.locks.get_mut(lock) {
            times.hold_times.remove(holder);
            self.schedule(lock);
        }
    }

    /// Updates the due time of a lock. Forgets a lock without declared durations.
    fn schedule(&mut self, lock: &ZnodePath) {
        let Some(times) = self.locks.get_mut(lock) else {
            return;
        };
        let due = times.hold_times.next_due();
        if let Some(before) = std::mem::replace(&mut times.due, due) {
            self.due.remove(&(before, lock.clone()));
        }
        match due {
            Some(due) => drop(self.due.insert((due, lock.clone()))),
            None if !times.hold_times.has_statements() => drop(self.locks.remove(lock)),
            None => {}
        }
    }

    fn next_due(&self) -> Option<BootInstant> {
        self.due.first().map(|(due, _)| *due)
    }

    fn due(&self, now: BootInstant) -> Vec<ZnodePath> {
        let due = self.due.iter().take_while(|(due, _)| *due <= now);
        due.map(|(_, lock)| lock.clone()).collect()
    }
}

impl Watch for PrefixWatcher {
    fn client(&self) -> &Client {
        &self.client
    }

    fn path(&self) -> &ZnodePath {
        self.prefix.top()
    }

    fn reporter(&self) -> &LossySender<WardenReport> {
        &self.reporter
    }

    fn clear(&self) {
        *self.times.lock() = PrefixTimes::default();
    }

    async fn watch_in(&mut self, session: &Session) -> Error {
        match self.try_watch_in(session).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }
}

impl PrefixWatcher {
    async fn try_watch_in(&mut self, session: &Session) -> Result<Infallible, Error> {
        let prefix = self.prefix.clone();
        let mut changes = Changes::watch(session, &prefix).await?;
        loop {
            self.read_changed(session, &mut changes).await?;
            let next_due = self.times.lock().next_due();
            let due = async {
                match next_due {
                    Some(due) => session.clock().sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            if let Either::Left(end) = select(changes.wait(), due).await {
                end?;
            }
            let now = session.clock().now();
            let due = self.times.lock().due(now);
            for lock in due {
                changes.add(&lock);
            }
        }
    }

    async fn read_changed(
        &mut self,
        session: &Session,
        changes: &mut Changes<'_>,
    ) -> Result<(), Error> {
        let prefix = self.prefix.clone();
        let mut walk = Walk::new(session, &prefix);
        // Known locks that the walk has not found yet. Locks that are left here after the walk have no holder.
        let mut unseen: BTreeSet<ZnodePath>;
        match changes.take() {
            None => {
                unseen = self.times.lock().locks.keys().cloned().collect();
                unseen.extend(self.unanswered.keys().cloned());
                walk.add(Root::tree(prefix.top().clone()));
            }
            Some(changed) => {
                unseen = changed.iter().flat_map(Root::locks).collect();
                changed.into_iter().for_each(|root| walk.add(root));
            }
        }
        while let Some(lock) = changes.during(walk.next()).await?? {
            unseen.remove(&lock.path);
            self.seen(session, changes, &lock.path, lock.holders, lock.waiters)
                .await?;
        }
        for lock in unseen {
            self.seen(session, changes, &lock, Vec::new(), 0).await?;
        }
        for (path, error) in walk.into_unreadable() {
            if self.unreadable.len() >= MAX_UNREADABLE {
                self.unreadable.clear();
            }
            if self.unreadable.insert(path.clone()) {
                tracing::warn!(%path, %error, "a lock is not watched");
                self.reporter.send(WardenReport::Failed { path, error });
            }
        }
        Ok(())
    }

    async fn seen(
        &mut self,
        session: &Session,
        changes: &mut Changes<'_>,
        lock: &ZnodePath,
        holders: Vec<QueueEntry>,
        waiters: usize,
    ) -> Result<(), Error> {
        let mut removed = self.unanswered.remove(lock).unwrap_or_default();
        removed.retain(|entry| !holders.iter().any(|holder| is_same(holder, entry)));
        // Read the clock after the reply. An earlier time could make a hold seem longer than it is.
        let now = self.client.clock().now();
        let (newly_overdue, removable) = {
            let mut times = self.times.lock();
            times.update(lock, holders, waiters, now)
        };
        report(&self.reporter, lock, removed, newly_overdue);
        for holder in removable {
            let Some(removal) = self.removal.clone() else {
                break;
            };
            match changes.during(removal.remove(session, &holder)).await?? {
                Removed::Done => {
                    // Update the times before the report, so that `Warden::overdue` agrees with it.
                    self.times.lock().remove(lock, &holder);
                    report_removal(&self.reporter, lock, holder);
                }
                Removed::Refused => {}
                Removed::Unanswered => {
                    let entries = self.unanswered.entry(lock.clone()).or_default();
                    entries.push(holder);
                }
                Removed::Forbidden => {
                    super::removal_ended(lock);
                    self.removal = None;
                    break;
                }
            }
            // Read the lock again, because the next contender may hold it now, or the holder has written.
            changes.add(lock);
        }
        Ok(())
    }
}
