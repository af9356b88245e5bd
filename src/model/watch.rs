//! Watches of a session: the events that fire, and the watchers that receive them.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use parking_lot::Mutex;

use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::types::Zxid;
use crate::runtime::future::BoxFuture;
use crate::runtime::wake::wake;

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

/// News of a watch, for its watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Event(WatchedEvent),
    /// Of a waiter's watch: the entry ahead has left. The waiter knows the path of that.
    Departure {
        zxid: Zxid,
        gone: PredecessorGone,
    },
}

#[cfg(test)]
impl News {
    /// Returns the event of a watch that is no waiter's.
    pub(crate) fn event(&self) -> &WatchedEvent {
        match self {
            Self::Event(event) => event,
            Self::Departure { .. } => panic!("{self:?}"),
        }
    }
}

/// The state that a watcher shares with the store that fires it. Small: each waiter of a queue has one.
///
/// The store puts the news in while it applies the transaction, before any later reply (invariant 9), and wakes the
/// watcher after its own lock is released.
#[derive(Default)]
pub(crate) struct WatchCell {
    state: Mutex<CellState>,
    /// True if there is something to take: a look alone needs no lock.
    has_news: AtomicBool,
}

#[derive(Default)]
struct CellState {
    departure: Option<(Zxid, PredecessorGone)>,
    /// All else that a watcher can be told.
    events: Option<Box<Events>>,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Events {
    unread: VecDeque<WatchedEvent>,
    missed: bool,
    /// True if events may have been lost with a connection.
    is_interrupted: bool,
    end: Option<Error>,
}

impl Events {
    fn push(&mut self, event: WatchedEvent) {
        if self.unread.len() < MAX_BACKLOG {
            self.unread.push_back(event);
        } else {
            self.missed = true;
        }
    }

    fn pop(&mut self) -> Option<Result<WatchedEvent>> {
        match self.unread.pop_front() {
            Some(event) => Some(Ok(event)),
            // After the events that were kept, and before the end: the reader knows where the gap is.
            None if std::mem::take(&mut self.missed) => Some(Err(Error::LimitReached {
                what: "unread watch events (some were dropped: read again)",
                limit: MAX_BACKLOG,
            })),
            None if std::mem::take(&mut self.is_interrupted) => Some(Err(Error::ConnectionLoss)),
            None => self.end.clone().map(Err),
        }
    }
}

impl WatchCell {
    /// Puts news in; the caller calls [`wake`](Self::wake) afterwards.
    pub(crate) fn put(&self, news: News) {
        self.change(|state| match news {
            News::Event(event) => state.events.get_or_insert_default().push(event),
            News::Departure { zxid, gone } => state.departure = Some((zxid, gone)),
        });
    }

    /// Reports, behind the events that wait, that some may have been lost with a connection; the caller calls
    /// [`wake`](Self::wake) afterwards.
    #[cfg(feature = "client")]
    pub(crate) fn interrupt(&self) {
        self.change(|state| state.events.get_or_insert_default().is_interrupted = true);
    }

    /// Ends the events with an error; the caller calls [`wake`](Self::wake) afterwards.
    pub(crate) fn end(&self, error: Error) {
        self.change(|state| {
            let events = state.events.get_or_insert_default();
            events.end.get_or_insert(error);
        });
    }

    fn change(&self, change: impl FnOnce(&mut CellState)) {
        change(&mut self.state.lock());
        self.has_news.store(true, Ordering::Release);
    }

    pub(crate) fn wake(&self) {
        // Taken under the lock, and woken outside of it: a waker is the user's code.
        let waker = self.state.lock().waker.take();
        waker.into_iter().for_each(wake);
    }

    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Result<News>> {
        // Never reset: a one-shot watch is polled until it fires.
        let has_news = self.has_news.load(Ordering::Acquire);
        // Neither cloned nor dropped under the lock: a waker is the user's code.
        let waker = (!has_news).then(|| context.waker().clone());
        let mut state = self.state.lock();
        // Under the lock, so that no news falls between the look and the registration.
        if let Some(next) = state.take() {
            return Poll::Ready(next);
        }
        let waker = waker.unwrap_or_else(|| context.waker().clone());
        let former = state.waker.replace(waker);
        drop(state);
        drop(former);
        Poll::Pending
    }
}

impl CellState {
    fn take(&mut self) -> Option<Result<News>> {
        if let Some((zxid, gone)) = self.departure.take() {
            return Some(Ok(News::Departure { zxid, gone }));
        }
        let next = self.events.as_mut()?.pop()?;
        Some(next.map(News::Event))
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
/// [`ConnectionLoss`](Error::ConnectionLoss) and goes on, and [`LimitReached`](Error::LimitReached) where too many were
/// not read: read again what you watch.
#[must_use = "dropping a watcher takes the watch back"]
pub struct PersistentWatcher(Source<BoxedEvents>);

type BoxedEvents = Pin<Box<dyn Stream<Item = Result<WatchedEvent>> + Send>>;

enum Source<B> {
    /// Boxed: each reply is as large as its largest part.
    Store(Box<ArmedWatch>),
    Boxed(B),
}

/// A watch of a store, which is taken back when this is dropped.
pub(crate) struct ArmedWatch {
    cell: Arc<WatchCell>,
    /// Owner of the watch, which takes it back, and its number there.
    owner: Arc<dyn Unwatch>,
    watch: u64,
    /// True while there is a watch to take back: not once a one-shot watch has fired, or a persistent one has ended.
    is_armed: bool,
    /// Of a waiter: the entry ahead.
    ahead: Option<ZnodePath>,
}

impl ArmedWatch {
    pub(crate) fn new(cell: Arc<WatchCell>, owner: Arc<dyn Unwatch>, watch: u64) -> Self {
        Self {
            cell,
            owner,
            watch,
            is_armed: true,
            ahead: None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<WatchedEvent>> {
        let polled = self.cell.poll(context);
        polled.map(|news| {
            Ok(match news? {
                News::Event(event) => event,
                News::Departure { zxid, gone } => WatchedEvent {
                    kind: EventKind::NodeDeleted,
                    path: self.ahead.clone().unwrap_or_else(ZnodePath::root),
                    zxid: Some(zxid),
                    predecessor_gone: Some(gone),
                },
            })
        })
    }
}

impl Drop for ArmedWatch {
    fn drop(&mut self) {
        if self.is_armed {
            self.owner.unwatch(self.watch);
        }
    }
}

impl Watcher {
    pub(crate) fn of(watch: ArmedWatch) -> Self {
        Self(Source::Store(Box::new(watch)))
    }

    /// Returns the watcher of a waiter behind this entry.
    pub(crate) fn of_waiter(mut watch: ArmedWatch, ahead: ZnodePath) -> Self {
        watch.ahead = Some(ahead);
        Self::of(watch)
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
            Source::Store(watch) => {
                let polled = watch.poll(context);
                if let Poll::Ready(Ok(_)) = polled {
                    // It has fired: dropping the watcher need not take the store's lock.
                    watch.is_armed = false;
                }
                polled
            }
            Source::Boxed(event) => event.as_mut().poll(context),
        }
    }
}

impl PersistentWatcher {
    pub(crate) fn of(watch: ArmedWatch) -> Self {
        Self(Source::Store(Box::new(watch)))
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
            Source::Store(watch) if !watch.is_armed => Poll::Ready(None),
            Source::Store(watch) => {
                let polled = watch.poll(context);
                // Behind a loss of events it goes on. Any other error is the session's end.
                watch.is_armed = match &polled {
                    Poll::Ready(Err(error)) => {
                        matches!(error, Error::ConnectionLoss | Error::LimitReached { .. })
                    }
                    _ => true,
                };
                polled.map(Some)
            }
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
/// Key of a watch on a predecessor, by the number that names it to a client of another process.
#[cfg(any(feature = "client", feature = "server"))]
pub(crate) trait WatchNumber {
    fn watch_number(&self) -> i64;
}

/// For tests that encode the replies of a session in this process.
#[cfg(all(test, any(feature = "client", feature = "server")))]
impl WatchNumber for Watcher {
    fn watch_number(&self) -> i64 {
        0
    }
}
