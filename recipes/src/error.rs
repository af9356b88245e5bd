//! Why a lock could not be had, or was lost.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

/// The result of an operation on a lock.
pub type Result<T, E = LockError> = std::result::Result<T, E>;

/// Why a lock could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The lock was not granted in time. Nothing of the wait is left in the queue.
    #[error("{path} was not granted within {after:?}")]
    Timeout {
        /// The lock.
        path: ZnodePath,
        /// How long it was waited for.
        after: Duration,
    },
    /// More contenders than allowed were ahead.
    #[error("{path} has a queue of {ahead}, over the limit of {limit}")]
    QueueFull {
        /// The lock.
        path: ZnodePath,
        /// How many were ahead.
        ahead: usize,
        /// How many were allowed to be.
        limit: usize,
    },
    /// The path is in use by another kind of recipe.
    #[error("{path} is no {expected}: it holds {found:?}, which belongs to {kind}")]
    WrongKind {
        /// The path.
        path: ZnodePath,
        /// The recipe that was asked for.
        expected: &'static str,
        /// The child that does not belong there.
        found: String,
        /// The recipe that it belongs to.
        kind: &'static str,
    },
    /// Somebody removed this contender's entry from the queue while it waited.
    #[error("the entry {entry} was removed from the queue by somebody else")]
    Removed {
        /// The entry.
        entry: ZnodePath,
    },
    /// What was to be released had been lost before.
    #[error("the lock was lost: {0}")]
    Lost(#[from] LostReason),
    /// The store refused a request, or could not be reached.
    #[error(transparent)]
    Store(#[from] Error),
}

impl LockError {
    /// Whether the session ended under the wait. The recipe opens a new one at the next attempt.
    pub fn is_session_end(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_session_end())
    }
}

/// Why a guard no longer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The store ended the session.
    #[error("the session has expired")]
    SessionExpired,
    /// This program closed the session.
    #[error("the session was closed")]
    SessionClosed,
    /// No sign of life from the store came in time, so that another may hold the lock by now.
    #[error("the store was not heard of for too long")]
    Lapsed,
    /// Somebody else deleted the holder's znode.
    #[error("the lock was taken away by somebody else")]
    Revoked,
}
