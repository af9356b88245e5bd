//! [`Backend`]: the interface through which a session reaches its store, embedded or remote; and [`SessionStatus`].

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
pub use lease::Lease;
pub use options::ConnectOptions;
pub use states::StateStream;
use status::DEFAULT_TICK;
pub use status::{SessionStatus, pending_cleanups};
pub use store_id::read_or_create_store_id;

use crate::model::entry::{Entered, EntryKey, NewEntry, Turn};
#[cfg(feature = "test-util")]
use crate::model::error::Error;
use crate::model::error::Result;
use crate::model::protocol::{Request, Response};
use crate::model::watch::DeleteReason;
use crate::runtime::clock::Clock;
use crate::runtime::future::BoxFuture;

/// One session at a store.
///
/// The contract: a request is sent when it is submitted, not when its response is first polled (a dropped future must
/// not lose a release);
/// requests of one session are carried out, and their responses completed, in the order of their
/// submission; a request that is submitted while the session is suspended waits for the
/// reconnection; a request that was in flight when the connection broke fails with
/// [`ConnectionLoss`](crate::Error::ConnectionLoss), and one that finds the session over with
/// [`SessionExpired`](crate::Error::SessionExpired) or
/// [`SessionClosed`](crate::Error::SessionClosed). A watch event reaches its watcher before any
/// later response of that session completes. Dropping the backend closes the session.
pub trait Backend: Send + Sync + fmt::Debug + 'static {
    /// Sends a request.
    fn submit(&self, request: Request) -> Response;

    /// Returns the session's status.
    fn status(&self) -> &Arc<SessionStatus>;

    /// Returns the id of the store; `None` where it has none and none may be created.
    fn store_id(&self) -> Option<&str>;

    /// Returns the queues of a store in this process; `None` for any other, which has requests alone.
    fn local(&self) -> Option<&dyn LocalQueues> {
        None
    }

    /// Returns the number of bytes before each path on the wire: a chroot's. They count when the size of a request is
    /// checked, so a wrapper around another backend passes its answer on.
    fn prefix_bytes(&self) -> usize {
        0
    }

    /// Blocks until all that was submitted so far has been written to the connection, for at most `limit`.
    ///
    /// Called as values are dropped, on any thread. So it does not wait where that would be useless: in a store of this
    /// process, on the thread that does the writing, and after an earlier call has timed out, until that thread has
    /// made progress.
    fn flush(&self, limit: Duration) -> Flushed {
        let _ = limit;
        Flushed::Skipped
    }

    /// Prepares for the calling thread to block until replies have come: if it may be the one that reads them, another
    /// reads them from now on.
    fn read_elsewhere(&self) {}
}

/// Queues of a store in this process, whose entries a session knows by reference: without requests.
pub trait LocalQueues {
    /// Joins a queue. `None`, and nothing was done: send a request.
    fn enter(&self, entry: NewEntry<'_>) -> Option<Entered>;

    /// Deletes an entry. Returns false if nothing was done: send [`Request::Delete`] or [`Request::Withdraw`].
    fn leave(&self, entry: EntryKey, reason: DeleteReason) -> bool;

    /// Disarms the watch by which an entry waits for its turn.
    fn forget(&self, turn: &Turn);

    /// Returns true if an entry exists. False may have other reasons: send [`Request::Exists`].
    fn has_entry(&self, entry: EntryKey) -> bool;

    /// Returns the number of entries ahead of one; `None` if it does not exist.
    fn count_ahead(&self, entry: EntryKey) -> Option<usize>;
}

/// Outcome of [`Backend::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// All that was submitted before has been handed to the system's socket.
    Written,
    /// Returned without waiting: nothing is to be written, or waiting would not help.
    Skipped,
    /// The limit has passed first.
    TimedOut,
}

/// Timeout that a session at a server asks for, unless [`ConnectOptions::session_timeout`] names another.
#[cfg(feature = "client")]
pub(crate) const DEFAULT_SESSION_TIMEOUT: Duration = Duration::from_secs(15);

/// Longest wait of a drop for its requests to be written. It blocks the thread of the caller's executor, so it is short:
/// a thread that is not held up writes at once.
pub(crate) const FLUSH_LIMIT: Duration = Duration::from_millis(5);

/// Longest wait for clean-ups as the last client is dropped, and again for the end of its session. With a
/// [`FLUSH_LIMIT`] for each of the two that is a tenth of a second.
pub(crate) const LAST_DROP_LIMIT: Duration = Duration::from_millis(45);

/// A store at which sessions can be opened.
pub trait Connector: Send + Sync + fmt::Debug + 'static {
    /// Opens a session.
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>>;

    /// Returns the clock of the store's sessions.
    fn clock(&self) -> &Clock;

    /// Ends a session as the store would when its timeout has passed.
    #[cfg(feature = "test-util")]
    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        // A default: enabling the feature must not break other implementations (features are additive).
        let _ = backend;
        let what = "ending a session for a test";
        Box::pin(std::future::ready(Err(Error::Unimplemented { what })))
    }
}
