//! A session's lease: the time for which its holder may believe that it lives (invariant 6).
//!
//! [`LeaseState`] computes it from the answers of the store, and reads no clock. [`Lease`] is the handle that a lock
//! keeps: once its lease has ended it stays invalid, although a later proof may give the session another.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::status::SessionStatus;
use crate::model::protocol::Sent;
use crate::runtime::clock::BootInstant;

/// Part of the timeout by which a lease ends before the server may expire the session: 1/10. A server may postpone
/// the expiry, after a stall of its own (rule 14), and never advances it; so the lease ends first in any case.
const MARGIN: u32 = 10;

/// Part of the timeout that must be left of the lease for a grant: 1/5. So a lock is not lost as soon as it is granted.
const GRANT: u32 = 5;

/// Heartbeats in a timeout. One may be lost: after two thirds of the timeout 9/10 − 2/3 of it is left, more than the
/// fifth that a grant needs.
const BEATS: u32 = 3;

/// Number of timeouts for which a session keeps its lease fresh after its last use. A program that locks now and then
/// does not wait for a proof each time; one that no longer locks stops writing to its ensemble.
const IDLE: u32 = 10;

/// Touches closer together than this part of the witness delay are merged.
const GRAIN: u32 = 8;

/// Limit of the touches that are kept: those of two witness delays.
const MAX_TOUCHES: usize = 2 * GRAIN as usize;

/// A session's lease as it was when a lock was taken; ends with the session, or when the session's proof of life has
/// been too old once.
///
/// A lock remembers the lease of its grant. A session may survive a gap in its proofs, but a lock held before the gap
/// may have passed to another session in it: so a lease that has ended stays ended, and the session gives out another.
#[derive(Clone)]
pub struct Lease {
    status: Arc<SessionStatus>,
    /// The session's lapses when the lease was given out.
    lapses: u64,
}

impl Lease {
    pub(super) fn new(status: Arc<SessionStatus>) -> Self {
        // A count, not a deadline: proofs move the end of a lease while it lives, and only a lapse ends it for good.
        let lapses = status.lapses();
        Self { status, lapses }
    }

    /// Returns true while a lock granted under this lease is still held, except after a forced removal: the session is
    /// alive, and [`held_until`](SessionStatus::held_until) has never passed since.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.status.is_valid_since(self.lapses)
    }

    /// Returns true if a lock can be granted under this lease: it is [valid](Self::is_valid), and a fifth of the
    /// session's timeout is left until [`held_until`](SessionStatus::held_until). So the lock is not lost as soon as it is
    /// granted.
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

/// The lease of one session with a timeout, as its proofs of life extend it.
#[derive(Debug)]
pub(super) struct LeaseState {
    /// The negotiated timeout.
    timeout: Duration,
    /// Time at which the newest request was sent that is known to have kept the session alive.
    proved: BootInstant,
    /// The newest proof since the connection was lost, while the timeout negotiated by the new one is unknown. Until
    /// it is known the lease is not extended: the client's timeout could be longer than the server's.
    unsettled: Option<BootInstant>,
    /// Number of lapses: times that the lease had ended before it was renewed.
    lapses: u64,
    /// Number of the connection on which requests are sent from now on.
    connection: u64,
    ensemble: Option<Ensemble>,
}

/// Writes to a member of an ensemble, on the current connection, that may prove each other.
///
/// A follower answers reads and pings by itself. It records that a session was heard from (a *touch*), and passes
/// that on to the leader, which alone expires sessions, with its next answer to the leader's pings, which come every
/// half tick (ZooKeeper 3.9: `Leader.lead`, `Learner.ping`, `LearnerHandler` at `PING`). A write that it forwards
/// does not touch the session at the leader (`LeaderZooKeeperServer.submitLearnerRequest`). So a committed write
/// shows that its follower was in contact with the leader, and, if the follower had an earlier request for a tick
/// already, that the leader knows of that one.
#[derive(Debug)]
struct Ensemble {
    tick: Duration,
    /// Committed writes that are not proved yet, in the order of their answers.
    touches: VecDeque<Touch>,
}

/// A write that the follower received between `sent` and `answered`; the last of those that were answered from
/// `since` on.
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
    /// Returns the lease of a session that was opened by a request sent at `sent`. That is its first proof, in an
    /// ensemble as well: the creation of a session is a transaction, and the leader times the session from then on
    /// (`PrepRequestProcessor` at `createSession`).
    ///
    /// `tick` is that of an ensemble; `None` for a single server.
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

    /// Sets an ensemble's tick.
    pub(super) fn set_tick(&mut self, tick: Duration) {
        if let Some(ensemble) = &mut self.ensemble {
            ensemble.tick = tick;
        }
    }

    /// Returns an ensemble's tick.
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

    /// Returns the end of the lease.
    pub(super) fn end(&self) -> BootInstant {
        self.proved.after(self.timeout - self.timeout / MARGIN)
    }

    /// Returns true from the end on: at that very moment another session may hold.
    pub(super) fn has_ended(&self, now: BootInstant) -> bool {
        self.end() <= now
    }

    /// Returns true if enough of the lease is left for a grant.
    pub(super) fn is_fresh(&self, now: BootInstant) -> bool {
        now.after(self.timeout / GRANT) <= self.end()
    }

    pub(super) fn sending(&self, now: BootInstant) -> Sent {
        Sent {
            at: now,
            connection: self.connection,
        }
    }

    /// Processes an answer. Returns true if it has extended the lease.
    pub(super) fn answered(&mut self, request: Sent, is_commit: bool, now: BootInstant) -> bool {
        let delay = self.witness_delay();
        let proof = match &mut self.ensemble {
            None => Some(request.at),
            // Another member's connection to the leader says nothing about this one's, and the other way round.
            Some(_) if !is_commit || request.connection != self.connection => None,
            Some(ensemble) => {
                // Judged before it is kept: a write must not prove itself, since a forwarded write does not touch the
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
        // Replies are processed by the threads of their callers, in any order: an older proof shortens nothing.
        if sent <= self.proved {
            return false;
        }
        self.changing(now, |lease| lease.proved = sent);
        true
    }

    /// Records the loss of the connection: requests are sent on the next one.
    pub(super) fn disconnected(&mut self) {
        self.connection += 1;
        // The next connection may lead to another follower, whose contact with the leader proves nothing about writes
        // that this one received.
        if let Some(ensemble) = &mut self.ensemble {
            ensemble.touches.clear();
        }
    }

    /// Records that the timeout may be renegotiated: until it is [known](Self::settle), the lease is not extended.
    #[cfg(feature = "client")]
    pub(super) fn unsettle(&mut self) {
        // A second loss, before the timeout of the first reconnection was known, keeps the newest proof of either.
        self.unsettled.get_or_insert(self.proved);
    }

    /// Sets the negotiated timeout. A shorter one holds for earlier proofs as well.
    #[cfg(feature = "client")]
    pub(super) fn settle(&mut self, timeout: Duration, now: BootInstant) {
        self.changing(now, |lease| {
            lease.timeout = timeout;
            let unsettled = lease.unsettled.take();
            lease.proved = unsettled.map_or(lease.proved, |proof| proof.max(lease.proved));
        });
    }

    /// Changes the lease. If it had ended before, and has not after, that is a lapse: locks granted before are lost,
    /// although the session lives, since others may have held them in between.
    fn changing(&mut self, now: BootInstant, change: impl FnOnce(&mut Self)) {
        let had_ended = self.has_ended(now);
        change(self);
        self.lapses += u64::from(had_ended && !self.has_ended(now));
    }

    /// Returns the shortest time between the answer to a write and the sending of one that proves it.
    fn witness_delay(&self) -> Duration {
        // The leader pings every half tick, and a server's shortest timeout is two ticks by default: so a quarter of the
        // timeout has a ping in it, too, and the follower's answer to that precedes the write on the same connection.
        self.tick().unwrap_or_default().min(self.timeout / 4)
    }

    /// Returns the time at which the next heartbeat is due: every third of the timeout, so that a proof is at most
    /// two thirds old when the next one comes, and a grant finds a fifth of the lease left. After an older proof, at
    /// once, as soon as a heartbeat can prove anything.
    pub(super) fn next_beat(&self, last: Option<Beat>, now: BootInstant) -> BootInstant {
        let Some(last) = last else { return now };
        let third = self.timeout / BEATS;
        let regular = last.sent.after(third);
        // A heartbeat whose answer is missing neither delays the next one, nor makes it come sooner.
        if !last.is_proof {
            return regular;
        }
        let newest = self.unsettled.unwrap_or(self.proved).max(self.proved);
        let wanted = regular.min(newest.after(2 * third));
        match &self.ensemble {
            None => wanted,
            Some(ensemble) => match ensemble.touches.front() {
                Some(touch) => wanted.max(touch.answered.after(self.witness_delay())),
                // No write is waiting for a proof: an earlier heartbeat could prove none.
                None => regular,
            },
        }
    }

    /// Returns the time for which a session keeps its lease fresh after its last use.
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

    /// Keeps a committed write. Of those within one grain the last stands for all; without room, older ones are
    /// closer to being proved.
    fn touch(&mut self, sent: BootInstant, answered: BootInstant, grain: Duration) {
        let has_room = self.touches.len() < MAX_TOUCHES;
        match self.touches.back_mut() {
            // Its reply was processed after that of a later write, which stands for it.
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
