//! [`LockError`] and [`LostReason`].

use std::time::Duration;

use lockkeeper_store::{Error, HumanDuration, ZnodePath};

/// The result of an operation on a lock.
pub type Result<T, E = LockError> = std::result::Result<T, E>;

/// Error of a call on a lock. After an error the call holds no lock and is in no queue, unless the call's documentation
/// says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The timeout passed before the lock was granted or, for a try, before the store answered.
    #[error(
        "{path} was not granted within {after}: {}",
        .ahead.map_or("the store did not answer".to_owned(), |ahead| format!("{ahead} ahead")),
        after = HumanDuration(*.after)
    )]
    Timeout {
        /// Path of the lock.
        path: ZnodePath,
        /// The timeout of the call.
        after: Duration,
        /// Number of contenders ahead when the queue was last read, including the holder. For a semaphore only the
        /// waiters count. `None` if the store did not answer.
        ahead: Option<usize>,
    },
    /// More contenders than allowed were ahead.
    #[error("{path} has a queue of {ahead}, over the limit of {limit}")]
    QueueFull {
        /// Path of the lock.
        path: ZnodePath,
        /// Number of contenders ahead, including the holder.
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
        /// Path of the lock.
        path: ZnodePath,
        /// The requested recipe.
        expected: &'static str,
        /// Name of a child that does not belong to the expected recipe.
        found: String,
        /// The recipe to which this child belongs.
        kind: &'static str,
    },
    /// Another client removed this contender's entry from the queue during the wait.
    #[error("the entry {entry} was removed from the queue by another client")]
    EntryDeleted {
        /// Path of the entry.
        entry: ZnodePath,
    },
    /// A semaphore has a different number of permits than this program expects.
    #[error(
        "{path} has {stored} permits, not {stated}: state that number, or change it with set_permits"
    )]
    PermitsMismatch {
        /// Path of the semaphore.
        path: ZnodePath,
        /// Number that this program expects.
        stated: u32,
        /// Number in the store.
        stored: u32,
    },
    /// A semaphore was opened, but no number of permits is stored.
    #[error(
        "{path} has no number of permits: nobody has made this semaphore, or its znode is gone"
    )]
    NoPermits {
        /// Path of the semaphore.
        path: ZnodePath,
    },
    /// The znode that should contain a semaphore's number of permits contains other data.
    #[error(
        "{path} holds \"{found}\", which is not a number of permits",
        found = .found.escape_debug()
    )]
    InvalidPermitsData {
        /// Path of the znode.
        path: ZnodePath,
        /// Data of the znode.
        found: String,
    },
    /// More permits were requested than the semaphore has in total, held or not.
    #[error("{wanted} permits of {path} were asked for, which has {total} in all")]
    TooManyPermits {
        /// Path of the semaphore.
        path: ZnodePath,
        /// Number of requested permits.
        wanted: u32,
        /// Total number of permits, held or not.
        total: u32,
    },
    /// A batch of locks was empty.
    #[error("no lock is named: name at least one")]
    EmptyKeys,
    /// A batch of locks contained the same lock twice.
    #[error("{path} is named twice in one batch of locks")]
    DuplicateKey {
        /// Path of the lock.
        path: ZnodePath,
    },
    /// A batch of locks does not fit into one request. Nothing was sent.
    #[error(
        "a batch of {keys} locks takes {bytes} bytes, over the limit of {limit} bytes for one request \
         (ZooKeeper's jute.maxbuffer)"
    )]
    BatchTooLarge {
        /// Number of locks.
        keys: usize,
        /// Size of the request, in bytes.
        bytes: usize,
        /// Largest size of a request, in bytes.
        limit: usize,
    },
    /// A metadata field ([`LockOptions::field`](crate::LockOptions::field)) could not be read back as it was written.
    /// Nothing was sent.
    #[error(
        "the field \"{name}\" of the metadata could not be read back: its name is one of Lockkeeper's own fields, or its value \
         is nested too deeply",
        name = .name.escape_debug()
    )]
    InvalidField {
        /// The field's name.
        name: String,
    },
    /// The guard had been lost before the call.
    #[error("the lock was lost: {0}")]
    Lost(#[from] LostReason),
    /// The store refused a request, or could not be reached.
    #[error(transparent)]
    Store(#[from] Error),
}

impl LockError {
    /// Returns `true` if the session ended during the call. The next call opens a new session.
    pub fn is_session_end(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_session_end())
    }
}

/// Reason why a guard lost its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The store ended the session.
    #[error("the session has expired")]
    SessionExpired,
    /// This program closed the session.
    #[error("the session was closed")]
    SessionClosed,
    /// No reply from the store renewed the lease before it lapsed, so another client may hold the lock by now.
    #[error("the store was not heard from for too long")]
    LeaseExpired,
    /// Another client deleted the holder's znode.
    #[error("the lock was taken away by another client")]
    Revoked,
    /// The holder released the lock.
    #[error("it was released")]
    Released,
}
