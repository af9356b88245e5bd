//! [`Changes`]: the locks below a prefix that have to be read again.
//!
//! One persistent recursive watch reports every entry that joins, leaves or writes its data. So an idle lock needs no
//! watch and no requests. If the server has no such watches (ZooKeeper before 3.6), we read all locks periodically.

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

/// Minimum time between two reads of a busy lock.
const PAUSE: Duration = Duration::from_millis(100);

/// Interval for draining events while other work runs. If we woke for each event instead, we would slow down every
/// client.
const GATHER: Duration = Duration::from_millis(10);

/// Interval for reading all locks on a server without persistent watches.
const POLL: Duration = Duration::from_secs(10);

/// The pause between two reads of all locks is at least the duration of a read times this factor.
const POLL_FACTOR: u32 = 20;

/// Maximum number of changed locks that we remember. If more locks have changed, we read all locks.
const MAX_CHANGED: usize = 65_536;

/// The locks below a prefix that may have changed since we last read them.
pub(crate) struct Changes<'a> {
    session: &'a Session,
    prefix: &'a LockPrefix,
    /// `None` if the server does not support persistent recursive watches.
    watcher: Option<PersistentWatcher>,
    changed: Option<BTreeSet<Root>>,
    /// Start of the last read of all locks, and the duration of this read once it is known.
    read_all: (BootInstant, Option<Duration>),
}

impl<'a> Changes<'a> {
    /// Starts to watch. At first, all locks count as changed.
    pub(crate) async fn watch(session: &'a Session, prefix: &'a LockPrefix) -> Result<Self, Error> {
        let mode = WatchMode::PersistentRecursive;
        // Arm the watch before the first read, so that no later change is missed.
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

    /// Returns the places to read again, or `None` for the whole prefix. Then forgets them.
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

    /// Runs `work`, and collects changes in the meantime, because unread events are lost once there are too many.
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

    /// Collects the events that have arrived, without waiting for the next event.
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
            // Events were lost, because of a reconnection or because there were too many.
            Some(Err(Error::ConnectionLoss | Error::LimitReached { .. })) => {
                self.changed = None;
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => Err(self.session.status().end().unwrap_or(Error::ConnectionLoss)),
        }
    }
}
