//! Watches of a session: their events, and the watchers that receive them.

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
use crate::runtime::future::wake;

/// Kind of change of a watched znode.
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

/// Event fired by a watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WatchedEvent {
    /// The kind of change.
    pub kind: EventKind,
    /// The znode.
    pub path: ZnodePath,
    /// The transaction, or `None` if the server does not report it (ZooKeeper before 3.9).
    pub zxid: Option<Zxid>,
    /// Deletion of the predecessor: its reason, and whether the waiter is still blocked. Only set for watchers of
    /// [`Predecessor::Blocked`](crate::Predecessor::Blocked).
    pub predecessor_gone: Option<PredecessorGone>,
}

/// Deletion of a waiter's predecessor, and the waiter's state at the end of the same transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PredecessorGone {
    /// True if the waiting entry exists and nothing ahead blocks it any more. If false, ask for the predecessor again.
    pub clear: bool,
    /// Reason for the predecessor's deletion.
    pub reason: DeleteReason,
}

impl PredecessorGone {
    /// Creates the details of a predecessor's deletion.
    pub fn new(clear: bool, reason: DeleteReason) -> Self {
        Self { clear, reason }
    }
}

/// Reason for the deletion of a queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeleteReason {
    /// The entry's own session deleted it.
    Released,
    /// The entry's session ended.
    Died,
    /// Another session deleted it.
    Removed,
    /// Either the store does not know the reason, or the entry's own session [withdrew](crate::Session::withdraw) the
    /// entry, perhaps without knowing that it already held the lock.
    Unknown,
}

/// Modes of a watch that survives firing (ZOOKEEPER-1416, servers since 3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchMode {
    /// All changes of one znode, including its children.
    Persistent,
    /// Creation, deletion and data changes of a znode and all its descendants, but never `NodeChildrenChanged`.
    PersistentRecursive,
}

pub(crate) trait Unwatch: Send + Sync {
    fn unwatch(&self, watch: u64);
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WatchUpdate {
    Event(WatchedEvent),
    /// The entry ahead of a waiter has left. The update omits its path, because the waiter already knows it.
    Departure {
        zxid: Zxid,
        gone: PredecessorGone,
    },
}

#[cfg(test)]
impl WatchUpdate {
    pub(crate) fn event(&self) -> &WatchedEvent {
        match self {
            Self::Event(event) => event,
            Self::Departure { .. } => panic!("{self:?}"),
        }
    }
}

/// State shared by a watcher and the store. The state is small, because each waiter of a queue has one.
///
/// The store adds updates while it applies a transaction, before any later reply (invariant 9). It wakes the watcher
/// only after releasing its own lock.
#[derive(Default)]
pub(crate) struct WatchCell {
    state: Mutex<CellState>,
    /// True if there may be an update to take, so that `poll` need not clone the waker.
    has_news: AtomicBool,
}

#[derive(Default)]
struct CellState {
    departure: Option<(Zxid, PredecessorGone)>,
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
            // Report the gap after the kept events, so that the reader knows where the gap is.
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
    /// Adds an update. After this the caller calls [`wake`](Self::wake).
    pub(crate) fn put(&self, news: WatchUpdate) {
        self.change(|state| match news {
            WatchUpdate::Event(event) => state.events.get_or_insert_default().push(event),
            WatchUpdate::Departure { zxid, gone } => state.departure = Some((zxid, gone)),
        });
    }

    #[cfg(feature = "client")]
    pub(crate) fn interrupt(&self) {
        self.change(|state| state.events.get_or_insert_default().is_interrupted = true);
    }

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
        // Wake the waker only after releasing the lock, because a waker runs user code.
        let waker = self.state.lock().waker.take();
        waker.into_iter().for_each(wake);
    }

    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Result<WatchUpdate>> {
        // The flag is never reset, because a one-shot watch is not polled again after it has fired.
        let has_news = self.has_news.load(Ordering::Acquire);
        let waker = (!has_news).then(|| context.waker().clone());
        let mut state = self.state.lock();
        // Check under the lock, so that no update arrives between this check and the waker's registration.
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
    fn take(&mut self) -> Option<Result<WatchUpdate>> {
        if let Some((zxid, gone)) = self.departure.take() {
            return Some(Ok(WatchUpdate::Departure { zxid, gone }));
        }
        let next = self.events.as_mut()?.pop()?;
        Some(next.map(WatchUpdate::Event))
    }
}

/// Number of unread events after which the store drops some of them and reports the loss.
const MAX_BACKLOG: usize = 16_384;

/// One-shot watch: a future of the event.
///
/// The future fails if the session ends first. The watch stays armed when the client reconnects, and also fires for a
/// change made while the client was disconnected. Dropping the watcher cancels the watch.
#[must_use = "dropping a watcher takes the watch back"]
pub struct Watcher(EventSource<BoxFuture<Result<WatchedEvent>>>);

/// Watch that survives firing: a stream of events until the session ends or the stream is dropped.
///
/// The stream yields [`ConnectionLoss`](Error::ConnectionLoss) if events may have been lost with a connection, and
/// [`LimitReached`](Error::LimitReached) if some events were dropped because too many were unread. After either error,
/// read the watched znodes again. The stream continues.
#[must_use = "dropping a watcher takes the watch back"]
pub struct PersistentWatcher(EventSource<BoxedEvents>);

type BoxedEvents = Pin<Box<dyn Stream<Item = Result<WatchedEvent>> + Send>>;

enum EventSource<B> {
    /// Boxed to keep replies small, because every reply is as large as its largest variant.
    Store(Box<ArmedWatch>),
    Boxed(B),
}

pub(crate) struct ArmedWatch {
    cell: Arc<WatchCell>,
    owner: Arc<dyn Unwatch>,
    watch: u64,
    is_armed: bool,
    /// Path of the entry ahead, for a waiter's watch.
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
                WatchUpdate::Event(event) => event,
                WatchUpdate::Departure { zxid, gone } => WatchedEvent {
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
        Self(EventSource::Store(Box::new(watch)))
    }

    pub(crate) fn of_waiter(mut watch: ArmedWatch, ahead: ZnodePath) -> Self {
        watch.ahead = Some(ahead);
        Self::of(watch)
    }

    /// Wraps a future of an event.
    pub fn from_future(event: impl Future<Output = Result<WatchedEvent>> + Send + 'static) -> Self {
        Self(EventSource::Boxed(Box::pin(event)))
    }
}

impl Future for Watcher {
    type Output = Result<WatchedEvent>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            EventSource::Store(watch) => {
                let polled = watch.poll(context);
                if let Poll::Ready(Ok(_)) = polled {
                    watch.is_armed = false;
                }
                polled
            }
            EventSource::Boxed(event) => event.as_mut().poll(context),
        }
    }
}

impl PersistentWatcher {
    pub(crate) fn of(watch: ArmedWatch) -> Self {
        Self(EventSource::Store(Box::new(watch)))
    }

    /// Wraps a stream of events.
    pub fn from_stream(events: impl Stream<Item = Result<WatchedEvent>> + Send + 'static) -> Self {
        Self(EventSource::Boxed(Box::pin(events)))
    }

    /// Waits for the next event. The end of the session is reported as an error. After this error, the method returns
    /// `None`.
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
            EventSource::Store(watch) if !watch.is_armed => Poll::Ready(None),
            EventSource::Store(watch) => {
                let polled = watch.poll(context);
                // An error about lost events does not end the stream. Any other error means that the session has ended.
                watch.is_armed = match &polled {
                    Poll::Ready(Err(error)) => {
                        matches!(error, Error::ConnectionLoss | Error::LimitReached { .. })
                    }
                    _ => true,
                };
                polled.map(Some)
            }
            EventSource::Boxed(events) => events.as_mut().poll_next(context),
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
#[cfg(any(feature = "client", feature = "server"))]
pub(crate) trait WatchNumber {
    fn watch_number(&self) -> i64;
}

#[cfg(all(test, any(feature = "client", feature = "server")))]
impl WatchNumber for Watcher {
    fn watch_number(&self) -> i64 {
        0
    }
}
