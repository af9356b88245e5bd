//! [`Backend`], the interface between a session and its embedded or remote store, and [`SessionStatus`].

mod cleanup;
mod lease;
mod options;
mod states;
mod status;
pub(crate) mod store_id;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use cleanup::Cleanup;
pub(crate) use lease::Beat;
#[cfg(feature = "etcd")]
pub(crate) use lease::KeepAlive;
pub use lease::Lease;
pub use options::ConnectOptions;
pub use states::StateStream;
use status::DEFAULT_TICK;
pub use status::{SessionStatus, pending_cleanups};
pub use store_id::read_or_create_store_id;

use crate::model::entry::{Enqueued, EntryKey, NewEntry, PredecessorWatch};
#[cfg(feature = "test-util")]
use crate::model::error::Error;
use crate::model::error::Result;
use crate::model::protocol::{Request, Response};
use crate::model::watch::DeleteReason;
use crate::runtime::clock::Clock;
use crate::runtime::future::BoxFuture;

/// One session at a store.
///
/// The contract:
///
/// - A request is sent when it is submitted, not when its response is first polled. So a release takes effect even if
///   its caller drops the response.
/// - Requests of one session are carried out in the order of submission, and their responses complete in that order.
/// - A request that is submitted while the session is suspended waits for the reconnection.
/// - A request that was in flight when the connection broke fails with
///   [`ConnectionLoss`](crate::Error::ConnectionLoss). If the session is over, it fails with
///   [`SessionExpired`](crate::Error::SessionExpired) or [`SessionClosed`](crate::Error::SessionClosed).
/// - A watch event reaches its watcher before any later response of the same session completes.
/// - Dropping the backend closes the session.
pub trait Backend: Send + Sync + fmt::Debug + 'static {
    /// Sends a request.
    fn submit(&self, request: Request) -> Response;

    /// Returns the session's status.
    fn status(&self) -> &Arc<SessionStatus>;

    /// Returns the id of the store, or `None` if the store has no id and the client may not create one.
    fn store_id(&self) -> Option<&str>;

    /// Returns the queues of a store in this process, or `None` for any other store.
    fn local(&self) -> Option<&dyn LocalQueues> {
        None
    }

    /// Returns the number of bytes that a chroot adds to each path on the wire. These bytes count towards the size of a
    /// request. A wrapper must return the same number as the backend that it wraps.
    fn prefix_bytes(&self) -> usize {
        0
    }

    /// Blocks until everything submitted so far has been written to the connection, for at most `limit`.
    ///
    /// `Drop` implementations call this method, on any thread. It returns immediately if waiting is useless, for
    /// example if the store is in this process or the calling thread is the writer. After a call has timed out, later
    /// calls return immediately until the writer has made progress.
    fn flush(&self, limit: Duration) -> Flushed {
        let _ = limit;
        Flushed::Skipped
    }

    /// Prepares the calling thread to block until replies arrive. If this thread may be the reader of the replies,
    /// another thread takes over the reading.
    fn read_elsewhere(&self) {}
}

/// Queues of a store in this process. A session accesses their entries by reference, without requests.
pub trait LocalQueues {
    /// Joins a queue. Returns `None` without side effects if a request must be sent instead.
    fn enter(&self, entry: NewEntry<'_>) -> Option<Enqueued>;

    /// Deletes an entry. Returns false without side effects if [`Request::Delete`] or [`Request::Withdraw`] must be
    /// sent instead.
    fn leave(&self, entry: EntryKey, reason: DeleteReason) -> bool;

    /// Disarms the watch of a waiting entry.
    fn cancel_watch(&self, turn: &PredecessorWatch);

    /// Returns true if this session is known to have the entry. If false, send [`Request::Exists`] to be certain.
    fn has_entry(&self, entry: EntryKey) -> bool;

    /// Returns the number of entries ahead of `entry`. `None` if `entry` does not exist.
    fn count_ahead(&self, entry: EntryKey) -> Option<usize>;
}

/// Outcome of [`Backend::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Everything submitted before the call was handed to the system's socket.
    Written,
    /// There was nothing to write, or waiting would not help.
    Skipped,
    /// The time limit passed before everything was handed over.
    TimedOut,
}

#[cfg(feature = "client")]
pub(crate) const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum time for which a `drop` waits until its requests are written. It is short, because the wait blocks a thread
/// of the caller's executor.
pub(crate) const FLUSH_LIMIT: Duration = Duration::from_millis(5);

/// Maximum time for which dropping the last client waits for clean-ups. Writing the request that closes its session may
/// then take about as long again.
pub(crate) const LAST_DROP_LIMIT: Duration = Duration::from_millis(45);

/// A store that can open sessions.
pub trait Connector: Send + Sync + fmt::Debug + 'static {
    /// Opens a session.
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>>;

    /// Returns the clock of the store's sessions.
    fn clock(&self) -> &Clock;

    /// Ends a session as if the session's timeout had passed.
    #[cfg(feature = "test-util")]
    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        // A default body is needed, because enabling a feature must not break other implementations of the trait.
        let _ = backend;
        let what = "ending a session for a test";
        Box::pin(std::future::ready(Err(Error::Unimplemented { what })))
    }
}
