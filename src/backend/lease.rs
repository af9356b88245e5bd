//! A session's lease: how long we may believe that the session is alive (invariant 6).
//!
//! [`LeaseState`] computes the lease from the store's answers and reads no clock. [`Lease`] is the handle that a lock
//! keeps. Once a `Lease` has ended, it stays invalid even if a later proof of life renews the session's lease.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::status::SessionStatus;
use crate::model::protocol::PendingProof;
use crate::runtime::clock::BootInstant;

/// A lease ends this fraction of the timeout (1/10) before the server may expire the session. A server may postpone the
/// expiry after a stall (rule 14) but never expires a session earlier, so the lease always ends first.
const MARGIN: u32 = 10;

/// Fraction of the timeout (1/5) that must be left in the lease when a lock is granted, so that the lock is not lost
/// soon after the grant.
const GRANT: u32 = 5;

/// Number of heartbeats per timeout. One heartbeat may be lost. Two thirds of the timeout have then passed, and the
/// lease (9/10 of the timeout) still has more left than the fifth that a grant needs.
const BEATS: u32 = 3;

/// A session keeps its lease fresh for this number of timeouts after its last use. A program that locks now and then
/// does not have to wait for a proof before each lock, and an idle program stops writing to its ensemble.
const IDLE: u32 = 10;

/// Committed writes ([`Touch`]) that are closer together than the witness delay divided by this number are merged.
const GRAIN: u32 = 8;

/// Maximum number of touches kept. They cover two witness delays.
const MAX_TOUCHES: usize = 2 * GRAIN as usize;

/// A session's lease at the time when a lock was taken. It ends when the session ends, or as soon as the session's last
/// proof of life is too old, even if a newer proof follows.
///
/// A lock remembers the lease of its grant. During a gap in the session's proofs, another session may have held the
/// lock. So a lease that has ended stays ended even if the session survives. The session then hands out a new lease.
#[derive(Clone)]
pub struct Lease {
    status: Arc<SessionStatus>,
    /// Number of the session's lapses when the lease was handed out.
    lapses: u64,
}

impl Lease {
    pub(super) fn new(status: Arc<SessionStatus>) -> Self {
        // We keep a count and not a deadline, because each proof moves the end of a living lease. Only a lapse ends it
        // for good.
        let lapses = status.lapses();
        Self { status, lapses }
    }

    /// Returns true while the session is alive and [`held_until`](SessionStatus::held_until) has never passed since the
    /// grant. A lock granted under this lease is then still held, unless another client has removed its znode by force.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.status.is_valid_since(self.lapses)
    }

    /// Returns true if a lock can be granted under this lease. The lease must be [valid](Self::is_valid), and a fifth
    /// of the session's timeout must be left until [`held_until`](SessionStatus::held_until).
    #[inline]
    pub fn may_grant(&self) -> bool {
        self.status.may_grant_since(self.lapses)
    }

    /// Returns the status of the session that gave out the lease.
    pub fn status(&self) -> &Arc<SessionStatus> {
        &self.status
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("session", &self.status.id())
            .field("is_valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

/// The lease of a session that has a timeout.
#[derive(Debug)]
pub(super) struct LeaseState {
    timeout: Duration,
    /// Send time of the newest request known to have kept the session alive.
    proved: BootInstant,
    /// The newest proof since the connection was lost. `None` if the timeout is known. Until the next connection has
    /// negotiated the timeout, we do not extend the lease, because the new timeout may be shorter.
    unsettled: Option<BootInstant>,
    /// Number of times that a proof renewed the lease after it had ended.
    lapses: u64,
    /// Number of the current connection.
    connection: u64,
    ensemble: Option<Ensemble>,
}

/// Writes to one member of an ensemble on the current connection. A later write can prove an earlier one.
///
/// A follower answers reads and pings without asking the leader. It records that it heard from a session (a *touch*),
/// and reports its touches to the leader when it answers the leader's next ping. The leader sends a ping every half
/// tick (ZooKeeper 3.9: `Leader.lead`, `Learner.ping`, `LearnerHandler` at `PING`). Only the leader expires sessions. A
/// write that the follower forwards does not touch the session at the leader
/// (`LeaderZooKeeperServer.submitLearnerRequest`). But a committed write shows that its follower was in contact with
/// the leader. If the follower received an earlier request of the session at least a tick before, it has reported that
/// touch, so the leader knows that the session was alive at the time of the earlier request.
#[derive(Debug)]
struct Ensemble {
    tick: Duration,
    /// Committed writes that are not proved yet, in the order of their answers.
    touches: VecDeque<Touch>,
}

/// A committed write that the follower received between `sent` and `answered`. It represents all writes that were
/// answered from `since` to `answered`.
#[derive(Clone, Copy, Debug)]
struct Touch {
    since: BootInstant,
    sent: BootInstant,
    answered: BootInstant,
}

/// The last heartbeat that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beat {
    pub(crate) sent: BootInstant,
    /// True once the heartbeat's answer has proved the session, or will let a later write prove it.
    pub(crate) is_proof: bool,
}

impl LeaseState {
    /// Returns the lease of a session that was opened by a request sent at `sent`. This request is the session's first
    /// proof of life. That is also true in an ensemble, because creating a session is a transaction, and the leader
    /// counts the session's timeout from that transaction (`PrepRequestProcessor` at `createSession`).
    ///
    /// `tick` is the tick of the ensemble, or `None` for a single server.
    pub(super) fn new(timeout: Duration, tick: Option<Duration>, sent: BootInstant) -> Self {
        Self {
            timeout,
            proved: sent,
            unsettled: None,
            lapses: 0,
            connection: 0,
            ensemble: tick.map(|tick| Ensemble {
                tick,
                touches: VecDeque::new(),
            }),
        }
    }

    pub(super) fn set_tick(&mut self, tick: Duration) {
        if let Some(ensemble) = &mut self.ensemble {
            ensemble.tick = tick;
        }
    }

    /// Returns the ensemble's tick. `None` for a single server.
    pub(super) fn tick(&self) -> Option<Duration> {
        self.ensemble.as_ref().map(|ensemble| ensemble.tick)
    }

    #[cfg(feature = "client")]
    pub(super) fn set_single_server(&mut self) {
        self.ensemble = None;
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn lapses(&self) -> u64 {
        self.lapses
    }

    pub(super) fn end(&self) -> BootInstant {
        self.proved.after(self.timeout - self.timeout / MARGIN)
    }

    /// Returns true if the lease has ended. The moment of its end counts as ended, because another session may hold the
    /// lock from that moment.
    pub(super) fn has_ended(&self, now: BootInstant) -> bool {
        self.end() <= now
    }

    /// Returns true if enough of the lease is left for a grant.
    pub(super) fn is_fresh(&self, now: BootInstant) -> bool {
        now.after(self.timeout / GRANT) <= self.end()
    }

    pub(super) fn sending(&self, now: BootInstant) -> PendingProof {
        PendingProof {
            at: now,
            connection: self.connection,
        }
    }

    /// Processes an answer. Returns true if it has extended the lease.
    pub(super) fn answered(
        &mut self,
        request: PendingProof,
        is_commit: bool,
        now: BootInstant,
    ) -> bool {
        let delay = self.witness_delay();
        let proof = match &mut self.ensemble {
            None => Some(request.at),
            // The answer was sent on an earlier connection, perhaps by another member. It shows that this other member
            // was in contact with the leader, but says nothing about the member of the current connection.
            Some(_) if !is_commit || request.connection != self.connection => None,
            Some(ensemble) => {
                // Look for a proof before the write is added to the touches, because a write must not prove itself. A
                // forwarded write does not touch the session at the leader (see [`Ensemble`]).
                let proof = ensemble.proved_by(request.at, delay);
                ensemble.touch(request.at, now, delay / GRAIN);
                proof
            }
        };
        proof.is_some_and(|proof| self.prove(proof, now))
    }

    /// Records that the session was alive when a request sent at `sent` was handled.
    pub(super) fn prove(&mut self, sent: BootInstant, now: BootInstant) -> bool {
        if let Some(unsettled) = &mut self.unsettled {
            *unsettled = sent.max(*unsettled);
            return false;
        }
        // Replies are processed by the callers' threads in any order. A reply to an older request must not shorten the
        // lease.
        if sent <= self.proved {
            return false;
        }
        self.changing(now, |lease| lease.proved = sent);
        true
    }

    pub(super) fn disconnected(&mut self) {
        self.connection += 1;
        // The next connection may be to another follower, whose answers prove nothing about writes that this follower
        // received.
        if let Some(ensemble) = &mut self.ensemble {
            ensemble.touches.clear();
        }
    }

    /// Records that the next connection may renegotiate the timeout. We do not extend the lease until
    /// [`settle`](Self::settle) sets the new timeout.
    #[cfg(feature = "client")]
    pub(super) fn unsettle(&mut self) {
        // If the connection is lost a second time before the new timeout is known, keep the newest proof so far.
        self.unsettled.get_or_insert(self.proved);
    }

    /// Sets the negotiated timeout. It applies to earlier proofs, too, so a shorter timeout shortens the current lease.
    #[cfg(feature = "client")]
    pub(super) fn settle(&mut self, timeout: Duration, now: BootInstant) {
        self.changing(now, |lease| {
            lease.timeout = timeout;
            let unsettled = lease.unsettled.take();
            lease.proved = unsettled.map_or(lease.proved, |proof| proof.max(lease.proved));
        });
    }

    /// Changes the lease. If the change revives a lease that had ended, we count a lapse. Locks granted before a lapse
    /// are lost, because other sessions may have held them in between.
    fn changing(&mut self, now: BootInstant, change: impl FnOnce(&mut Self)) {
        let had_ended = self.has_ended(now);
        change(self);
        self.lapses += u64::from(had_ended && !self.has_ended(now));
    }

    /// Returns the time that must pass between the answer to a write and the sending of a later write that proves it.
    fn witness_delay(&self) -> Duration {
        // The leader pings every half tick, and a server's shortest timeout is two ticks by default. So a quarter of
        // the timeout also contains a ping. The follower's answer to this ping reaches the leader before the write,
        // because both use the same connection.
        self.tick().unwrap_or_default().min(self.timeout / 4)
    }

    /// Returns when the next heartbeat is due. Heartbeats are a third of the timeout apart. The newest proof is then at
    /// most two thirds of the timeout old when the next heartbeat is sent, and a grant finds a fifth of the timeout
    /// left in the lease. If the newest proof is older, the next heartbeat is due as soon as it can prove anything.
    pub(super) fn next_beat(&self, last: Option<Beat>, now: BootInstant) -> BootInstant {
        let Some(last) = last else { return now };
        let third = self.timeout / BEATS;
        let regular = last.sent.after(third);
        // The last heartbeat has had no answer that counts. Keep the regular interval and do not send the next one
        // earlier or later.
        if !last.is_proof {
            return regular;
        }
        let newest = self.unsettled.unwrap_or(self.proved).max(self.proved);
        let wanted = regular.min(newest.after(2 * third));
        match &self.ensemble {
            None => wanted,
            Some(ensemble) => match ensemble.touches.front() {
                Some(touch) => wanted.max(touch.answered.after(self.witness_delay())),
                // No earlier write waits for a proof, so an earlier heartbeat would prove nothing.
                None => regular,
            },
        }
    }

    pub(super) fn idle_after(&self) -> Duration {
        IDLE * self.timeout
    }
}

impl Ensemble {
    /// Returns the send time of the newest touch that the leader must know of, given that a write sent at `sent` was
    /// committed.
    fn proved_by(&mut self, sent: BootInstant, delay: Duration) -> Option<BootInstant> {
        let known = |touch: &Touch| touch.answered.after(delay) <= sent;
        let count = self.touches.iter().take_while(|touch| known(touch)).count();
        self.touches
            .drain(..count)
            .next_back()
            .map(|touch| touch.sent)
    }

    /// Records a committed write. Writes that were answered within one `grain` are merged into the last of them. If
    /// there is no room for another touch, the write is dropped, because the older touches will be proved sooner.
    fn touch(&mut self, sent: BootInstant, answered: BootInstant, grain: Duration) {
        let has_room = self.touches.len() < MAX_TOUCHES;
        match self.touches.back_mut() {
            // A write sent later is already recorded, because its reply was processed first. It also represents this
            // write.
            Some(last) if sent < last.sent => {}
            Some(last) if answered < last.since.after(grain) => {
                (last.sent, last.answered) = (sent, answered);
            }
            _ if has_room => self.touches.push_back(Touch {
                since: answered,
                sent,
                answered,
            }),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
