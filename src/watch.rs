//! Watches of a session: the events that fire, and the watchers that receive them.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use futures_core::Stream;
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::future::BoxFuture;
use crate::path::ZnodePath;
use crate::types::Zxid;
use crate::wake::wake;

/// Kind of a change to a watched znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventKind {
    /// The znode was created.
    NodeCreated,
    /// The znode was deleted.
    NodeDeleted,
    /// The znode's data was set.
    NodeDataChanged,
    /// A child of the znode was created or deleted.
    NodeChildrenChanged,
}

/// An event that a watch has fired.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WatchedEvent {
    /// The kind of the change.
    pub kind: EventKind,
    /// The znode.
    pub path: ZnodePath,
    /// The transaction; `None` where the server does not say (ZooKeeper before 3.9).
    pub zxid: Option<Zxid>,
    /// Consequence for the waiter; only for a watcher of [`Predecessor::Blocked`](crate::Predecessor::Blocked).
    pub predecessor_gone: Option<PredecessorGone>,
}

/// The delete of an entry for which another waited, and its consequence at the end of that very transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PredecessorGone {
    /// True if the waiting entry exists and nothing ahead of it blocks it any more. If false, ask for the predecessor
    /// again.
    pub clear: bool,
    /// The way in which the predecessor left.
    pub reason: DeleteReason,
}

impl PredecessorGone {
    /// Creates the data of such an event.
    pub fn new(clear: bool, reason: DeleteReason) -> Self {
        Self { clear, reason }
    }
}

/// The way in which an entry left its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeleteReason {
    /// Its own session deleted it.
    Released,
    /// Its session ended.
    Died,
    /// Another session deleted it.
    Removed,
    /// Its own session [withdrew](crate::Session::withdraw) it, perhaps without knowing that its turn had come; or the
    /// store cannot say.
    Unknown,
}

/// The modes of a watch that survives firing (ZOOKEEPER-1416: servers since 3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchMode {
    /// Everything that happens to one znode, its children included.
    Persistent,
    /// Creation, deletion and data of a znode and all below it; never `NodeChildrenChanged`.
    PersistentRecursive,
}

/// Owner of watches, which disarms them when their watchers are dropped.
pub(crate) trait Unwatch: Send + Sync {
    /// Disarms the watch with this number.
    fn unwatch(&self, watch: u64);
}

/// The state that a watcher shares with the store that fires it.
///
/// The store puts the event in while it applies the transaction, before any later reply (invariant 9), and wakes the
/// watcher after its own lock is released.
pub(crate) struct WatchCell {
    events: Mutex<Events>,
    /// True if there is an event to take: a look alone needs no lock.
    has_news: AtomicBool,
    waker: AtomicWaker,
    /// Owner of the watch, which takes it back, and its number there.
    owner: Arc<dyn Unwatch>,
    watch: u64,
    /// True while there is a watch to take back: not once a one-shot watch has fired.
    is_armed: AtomicBool,
}

#[derive(Debug, Default)]
struct Events {
    /// The oldest, and for a one-shot watch the only one: it takes no allocation.
    first: Option<WatchedEvent>,
    more: VecDeque<WatchedEvent>,
    missed: bool,
    /// True if events may have been lost with a connection.
    is_interrupted: bool,
    end: Option<Box<Error>>,
}

impl Events {
    fn push(&mut self, event: WatchedEvent) {
        if self.first.is_none() {
            self.first = Some(event);
        } else if self.more.len() + 1 < MAX_BACKLOG {
            self.more.push_back(event);
        } else {
            self.missed = true;
        }
    }

    fn pop(&mut self) -> Option<WatchedEvent> {
        let next = self.more.pop_front();
        std::mem::replace(&mut self.first, next)
    }
}

impl WatchCell {
    pub(crate) fn new(owner: Arc<dyn Unwatch>, watch: u64) -> Self {
        Self {
            events: Mutex::default(),
            has_news: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            owner,
            watch,
            is_armed: AtomicBool::new(true),
        }
    }

    /// Puts an event in; the caller calls [`wake`](Self::wake) afterwards.
    pub(crate) fn put(&self, event: WatchedEvent) {
        self.events.lock().push(event);
        self.has_news.store(true, Ordering::Release);
    }

    /// Reports, behind the events that wait, that some may have been lost with a connection; the caller calls
    /// [`wake`](Self::wake) afterwards.
    #[cfg(feature = "client")]
    pub(crate) fn interrupt(&self) {
        self.events.lock().is_interrupted = true;
        self.has_news.store(true, Ordering::Release);
    }

    /// Ends the events with an error; the caller calls [`wake`](Self::wake) afterwards.
    pub(crate) fn end(&self, error: Error) {
        self.events.lock().end.get_or_insert(Box::new(error));
        self.has_news.store(true, Ordering::Release);
    }

    pub(crate) fn wake(&self) {
        self.waker.take().into_iter().for_each(wake);
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Result<WatchedEvent>> {
        if let Some(next) = self.take() {
            return Poll::Ready(next);
        }
        // Again after the registration: an event that was put in between has found no waker.
        self.waker.register(context.waker());
        self.take().map_or(Poll::Pending, Poll::Ready)
    }

    fn take(&self) -> Option<Result<WatchedEvent>> {
        // Never reset: a one-shot watch is polled until it fires, and most polls come before.
        if !self.has_news.load(Ordering::Acquire) {
            return None;
        }
        let mut events = self.events.lock();
        match events.pop() {
            Some(event) => Some(Ok(event)),
            // After the events that were kept, and before the end: the reader knows where the gap is.
            None if events.missed => {
                events.missed = false;
                Some(Err(Error::LimitReached {
                    what: "unread watch events (some were dropped: read again)",
                    limit: MAX_BACKLOG,
                }))
            }
            None if std::mem::take(&mut events.is_interrupted) => Some(Err(Error::ConnectionLoss)),
            None => events.end.as_deref().cloned().map(Err),
        }
    }
}

/// Number of events that a watcher may leave unread before the store drops some and says so.
const MAX_BACKLOG: usize = 16_384;

/// A one-shot watch: a future of the event that it was armed for.
///
/// It fails with the session's end, if that comes first. Over a reconnection it stays armed, and
/// what happened meanwhile fires it. Dropping it takes the watch back.
#[must_use = "dropping a watcher takes the watch back"]
pub struct Watcher(Source<BoxFuture<Result<WatchedEvent>>>);

/// A watch that survives firing: a stream of events, until the session ends or it is dropped.
///
/// Where events can be lost, over a reconnection, it yields
/// [`ConnectionLoss`](Error::ConnectionLoss) and goes on: read again what you watch.
#[must_use = "dropping a watcher takes the watch back"]
pub struct PersistentWatcher(Source<BoxedEvents>);

type BoxedEvents = Pin<Box<dyn Stream<Item = Result<WatchedEvent>> + Send>>;

enum Source<B> {
    Cell(Arc<WatchCell>),
    Boxed(B),
}

impl<B> Drop for Source<B> {
    fn drop(&mut self) {
        // `Relaxed`: only this watcher ever writes it.
        if let Self::Cell(cell) = self
            && cell.is_armed.load(Ordering::Relaxed)
        {
            cell.owner.unwatch(cell.watch);
        }
    }
}

impl Watcher {
    pub(crate) fn of_cell(cell: Arc<WatchCell>) -> Self {
        Self(Source::Cell(cell))
    }

    /// Wraps any future of an event.
    pub fn from_future(event: impl Future<Output = Result<WatchedEvent>> + Send + 'static) -> Self {
        Self(Source::Boxed(Box::pin(event)))
    }
}

impl Future for Watcher {
    type Output = Result<WatchedEvent>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Source::Cell(cell) => {
                let polled = cell.poll(context);
                if let Poll::Ready(Ok(_)) = polled {
                    // It has fired: dropping the watcher need not take the store's lock.
                    cell.is_armed.store(false, Ordering::Relaxed);
                }
                polled
            }
            Source::Boxed(event) => event.as_mut().poll(context),
        }
    }
}

impl PersistentWatcher {
    pub(crate) fn of_cell(cell: Arc<WatchCell>) -> Self {
        Self(Source::Cell(cell))
    }

    /// Wraps any stream of events.
    pub fn from_stream(events: impl Stream<Item = Result<WatchedEvent>> + Send + 'static) -> Self {
        Self(Source::Boxed(Box::pin(events)))
    }

    /// Waits for the next event; `None` after the error of the session's end.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<Result<WatchedEvent>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for PersistentWatcher {
    type Item = Result<WatchedEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut self.0 {
            Source::Cell(cell) => cell.poll(context).map(Some),
            Source::Boxed(events) => events.as_mut().poll_next(context),
        }
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

impl fmt::Debug for PersistentWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PersistentWatcher")
    }
}
