//! [`Changes`]: the locks below a prefix that have to be read again.
//!
//! One persistent recursive watch reports every entry that joins, leaves or writes its data, so an idle lock costs no
//! requests. If the server has no such watches (ZooKeeper before 3.6), we read all locks periodically.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_store::{
    BootInstant, Error, PersistentWatcher, Session, WatchMode, WatchedEvent, ZnodePath,
};

use super::{LockPrefix, Root};
use crate::retry::retry;
use crate::select::{Either, select};

const PAUSE: Duration = Duration::from_millis(100);

/// Interval for draining events while other work runs. Waking for each event would slow down every client.
const GATHER: Duration = Duration::from_millis(10);

const POLL: Duration = Duration::from_secs(10);

/// The pause between two reads of all locks is at least this many times the duration of a read.
const POLL_FACTOR: u32 = 20;

/// Maximum number of changed locks to remember. If more locks have changed, we read all locks.
const MAX_CHANGED: usize = 65_536;

pub(crate) struct Changes<'a> {
    session: &'a Session,
    prefix: &'a LockPrefix,
    watcher: Option<PersistentWatcher>,
    changed: Option<BTreeSet<Root>>,
    /// Start of the last read of all locks, and its duration once known.
    read_all: (BootInstant, Option<Duration>),
}

impl<'a> Changes<'a> {
    pub(crate) async fn watch(session: &'a Session, prefix: &'a LockPrefix) -> Result<Self, Error> {
        let mode = WatchMode::PersistentRecursive;
        // Arm the watch before the first read, so that no later change is missed. At first, all locks count as changed.
        let watcher = match retry(|| session.add_watch(prefix.top(), mode)).await {
            Ok(watcher) => Some(watcher),
            Err(Error::Unimplemented { .. }) => {
                tracing::info!(%prefix, "the server has no persistent watches: locks are looked for every 10 s");
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Self {
            session,
            prefix,
            watcher,
            changed: None,
            read_all: (session.clock().now(), None),
        })
    }

    /// Takes the locks to read again, or `None` for the whole prefix.
    pub(crate) fn take(&mut self) -> Option<BTreeSet<Root>> {
        if self.changed.is_none() {
            self.read_all = (self.session.clock().now(), None);
        }
        self.changed.replace(BTreeSet::new())
    }

    pub(crate) fn add(&mut self, lock: &ZnodePath) {
        let root = Root::containing(self.prefix, lock.clone());
        self.insert(root);
    }

    fn insert(&mut self, root: Root) {
        if let Some(changed) = &mut self.changed {
            changed.insert(root);
            if changed.len() > MAX_CHANGED {
                self.changed = None;
            }
        }
    }

    /// Waits for changes, and collects them for a moment.
    ///
    /// Cancel safe: [`take`](Self::take) returns the collected changes.
    pub(crate) async fn wait(&mut self) -> Result<(), Error> {
        let clock = self.session.clock();
        if self.watcher.is_none() {
            let (began, took) = &mut self.read_all;
            let took = *took.get_or_insert_with(|| clock.now().since(*began));
            let next = began.after(took).after(POLL.max(took * POLL_FACTOR));
            clock.sleep_until(next).await;
            self.changed = None;
            return Ok(());
        }
        while self.changed.as_ref().is_some_and(BTreeSet::is_empty) {
            self.next().await?;
        }
        self.during(clock.sleep(PAUSE)).await
    }

    /// Runs `work` and collects changes at the same time, because the store drops events once too many are unread.
    pub(crate) async fn during<F: Future>(&mut self, work: F) -> Result<F::Output, Error> {
        let clock = self.session.clock();
        let gather = async {
            loop {
                if let Err(end) = self.take_in() {
                    return end;
                }
                clock.sleep(GATHER).await;
            }
        };
        match select(work, gather).await {
            Either::Left(done) => self.take_in().map(|()| done),
            Either::Right(end) => Err(end),
        }
    }

    fn take_in(&mut self) -> Result<(), Error> {
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(taken) = pin!(self.next()).poll(&mut context) {
            taken?;
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<(), Error> {
        let Some(watcher) = &mut self.watcher else {
            return std::future::pending().await;
        };
        match watcher.next().await {
            Some(Ok(WatchedEvent { path, .. })) => {
                if let Some(root) = Root::of_entry(self.session, self.prefix, &path) {
                    self.insert(root);
                }
                Ok(())
            }
            // Events were lost in a reconnection or dropped because the buffer was full.
            Some(Err(Error::ConnectionLoss | Error::LimitReached { .. })) => {
                self.changed = None;
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => Err(self.session.status().end().unwrap_or(Error::ConnectionLoss)),
        }
    }
}
