//! Heartbeats: requests that keep a session's lease fresh while locks and waiters need it (invariant 6).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::proof::{is_commit, proves};
use super::{Inner, Session};
use crate::backend::{Beat, SessionStatus};
use crate::model::path::ZnodePath;
use crate::model::protocol::{Op, Request};
use crate::runtime::clock::BootInstant;
use crate::runtime::future::select;
use crate::runtime::process::is_forked;

/// Guard that keeps a session's lease fresh until it is dropped. Returned by [`Session::heartbeat`].
#[must_use = "dropping it ends the use"]
pub struct Heartbeat(Option<Weak<Inner>>);

#[derive(Default)]
pub(super) struct Heart {
    state: Mutex<HeartbeatState>,
    lag_ns: AtomicU64,
}

#[derive(Default)]
struct HeartbeatState {
    /// Number of locks and waits that use the session. Counted only at an ensemble.
    uses: usize,
    used: Option<BootInstant>,
    /// The last heartbeat. `None` if the next heartbeat is due immediately.
    last: Option<Beat>,
    /// Number of the connection on which the last heartbeat was due.
    connection: u64,
}

impl Heart {
    pub(super) fn start(&self, status: &SessionStatus) {
        *self.state.lock() = HeartbeatState {
            last: Some(Beat {
                sent: status.clock().now(),
                is_proof: false,
            }),
            connection: status.connection(),
            ..HeartbeatState::default()
        };
    }
}

impl Session {
    /// Keeps the session's lease fresh until the returned guard is dropped, and for ten timeouts after that.
    ///
    /// A session with a timeout sends a heartbeat every third of the timeout, from the clock's thread. Usually the
    /// heartbeat is a read. At an ensemble, a read does not prove that the session is alive, so a session in use sends
    /// a multi that only checks the root. The ensemble commits this multi like any other transaction.
    pub fn heartbeat(&self) -> Heartbeat {
        if !self.0.status.has_timeout() || !self.0.status.quorum_only() {
            return Heartbeat(None);
        }
        self.0.begin_use();
        Heartbeat(Some(Arc::downgrade(&self.0)))
    }

    /// Returns how late the last heartbeat was sent.
    pub fn heartbeat_lag(&self) -> Duration {
        Duration::from_nanos(self.0.heart.lag_ns.load(Ordering::Relaxed))
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        let session = self.0.as_ref().and_then(Weak::upgrade);
        // In a forked child, the mutex may be locked forever, because a thread of the parent may have held it during
        // the fork.
        if let Some(session) = session.filter(|_| !is_forked()) {
            session.end_use();
        }
    }
}

impl fmt::Debug for Heartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Heartbeat")
    }
}

impl Inner {
    fn begin_use(&self) {
        let now = self.status.clock().now();
        let mut heart = self.heart.state.lock();
        let was_in_use = self.is_in_use(&heart, now);
        heart.uses += 1;
        // An idle session sends only reads, which prove nothing at an ensemble, so send a write when the use starts.
        if !was_in_use {
            heart.last = None;
            drop(heart);
            self.status.pulse().notify_one();
        }
    }

    fn end_use(&self) {
        let now = self.status.clock().now();
        let mut heart = self.heart.state.lock();
        heart.uses -= 1;
        heart.used = Some(now);
    }

    fn is_in_use(&self, heart: &HeartbeatState, now: BootInstant) -> bool {
        let recently = |used: BootInstant| now.since(used) < self.status.idle_after();
        heart.uses > 0 || heart.used.is_some_and(recently)
    }

    fn next_beat(&self) -> Option<BootInstant> {
        let mut heart = self.heart.state.lock();
        let connection = self.status.connection();
        // Send a heartbeat immediately on a new connection, because the lease may have nearly ended.
        if heart.connection != connection {
            (heart.connection, heart.last) = (connection, None);
        }
        self.status.next_beat(heart.last)
    }

    fn beat(self: &Arc<Self>, due: BootInstant) {
        let now = self.status.clock().now();
        let lag = u64::try_from(now.since(due).as_nanos()).unwrap_or(u64::MAX);
        self.heart.lag_ns.store(lag, Ordering::Relaxed);
        let quorum_only = self.status.quorum_only();
        // Release the lock before sending, because the answer may arrive immediately, and its handler takes the lock.
        let is_write = {
            let mut heart = self.heart.state.lock();
            heart.last = Some(Beat {
                sent: now,
                is_proof: false,
            });
            quorum_only && self.is_in_use(&heart, now)
        };
        let proof = self.submit(match is_write {
            true => Request::Multi(vec![Op::Check {
                path: ZnodePath::root(),
                version: None,
            }]),
            false => Request::Exists {
                path: ZnodePath::root(),
                watch: false,
            },
        });
        // Hold a weak reference, so that a lost answer does not keep the session open.
        let session = Arc::downgrade(self);
        // Do not await the reply here, so that a missing reply does not hold back the next heartbeat.
        crate::spawn_detached(async move {
            let reply = proof.await;
            if proves(&reply)
                && (!quorum_only || is_write && is_commit(&reply))
                && let Some(session) = session.upgrade()
            {
                session.beat_answered(now);
            }
        });
    }

    fn beat_answered(&self, sent: BootInstant) {
        let mut heart = self.heart.state.lock();
        // The answer to an older heartbeat proves only that the session was alive earlier, so ignore it.
        if let Some(last) = &mut heart.last
            && last.sent == sent
        {
            last.is_proof = true;
            drop(heart);
            self.status.pulse().notify_one();
        }
    }
}

pub(super) async fn beat(session: Weak<Inner>, pulse: Arc<Notify>) {
    loop {
        // Hold the session only in this block, so that the last handle can close the session while the task sleeps.
        let (clock, due) = {
            let Some(session) = session.upgrade() else {
                return;
            };
            if !session.status.is_alive() {
                return;
            }
            let Some(due) = session.next_beat() else {
                return;
            };
            let clock = session.status.clock().clone();
            if due <= clock.now() {
                session.beat(due);
                continue;
            }
            (clock, due)
        };
        select(clock.sleep_until(due), pulse.notified()).await;
    }
}
