//! [`LockEvent`]s of one contender as a stream. The sender never waits, so a slow reader cannot slow down a lock
//! (invariant 10).

use std::fmt;
use std::time::Duration;

use lockkeeper_store::{Deadline, DeleteReason, HumanDuration, ZnodePath};

use crate::error::LostReason;
use crate::stream::{Lossy, LossySender, lossy, named_stream};
use crate::token::FencingToken;

/// An event of one contender.
///
/// An event reports the past. Use [`is_held`](crate::Guard::is_held) to find out whether the lock is held now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LockEvent {
    /// The contender joined the queue and has to wait.
    Queued {
        /// Number of entries ahead, including the holder.
        position: usize,
        /// The entry that blocks the contender.
        ahead: ZnodePath,
    },
    /// One of the entries ahead has left the queue, but the contender still has to wait.
    Advanced {
        /// Number of entries still ahead.
        position: usize,
    },
    /// The contender holds the lock.
    Acquired {
        /// Its fencing token.
        fencing_token: FencingToken,
        /// Duration of the wait. Zero if the lock was free.
        waited: Duration,
        /// Departure of the previous holder. If that holder died, its work may be half done.
        previous: PreviousHolder,
    },
    /// A reader became the writer.
    Upgraded {
        /// Its fencing token from now on.
        fencing_token: FencingToken,
    },
    /// The writer became a reader and keeps its token.
    Downgraded,
    /// The connection is lost. The lock stays held at most until the deadline.
    Suspended {
        /// The deadline. `None` for a session without a timeout.
        held_until: Option<Deadline>,
    },
    /// The connection is back, in the same session.
    Resumed,
    /// A [`Revoker`](crate::Revoker) requests the release of the lock. If several requests arrive in quick succession,
    /// only the last one is reported.
    RevocationRequested {
        /// Name of the revoker, if it has one.
        by: Option<String>,
    },
    /// The lock is lost.
    Lost {
        /// Reason of the loss.
        reason: LostReason,
    },
    /// The lock was released.
    Released,
    /// The wait ended without a grant because it timed out, was cancelled or failed.
    Abandoned,
    /// The reader was too slow, and events were dropped.
    Missed {
        /// Number of dropped events.
        count: u64,
    },
}

/// Departure of the previous holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PreviousHolder {
    /// The lock was free when the contender arrived.
    Free,
    /// The previous holder released the lock.
    Released,
    /// The previous holder left without a release, because its session ended or another client removed it.
    Died,
    /// We do not know how the previous holder left. On ZooKeeper, the only holders that record their release are
    /// exclusive holders of this library that had to wait. After any other holder, the result is `Unknown`.
    Unknown,
}

impl PreviousHolder {
    pub(crate) fn of(cause: DeleteReason) -> Self {
        match cause {
            DeleteReason::Released => Self::Released,
            DeleteReason::Died | DeleteReason::Removed => Self::Died,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for PreviousHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "it was free",
            Self::Released => "it was released",
            Self::Died => "the one before died",
            Self::Unknown => "the one before is gone",
        })
    }
}

impl fmt::Display for LockEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queued { position, ahead } => {
                write!(f, "queued behind {position}, next after {}", ahead.name())
            }
            Self::Advanced { position } => write!(f, "advanced, {position} ahead"),
            Self::Acquired {
                fencing_token,
                waited,
                ..
            } if waited.is_zero() => {
                write!(f, "acquired at once, token {fencing_token}")
            }
            Self::Acquired {
                fencing_token,
                waited,
                previous,
            } => {
                write!(
                    f,
                    "acquired after {waited:.1}: {previous}, token {fencing_token}",
                    waited = HumanDuration(*waited)
                )
            }
            Self::Upgraded { fencing_token } => {
                write!(f, "upgraded to the writer, token {fencing_token}")
            }
            Self::Downgraded => f.write_str("downgraded to a reader"),
            Self::Suspended { held_until: None } => f.write_str("suspended"),
            Self::Suspended {
                held_until: Some(deadline),
            } => write!(
                f,
                "suspended, held for {:.1} more",
                HumanDuration(deadline.remaining())
            ),
            Self::Resumed => f.write_str("resumed"),
            Self::RevocationRequested { by: Some(by) } => write!(f, "asked for by {by}"),
            Self::RevocationRequested { by: None } => f.write_str("asked for"),
            Self::Lost { reason } => write!(f, "lost: {reason}"),
            Self::Released => f.write_str("released"),
            Self::Abandoned => f.write_str("gave up waiting"),
            Self::Missed { count } => write!(f, "{count} events were missed"),
        }
    }
}

/// Creates a sink for [`LockOptions::events`](crate::LockOptions::events), and the stream of its events.
///
/// While 1,024 events are unread, new events are dropped, and [`Missed`](LockEvent::Missed) reports their number. The
/// stream ends when the sink, all its clones, and all waits and guards that use them have been dropped.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper::{LockEvent, LockOptions, Mutex, lock_events};
///
/// # let client = lockkeeper::connect("memory:events").await?;
/// let mutex = Mutex::new(&client, "/lock/orders")?;
/// let (sink, mut events) = lock_events();
/// let guard = mutex.lock_with(LockOptions::new().events(sink)).await?;
/// assert!(matches!(events.next().await, Some(LockEvent::Acquired { .. })));
/// guard.release().await?;
/// assert!(matches!(events.next().await, Some(LockEvent::Released)));
/// assert!(events.next().await.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub fn lock_events() -> (EventSink, LockEvents) {
    let (sender, events) = lossy();
    (EventSink(sender), LockEvents(events))
}

/// Sender of a contender's events, created by [`lock_events`]. Clones are the same sink.
#[derive(Clone, Debug)]
pub struct EventSink(LossySender<LockEvent>);

impl EventSink {
    pub(crate) fn put(&self, event: LockEvent) {
        self.0.send(event);
    }
}

impl Lossy for LockEvent {
    fn missed(count: u64) -> Self {
        Self::Missed { count }
    }
}

named_stream! {
    /// Stream returned by [`lock_events`].
    LockEvents of LockEvent;
    /// Waits for the next event. Returns `None` when the stream has ended.
    ///
    /// Cancel safe: no event is lost.
}
