//! A session's lease: how long its holder may believe that it lives (invariant 6).
//!
//! [`LeaseState`] computes it from the store's answers and reads no clock. [`Lease`] is the handle that a lock keeps.
//! Once it has ended, it stays invalid even if a later proof gives the session another lease.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::status::SessionStatus;
use crate::model::protocol::PendingProof;
use crate::runtime::clock::BootInstant;

/// Part of the timeout (1/10) by which a lease ends before the server may expire the session. A server may postpone the
/// expiry after a stall (rule 14) but never advances it, so the lease always ends first.
const MARGIN: u32 = 10;

/// Part of the timeout (1/5) that a grant needs to have left, so that a lock is not lost as soon as it is granted.
const GRANT: u32 = 5;

/// Heartbeats per timeout. One may be lost, because 9/10 − 2/3 of the timeout is still more than the fifth that a grant
/// needs.
const BEATS: u32 = 3;

/// Number of timeouts that a session keeps its lease fresh after its last use. A program that locks now and then does
/// not wait for proofs, and an idle one stops writing to its ensemble.
const IDLE: u32 = 10;

/// Touches closer together than this fraction of the witness delay are merged.
const GRAIN: u32 = 8;

/// Maximum number of touches kept, enough for two witness delays.
const MAX_TOUCHES: usize = 2 * GRAIN as usize;

/// A session's lease at the time when a lock was taken. It ends with the session, or when the session's proof of life
/// has been too old once.
///
/// A lock remembers the lease of its grant. During a gap in the session's proofs another session may have held the
/// lock, so a lease that has ended stays ended even if the session survives. The session then gives out a new lease.
#[derive(Clone)]
pub struct Lease {
    status: Arc<SessionStatus>,
    /// The session's lapses when the lease was given out.
    lapses: u64,
}

impl Lease {
    pub(super) fn new(status: Arc<SessionStatus>) -> Self {
        // A count, not a deadline, because proofs move the end while the lease lives. Only a lapse ends it for good.
        let lapses = status.lapses();
        Self { status, lapses }
    }

    /// Returns true while a lock granted under this lease is still held, except after a forced removal. The session is
    /// alive, and [`held_until`](SessionStatus::held_until) has not passed since.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.status.is_valid_since(self.lapses)
    }

    /// Returns true if a lock can be granted under this lease. It must be [valid](Self::is_valid), with a fifth of the
    /// session's timeout left until [`held_until`](SessionStatus::held_until).
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

/// The lease of one session with a timeout.
#[derive(Debug)]
pub(super) struct LeaseState {
    timeout: Duration,
    /// Send time of the newest request known to have kept the session alive.
    proved: BootInstant,
    /// The newest proof since the connection was lost, while the newly negotiated timeout is unknown. Until then the
    /// lease is not extended, because the new timeout may be shorter.
    unsettled: Option<BootInstant>,
    /// Number of times that the lease had ended before it was renewed.
    lapses: u64,
    /// Number of the current connection.
    connection: u64,
    ensemble: Option<Ensemble>,
}

/// Writes to a member of an ensemble, on the current connection, that may prove each other.
///
/// A follower answers reads and pings on its own. It records that it heard from a session (a *touch*), and reports this
/// to the leader with its next answer to the leader's pings, which arrive every half tick (ZooKeeper 3.9:
/// `Leader.lead`, `Learner.ping`, `LearnerHandler` at `PING`). Only the leader expires sessions. A write that the
/// follower forwards does not touch the session at the leader (`LeaderZooKeeperServer.submitLearnerRequest`). So a
/// committed write shows that its follower was in contact with the leader. If the follower has had an earlier request
/// for a tick, the leader knows of that request.
#[derive(Debug)]
struct Ensemble {
    tick: Duration,
    /// Committed writes that are not proved yet, in the order of their answers.
    touches: VecDeque<Touch>,
}

/// A write that the follower received between `sent` and `answered`. It is the last of the writes answered since
/// `since`.
#[derive(Clone, Copy, Debug)]
struct Touch {
    since: BootInstant,
    sent: BootInstant,
    answered: BootInstant,
}

/// Record of the last heartbeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beat {
    pub(crate) sent: BootInstant,
    /// True once its answer is a proof, or leads to one.
    pub(crate) is_proof: bool,
}

impl LeaseState {
    /// Returns the lease of a session that was opened by a request sent at `sent`. This is its first proof, also in an
    /// ensemble, because creating a session is a transaction, and the leader times the session from then on
    /// (`PrepRequestProcessor` at `createSession`).
    ///
    /// `tick` is the ensemble's tick. `None` for a single server.
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

    /// `None` at a single server.
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

    /// Returns true from the end on, because another session may hold at that very moment.
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
            // Another member's connection to the leader says nothing about this member's.
            Some(_) if !is_commit || request.connection != self.connection => None,
            Some(ensemble) => {
                // Judged before it is kept, because a write must not prove itself. A forwarded write does not touch the
                // session at the leader (see [`Ensemble`]).
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
        // The callers' threads process replies in any order, so an older proof must not shorten the lease.
        if sent <= self.proved {
            return false;
        }
        self.changing(now, |lease| lease.proved = sent);
        true
    }

    pub(super) fn disconnected(&mut self) {
        self.connection += 1;
        // The next connection may lead to another follower, which proves nothing about writes that this one received.
        if let Some(ensemble) = &mut self.ensemble {
            ensemble.touches.clear();
        }
    }

    /// Records that the timeout may be renegotiated. The lease is not extended until it is [known](Self::settle).
    #[cfg(feature = "client")]
    pub(super) fn unsettle(&mut self) {
        // A second loss before the first reconnection's timeout is known keeps the newest proof of both.
        self.unsettled.get_or_insert(self.proved);
    }

    /// Sets the negotiated timeout. A shorter one also applies to earlier proofs.
    #[cfg(feature = "client")]
    pub(super) fn settle(&mut self, timeout: Duration, now: BootInstant) {
        self.changing(now, |lease| {
            lease.timeout = timeout;
            let unsettled = lease.unsettled.take();
            lease.proved = unsettled.map_or(lease.proved, |proof| proof.max(lease.proved));
        });
    }

    /// Changes the lease. If this revives an ended lease, that is a lapse: locks granted before are lost, because
    /// others may have held them in between.
    fn changing(&mut self, now: BootInstant, change: impl FnOnce(&mut Self)) {
        let had_ended = self.has_ended(now);
        change(self);
        self.lapses += u64::from(had_ended && !self.has_ended(now));
    }

    /// Returns the shortest time between the answer to a write and the sending of a write that proves it.
    fn witness_delay(&self) -> Duration {
        // The leader pings every half tick, and a server's shortest timeout is two ticks by default. So a quarter of
        // the timeout contains a ping, too, and the follower's answer to it precedes the write on the same connection.
        self.tick().unwrap_or_default().min(self.timeout / 4)
    }

    /// Returns when the next heartbeat is due. It is every third of the timeout, so that a proof is at most two thirds
    /// old at the next one, and a grant finds a fifth of the lease left. After an older proof it is due as soon as a
    /// heartbeat can prove anything.
    pub(super) fn next_beat(&self, last: Option<Beat>, now: BootInstant) -> BootInstant {
        let Some(last) = last else { return now };
        let third = self.timeout / BEATS;
        let regular = last.sent.after(third);
        // A heartbeat without an answer neither delays nor advances the next one.
        if !last.is_proof {
            return regular;
        }
        let newest = self.unsettled.unwrap_or(self.proved).max(self.proved);
        let wanted = regular.min(newest.after(2 * third));
        match &self.ensemble {
            None => wanted,
            Some(ensemble) => match ensemble.touches.front() {
                Some(touch) => wanted.max(touch.answered.after(self.witness_delay())),
                // No write waits for a proof, so an earlier heartbeat could not prove any.
                None => regular,
            },
        }
    }

    pub(super) fn idle_after(&self) -> Duration {
        IDLE * self.timeout
    }
}

impl Ensemble {
    /// Returns the newest touch that the leader knows of, given that a write sent at `sent` was committed.
    fn proved_by(&mut self, sent: BootInstant, delay: Duration) -> Option<BootInstant> {
        let known = |touch: &Touch| touch.answered.after(delay) <= sent;
        let count = self.touches.iter().take_while(|touch| known(touch)).count();
        self.touches
            .drain(..count)
            .next_back()
            .map(|touch| touch.sent)
    }

    /// Keeps a committed write. The last write within a grain stands for all. If there is no room, older ones are kept,
    /// because they are closer to being proved.
    fn touch(&mut self, sent: BootInstant, answered: BootInstant, grain: Duration) {
        let has_room = self.touches.len() < MAX_TOUCHES;
        match self.touches.back_mut() {
            // A later write, whose reply was processed earlier, stands for this one.
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
