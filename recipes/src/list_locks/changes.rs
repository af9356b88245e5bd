//! [`Changes`]: the locks below a prefix that have to be read again.
//!
//! One persistent recursive watch tells of every entry that joins, leaves or writes; so a lock at rest costs neither a
//! watch nor a request. A server without such watches (ZooKeeper before 3.6) is asked for all locks from time to time.

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

/// Time for which changes are gathered: a lock that changes all the time is read ten times a second at most.
const PAUSE: Duration = Duration::from_millis(100);

/// Interval at which events are taken in while others are read or gathered. A wake for each event would slow down every
/// client of the store.
const GATHER: Duration = Duration::from_millis(10);

/// Interval of reading all locks of a server without persistent watches.
const POLL: Duration = Duration::from_secs(10);

/// With very many locks such a server is left in peace for this many times as long as they took to be read.
const POLL_FACTOR: u32 = 20;

/// Number of changed locks from which on all are read, which needs no memory for their names.
const MAX_CHANGED: usize = 65_536;

/// The locks below a prefix that may have changed since they were read.
pub(crate) struct Changes<'a> {
    session: &'a Session,
    prefix: &'a LockPrefix,
    /// `None` where the server has no such watches.
    watcher: Option<PersistentWatcher>,
    /// `None` for all locks.
    changed: Option<BTreeSet<Root>>,
    /// Beginning of the last read of all locks, and its duration once it is over.
    read_all: (BootInstant, Option<Duration>),
}

impl<'a> Changes<'a> {
    /// Begins to watch. At first all locks count as changed.
    pub(crate) async fn watch(session: &'a Session, prefix: &'a LockPrefix) -> Result<Self, Error> {
        let mode = WatchMode::PersistentRecursive;
        // Armed before the first read: a change after that read is an event.
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

    /// Takes the places to read again; `None` for the whole prefix.
    pub(crate) fn take(&mut self) -> Option<BTreeSet<Root>> {
        if self.changed.is_none() {
            self.read_all = (self.session.clock().now(), None);
        }
        self.changed.replace(BTreeSet::new())
    }

    /// Adds a lock to be read again.
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

    /// Waits for changes, and gathers them for a moment.
    ///
    /// Cancel safe: [`take`](Self::take) returns those that were gathered.
    ///
    /// # Errors
    /// The end of the session.
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

    /// Does something, and gathers the changes meanwhile: events that are left unread too long are lost.
    ///
    /// # Errors
    /// The end of the session.
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

    /// Takes in the events that have arrived, without a waker for the next one.
    fn take_in(&mut self) -> Result<(), Error> {
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(taken) = pin!(self.next()).poll(&mut context) {
            taken?;
        }
        Ok(())
    }

    /// Takes in the next event.
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
            // Events were lost, with a connection or since they were too many.
            Some(Err(Error::ConnectionLoss | Error::LimitReached { .. })) => {
                self.changed = None;
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => Err(self.session.status().end().unwrap_or(Error::ConnectionLoss)),
        }
    }
}
