//! [`LockError`] and [`LostReason`]: failures of a call, and losses of a lock that was held.

use std::time::Duration;

use lockkeeper_store::{Error, HumanDuration, ZnodePath};

/// The result of an operation on a lock.
pub type Result<T, E = LockError> = std::result::Result<T, E>;

/// Failure of a call on a lock. Nothing of the call is held or queued after it, if its own documentation does not say
/// otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The lock was not granted in time, or the store did not answer a try. Nothing of it is left in the queue.
    #[error(
        "{path} was not granted within {after}: {}",
        .ahead.map_or("the store did not answer".to_owned(), |ahead| format!("{ahead} ahead")),
        after = HumanDuration(*.after)
    )]
    Timeout {
        /// The lock.
        path: ZnodePath,
        /// The timeout of the call.
        after: Duration,
        /// Number of contenders ahead, including the holder, when the queue was last read; of a semaphore the number of
        /// waiters, without the holders. `None` if the store did not answer.
        ahead: Option<usize>,
    },
    /// More contenders than allowed were ahead.
    #[error("{path} has a queue of {ahead}, over the limit of {limit}")]
    QueueFull {
        /// The lock.
        path: ZnodePath,
        /// Number of contenders ahead, the holder included.
        ahead: usize,
        /// The limit that the caller set.
        limit: usize,
    },
    /// The path is in use by another kind of recipe.
    #[error(
        "{path} is not {} {expected}: it holds \"{found}\", which belongs to {kind}",
        if expected.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" },
        found = .found.escape_debug()
    )]
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
    /// Another client removed this contender's entry from the queue while it waited.
    #[error("the entry {entry} was removed from the queue by another client")]
    EntryDeleted {
        /// The entry.
        entry: ZnodePath,
    },
    /// A semaphore has another number of permits than this program expects.
    #[error(
        "{path} has {stored} permits, not {stated}: state that number, or change it with set_permits"
    )]
    PermitsMismatch {
        /// The semaphore.
        path: ZnodePath,
        /// Number that this program expects.
        stated: u32,
        /// Number that is stored.
        stored: u32,
    },
    /// A semaphore was opened that has no number of permits.
    #[error(
        "{path} has no number of permits: nobody has made this semaphore, or its znode is gone"
    )]
    NoPermits {
        /// The semaphore.
        path: ZnodePath,
    },
    /// The znode of a semaphore's number of permits holds something else.
    #[error(
        "{path} holds \"{found}\", which is not a number of permits",
        found = .found.escape_debug()
    )]
    InvalidPermitsData {
        /// The znode.
        path: ZnodePath,
        /// Data of the znode.
        found: String,
    },
    /// More permits were asked for than there are, held or not: that would never be granted.
    #[error("{wanted} permits of {path} were asked for, which has {total} in all")]
    TooManyPermits {
        /// The semaphore.
        path: ZnodePath,
        /// Number that was asked for.
        wanted: u32,
        /// Number of all permits, held or not.
        total: u32,
    },
    /// Several locks were asked for, and none named.
    #[error("no lock is named: name at least one")]
    EmptyKeys,
    /// Several locks were asked for, and one of them named twice: it would wait for itself.
    #[error("{path} is named twice in one batch of locks")]
    DuplicateKey {
        /// The lock.
        path: ZnodePath,
    },
    /// More locks were asked for at once than one request can carry. Nothing was sent.
    #[error(
        "a batch of {keys} locks takes {bytes} bytes, over the limit of {limit} bytes for one request \
         (ZooKeeper's jute.maxbuffer)"
    )]
    BatchTooLarge {
        /// Number of locks that were asked for.
        keys: usize,
        /// Size of the request, in bytes.
        bytes: usize,
        /// Largest size of a request, in bytes.
        limit: usize,
    },
    /// A field of the metadata that no reader would understand ([`LockOptions::field`](crate::LockOptions::field)). Nothing
    /// was sent.
    #[error(
        "the field \"{name}\" of the metadata could not be read back: its name is one of Lockkeeper's own fields, or its value \
         is nested too deeply",
        name = .name.escape_debug()
    )]
    InvalidField {
        /// The field's name.
        name: String,
    },
    /// The guard had been lost before: another client may have held the lock since.
    #[error("the lock was lost: {0}")]
    Lost(#[from] LostReason),
    /// The store refused a request, or could not be reached.
    #[error(transparent)]
    Store(#[from] Error),
}

impl LockError {
    /// Returns true if the session ended under the call. The recipe opens a new one at the next attempt.
    pub fn is_session_end(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_session_end())
    }
}

/// Reason of a loss: the guard holds no longer.
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
    #[error("the store was not heard from for too long")]
    LeaseExpired,
    /// Another client deleted the holder's znode.
    #[error("the lock was taken away by another client")]
    Revoked,
    /// The holder itself has released it.
    #[error("it was released")]
    Released,
}
