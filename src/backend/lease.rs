//! A session's lease: the time for which we may consider the session alive (invariant 6).
//!
//! [`LeaseState`] computes the lease from the store's answers and reads no clock. [`Lease`] is the handle that a lock
//! keeps.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::status::SessionStatus;
use crate::model::protocol::PendingProof;
use crate::runtime::clock::BootInstant;

/// A lease ends this fraction of the timeout (1/10) before the timeout has passed. The server may expire a session
/// later than its timeout, for example after a stall, but never earlier, so the lease always ends first.
const MARGIN: u32 = 10;

/// Fraction of the timeout (1/5) that must be left in the lease when a lock is granted, so that the lock is not lost
/// soon afterwards.
const GRANT: u32 = 5;

/// Number of heartbeats per timeout. If one heartbeat is lost, the next one follows two thirds of the timeout after the
/// last proof. The lease (9/10 of the timeout) then still has the fifth left that a grant needs.
const BEATS: u32 = 3;

/// Number of timeouts for which a session keeps its lease fresh after its last use. So a program that locks now and
/// then need not wait for a proof of life before each lock, but an idle program stops sending heartbeat writes to its
/// ensemble.
const IDLE: u32 = 10;

/// Committed writes within this fraction of `witness_delay` (1/8) are merged into one [`Touch`].
const GRAIN: u32 = 8;

const MAX_TOUCHES: usize = 2 * GRAIN as usize;

/// A session's lease at the time when a lock was taken. It ends when the session ends, or as soon as the session's last
/// proof of life is too old.
///
/// A lease that has ended stays ended even if a newer proof follows, because another session may have held the lock in
/// the gap. The session then hands out a new lease.
#[derive(Clone)]
pub struct Lease {
    status: Arc<SessionStatus>,
    lapses: u64,
}

impl Lease {
    pub(super) fn new(status: Arc<SessionStatus>) -> Self {
        // Remember the number of lapses and not a deadline, because each proof of life moves the lease's end. Only a
        // lapse ends the lease for good.
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

#[derive(Debug)]
pub(super) struct LeaseState {
    timeout: Duration,
    /// Send time of the newest request known to have kept the session alive.
    proved: BootInstant,
    /// Send time of the newest proven request while the timeout is being renegotiated, otherwise `None`. Meanwhile, the
    /// lease is not extended, because the new timeout may be shorter.
    unsettled: Option<BootInstant>,
    lapses: u64,
    connection: u64,
    rule: ProofRule,
}

/// The answers that prove that a session was alive.
#[derive(Debug)]
enum ProofRule {
    /// A single server: every answer.
    AnyAnswer,
    Ensemble(Ensemble),
    /// etcd: only a confirmed [`KeepAlive`]. The fields belong to the newest one.
    #[cfg(feature = "etcd")]
    KeepAlive {
        sent: BootInstant,
        confirmed: BootInstant,
    },
}

/// A keep-alive of an etcd lease, answered with a positive TTL.
///
/// The answer by itself proves nothing, because a paused former leader may still answer after another leader has
/// revoked the lease. So after the answer has arrived, we send a linearizable range of one of the session's own keys.
/// The header of each answer contains the term of the last entry that the answering member has applied. A new leader
/// answers a linearizable range only after it has applied an entry of its own term. So if both answers have the same
/// term, no election took place between them, and the leader that served the range also answered the keep-alive. The
/// proof outlasts a later election, because a new leader restarts each lease with its full TTL. The key must exist,
/// because a revoke that is already in the log may be applied after the keep-alive.
///
/// The leader checks whether a lease has expired, and renews it in a later step. In between it may decide to revoke the
/// lease, and the read misses a revoke that is not yet committed. By then, all earlier proofs are older than the TTL. So
/// once the client's lease has ended, a keep-alive proves nothing unless it follows another one within the TTL. We assume
/// that the revoke has been committed by then.
#[cfg(feature = "etcd")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    pub(crate) sent: BootInstant,
    pub(crate) term: u64,
}

#[cfg(feature = "etcd")]
impl KeepAlive {
    /// Returns the send time of the keep-alive if the session is proved to have been alive then. `term` and
    /// `has_own_key` are from a linearizable range that was sent after the answer to the keep-alive arrived.
    pub(crate) fn confirmed_by(self, term: u64, has_own_key: bool) -> Option<BootInstant> {
        (has_own_key && term == self.term).then_some(self.sent)
    }
}

/// The writes that were sent to one member of an ensemble on the current connection. A later write can prove that the
/// session was alive when an earlier write was sent.
///
/// A follower answers reads and pings without asking the leader. It records that it heard from a session (a *touch*),
/// and reports its touches to the leader when it answers the leader's next ping. The leader pings every half tick
/// (ZooKeeper 3.9: `Leader.lead`, `Learner.ping`, `LearnerHandler` at `PING`). Only the leader expires sessions. A
/// write that the follower forwards does not touch the session at the leader
/// (`LeaderZooKeeperServer.submitLearnerRequest`).
///
/// However, a committed write shows that its follower was in contact with the leader. By then, the follower has
/// reported the touch of each request that it received at least a tick earlier. So the leader knows that the session
/// was alive at the time of such a request.
#[derive(Debug)]
struct Ensemble {
    tick: Duration,
    touches: VecDeque<Touch>,
}

/// One committed write, or several merged into one. The follower received the last write between `sent` and `answered`.
/// The first write was answered at `since`.
#[derive(Clone, Copy, Debug)]
struct Touch {
    since: BootInstant,
    sent: BootInstant,
    answered: BootInstant,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Beat {
    pub(crate) sent: BootInstant,
    /// True if the heartbeat's answer has arrived, and either proved that the session was alive or lets a later write
    /// prove it.
    pub(crate) is_proof: bool,
}

impl LeaseState {
    /// Returns the lease of a session that was opened by a request sent at `sent`. This request is the first proof of
    /// life. In an ensemble it is too, because the leader counts the timeout from the transaction that creates the
    /// session (`PrepRequestProcessor` at `createSession`).
    pub(super) fn new(timeout: Duration, tick: Option<Duration>, sent: BootInstant) -> Self {
        Self {
            timeout,
            proved: sent,
            unsettled: None,
            lapses: 0,
            connection: 0,
            rule: match tick {
                None => ProofRule::AnyAnswer,
                Some(tick) => ProofRule::Ensemble(Ensemble {
                    tick,
                    touches: VecDeque::new(),
                }),
            },
        }
    }

    #[cfg(feature = "etcd")]
    pub(super) fn set_keep_alive(&mut self) {
        self.rule = ProofRule::KeepAlive {
            sent: self.proved,
            confirmed: self.proved,
        };
    }

    fn ensemble(&mut self) -> Option<&mut Ensemble> {
        match &mut self.rule {
            ProofRule::Ensemble(ensemble) => Some(ensemble),
            _ => None,
        }
    }

    pub(super) fn set_tick(&mut self, tick: Duration) {
        if let Some(ensemble) = self.ensemble() {
            ensemble.tick = tick;
        }
    }

    pub(super) fn tick(&self) -> Option<Duration> {
        match &self.rule {
            ProofRule::Ensemble(ensemble) => Some(ensemble.tick),
            _ => None,
        }
    }

    #[cfg(feature = "client")]
    pub(super) fn set_single_server(&mut self) {
        self.rule = ProofRule::AnyAnswer;
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn lapses(&self) -> u64 {
        self.lapses
    }

    pub(super) fn end(&self) -> BootInstant {
        self.proved.after(self.length())
    }

    fn length(&self) -> Duration {
        self.timeout - self.timeout / MARGIN
    }

    /// Returns true if the lease has ended. This includes the exact moment of its end, because another session may hold
    /// the lock from that moment.
    pub(super) fn has_ended(&self, now: BootInstant) -> bool {
        self.end() <= now
    }

    pub(super) fn is_fresh(&self, now: BootInstant) -> bool {
        now.after(self.timeout / GRANT) <= self.end()
    }

    pub(super) fn sending(&self, now: BootInstant) -> PendingProof {
        PendingProof {
            at: now,
            connection: self.connection,
        }
    }

    /// Returns true if the answer has extended the lease.
    pub(super) fn answered(
        &mut self,
        request: PendingProof,
        is_commit: bool,
        now: BootInstant,
    ) -> bool {
        let delay = self.witness_delay();
        let proof = match &mut self.rule {
            ProofRule::AnyAnswer => Some(request.at),
            #[cfg(feature = "etcd")]
            ProofRule::KeepAlive { .. } => None,
            // An answer on an earlier connection says nothing about the member of the current connection.
            ProofRule::Ensemble(_) if !is_commit || request.connection != self.connection => None,
            ProofRule::Ensemble(ensemble) => {
                // Look for a proof before this write is added to the touches, because a write proves only earlier
                // writes (see [`Ensemble`]).
                let proof = ensemble.proved_by(request.at, delay);
                ensemble.touch(request.at, now, delay / GRAIN);
                proof
            }
        };
        proof.is_some_and(|proof| self.prove(proof, now))
    }

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
        #[cfg(feature = "etcd")]
        if !self.follows_another(sent, now) {
            return false;
        }
        self.changing(now, |lease| lease.proved = sent);
        true
    }

    /// Records a confirmed [`KeepAlive`]. Returns false if it proves nothing because the lease had ended.
    #[cfg(feature = "etcd")]
    fn follows_another(&mut self, sent: BootInstant, now: BootInstant) -> bool {
        let (has_ended, length) = (self.has_ended(now), self.length());
        let ProofRule::KeepAlive {
            sent: sent_before,
            confirmed: confirmed_before,
        } = &mut self.rule
        else {
            return true;
        };
        let sent_before = std::mem::replace(sent_before, sent);
        let confirmed_before = std::mem::replace(confirmed_before, now);
        !has_ended || confirmed_before <= sent && now < sent_before.after(length)
    }

    pub(super) fn disconnected(&mut self) {
        self.connection += 1;
        // The next connection may be to another follower, whose answers prove nothing about writes to this follower.
        if let Some(ensemble) = self.ensemble() {
            ensemble.touches.clear();
        }
    }

    #[cfg(feature = "client")]
    pub(super) fn unsettle(&mut self) {
        // If the connection is lost a second time before the new timeout is known, keep the newest proof so far.
        self.unsettled.get_or_insert(self.proved);
    }

    /// Sets the negotiated timeout. It applies to earlier proofs too, so a shorter timeout shortens the current lease.
    #[cfg(feature = "client")]
    pub(super) fn settle(&mut self, timeout: Duration, now: BootInstant) {
        self.changing(now, |lease| {
            lease.timeout = timeout;
            let unsettled = lease.unsettled.take();
            lease.proved = unsettled.map_or(lease.proved, |proof| proof.max(lease.proved));
        });
    }

    /// Counts a lapse if the change revives a lease that had ended. Locks granted before a lapse are lost, because
    /// other sessions may have held them in between.
    fn changing(&mut self, now: BootInstant, change: impl FnOnce(&mut Self)) {
        let had_ended = self.has_ended(now);
        change(self);
        self.lapses += u64::from(had_ended && !self.has_ended(now));
    }

    /// Returns the shortest time between the answer to a write and a later write that can prove that the session was
    /// alive at the earlier write.
    fn witness_delay(&self) -> Duration {
        // The leader pings its followers every half tick. By default a timeout is at least two ticks, so every quarter
        // of the timeout contains a ping. The follower's answer to this ping reports the session of the earlier write
        // as alive. The answer reaches the leader before the later write, because both use the same connection.
        self.tick().unwrap_or_default().min(self.timeout / 4)
    }

    /// Returns the time of the next heartbeat. It is due a third of the timeout after the last heartbeat, or earlier if
    /// the newest proof would otherwise become older than two thirds of the timeout. A grant needs a fifth of the
    /// timeout left in the lease.
    pub(super) fn next_beat(&self, last: Option<Beat>, now: BootInstant) -> BootInstant {
        let Some(last) = last else { return now };
        let third = self.timeout / BEATS;
        let regular = last.sent.after(third);
        // Keep the regular interval, because no useful answer to the last heartbeat has arrived.
        if !last.is_proof {
            return regular;
        }
        let newest = self.unsettled.unwrap_or(self.proved).max(self.proved);
        let wanted = regular.min(newest.after(2 * third));
        match &self.rule {
            ProofRule::AnyAnswer => wanted,
            // The etcd backend renews the lease with its own keep-alives.
            #[cfg(feature = "etcd")]
            ProofRule::KeepAlive { .. } => now.after(self.idle_after()),
            ProofRule::Ensemble(ensemble) => match ensemble.touches.front() {
                Some(touch) => wanted.max(touch.answered.after(self.witness_delay())),
                // A heartbeat before the regular time would prove nothing, because no earlier write waits for a proof.
                None => regular,
            },
        }
    }

    pub(super) fn idle_after(&self) -> Duration {
        IDLE * self.timeout
    }
}

impl Ensemble {
    /// Returns the send time of the newest touch that the leader knows of once it has committed a write sent at `sent`.
    fn proved_by(&mut self, sent: BootInstant, delay: Duration) -> Option<BootInstant> {
        let known = |touch: &Touch| touch.answered.after(delay) <= sent;
        let count = self.touches.iter().take_while(|touch| known(touch)).count();
        self.touches
            .drain(..count)
            .next_back()
            .map(|touch| touch.sent)
    }

    /// Records a write. Writes that were answered within one `grain` are merged into the last of these writes. If the
    /// list of touches is full, the new write is dropped, because the older touches will be proved sooner.
    fn touch(&mut self, sent: BootInstant, answered: BootInstant, grain: Duration) {
        let has_room = self.touches.len() < MAX_TOUCHES;
        match self.touches.back_mut() {
            // The reply to a later write, which proves more, was processed first.
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

#[cfg(all(test, feature = "etcd"))]
mod stopped_leader;
#[cfg(test)]
mod tests;
