use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::SessionStatus;
use crate::backend::lease::Beat;
use crate::model::error::Error;
use crate::model::types::{SessionId, SessionState};
use crate::runtime::clock::Clock;

const ID: SessionId = SessionId(7);

/// A lease ends nine tenths (18 s) after its last proof. A grant needs a fifth (4 s).
const TIMEOUT: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);
const INSTANT: Duration = Duration::from_nanos(1);

fn served(clock: &Clock) -> Arc<SessionStatus> {
    status(clock, Some(TIMEOUT), false)
}

fn status(clock: &Clock, timeout: Option<Duration>, is_ensemble: bool) -> Arc<SessionStatus> {
    let (clock, now) = (clock.clone(), clock.now());
    Arc::new(SessionStatus::new(ID, clock, timeout, is_ensemble, now))
}

fn prove(status: &SessionStatus) {
    if let Some(sent) = status.sending() {
        status.answered(sent, true);
    }
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_status_says_what_it_was_made_of() {
    let clock = Clock::new_virtual();
    let served = served(&clock);
    assert_eq!(served.id(), ID);
    clock.advance(SECOND);
    assert_eq!(served.clock().now(), clock.now());
    assert_eq!(served.timeout(), Some(TIMEOUT));
    assert!(served.has_timeout());
    assert!(!served.quorum_only());
    assert_eq!(served.tick(), None);
    assert_eq!(served.idle_after(), 10 * TIMEOUT);
    assert_eq!(served.next_beat(None), Some(clock.now()));
    let end = served.held_until().unwrap().moment();
    assert_eq!(end, clock.now().after(17 * SECOND));
}

#[test]
fn a_session_that_never_expires_has_no_lease_to_lose() {
    let clock = Clock::new_virtual();
    let status = status(&clock, None, false);
    let lease = status.lease();
    clock.advance(1_000_000 * SECOND);
    assert!(lease.is_valid() && lease.may_grant() && status.is_fresh());
    assert_eq!(status.timeout(), None);
    assert!(!status.has_timeout());
    assert!(status.held_until().is_none());
    assert!(status.sending().is_none());
    assert!(status.next_beat(None).is_none());
    assert_eq!(status.idle_after(), Duration::ZERO);
    status.set_state(SessionState::Expired);
    assert!(!lease.is_valid() && !lease.may_grant());
}

#[test]
fn an_ensemble_has_a_tick_and_a_server_none() {
    let clock = Clock::new_virtual();
    let plain = status(&clock, Some(TIMEOUT), true);
    assert!(plain.quorum_only());
    assert_eq!(plain.tick(), Some(super::DEFAULT_TICK));
    let make = |is_ensemble| {
        let (clock, now) = (clock.clone(), clock.now());
        SessionStatus::new(ID, clock, Some(TIMEOUT), is_ensemble, now).with_tick(SECOND)
    };
    assert_eq!(make(true).tick(), Some(SECOND));
    assert_eq!(make(false).tick(), None);
    let set = make(true);
    prove(&set);
    let first = clock.now();
    clock.advance(SECOND);
    prove(&set);
    let end = set.held_until().unwrap().moment();
    assert_eq!(end, first.after(18 * SECOND), "proved after a second");
    #[cfg(feature = "client")]
    {
        set.set_single_server();
        assert!(!set.quorum_only());
        clock.advance(SECOND);
        let sent = set.sending().unwrap();
        set.answered(sent, false);
        let end = set.held_until().unwrap().moment();
        assert_eq!(end, clock.now().after(18 * SECOND), "proved by any answer");
    }
}

#[test]
fn a_lease_is_valid_until_its_end_and_may_grant_until_a_fifth_before() {
    let clock = Clock::new_virtual();
    let status = served(&clock);
    let lease = status.lease();
    clock.advance(14 * SECOND);
    assert!(lease.may_grant() && status.is_fresh());
    clock.advance(INSTANT);
    assert!(!lease.may_grant() && !status.is_fresh());
    clock.advance(4 * SECOND - 2 * INSTANT);
    assert!(lease.is_valid());
    clock.advance(INSTANT);
    assert!(!lease.is_valid() && !lease.may_grant());
}

#[test]
fn a_lease_that_has_ended_stays_ended_and_the_next_one_is_valid() {
    let clock = Clock::new_virtual();
    let status = served(&clock);
    let former = status.lease();
    clock.advance(TIMEOUT);
    prove(&status);
    assert_eq!(status.lapses(), 1);
    assert!(!former.is_valid() && !former.may_grant());
    let next = status.lease();
    assert!(next.is_valid() && next.may_grant());
    assert!(format!("{former:?} {next:?}").contains("is_valid: false"));
    assert!(Arc::ptr_eq(next.status(), &status));
}

#[test]
fn a_session_that_is_being_closed_holds_nothing() {
    let status = served(&Clock::new_virtual());
    let lease = status.lease();
    assert!(status.is_alive() && lease.is_valid() && lease.may_grant());
    status.set_closing();
    assert!(!status.is_alive() && !lease.is_valid() && !lease.may_grant());
    assert_eq!(status.end(), None, "the store has not carried it out");
}

#[test]
fn a_final_state_is_the_last_and_has_its_error() {
    let connected = served(&Clock::new_virtual());
    assert_eq!(connected.state(), SessionState::Connected);
    assert_eq!(connected.end(), None);
    let ends = [
        (SessionState::Expired, Error::SessionExpired { session: ID }),
        (SessionState::Closed, Error::SessionClosed { session: ID }),
    ];
    for (last, error) in ends {
        let status = served(&Clock::new_virtual());
        for state in [SessionState::Suspended, SessionState::Reconnected] {
            status.set_state(state);
            assert_eq!(status.state(), state);
            assert!(status.is_alive() && status.end().is_none());
        }
        status.set_state(last);
        status.set_state(SessionState::Reconnected);
        assert_eq!(status.state(), last);
        assert!(!status.is_alive());
        assert_eq!(status.end(), Some(error));
    }
}

#[test]
fn each_connection_has_its_number() {
    let status = served(&Clock::new_virtual());
    let number = || (status.sending().unwrap().connection, status.connection());
    let (sent, connection) = number();
    status.set_state(SessionState::Suspended);
    assert_eq!(number(), (sent + 1, connection), "sent on the next one");
    status.set_state(SessionState::Reconnected);
    assert_eq!(number(), (sent + 1, connection + 1));
}

#[tokio::test]
async fn states_are_streamed_from_now_on() {
    let status = served(&Clock::new_virtual());
    let mut states = status.states();
    assert!(poll(pin!(states.next())).is_pending());
    status.set_state(SessionState::Suspended);
    assert_eq!(states.next().await, Some(SessionState::Suspended));
}

#[test]
fn an_answer_proves_the_moment_of_its_request() {
    let clock = Clock::new_virtual();
    let status = served(&clock);
    clock.advance(SECOND);
    let sent = status.sending().unwrap();
    assert_eq!(sent.at, clock.now());
    clock.advance(SECOND);
    status.answered(sent, false);
    let end = status.held_until().unwrap().moment();
    assert_eq!(end, sent.at.after(18 * SECOND));
}

#[tokio::test]
async fn a_fresh_lease_is_waited_for() {
    let clock = Clock::new_virtual();
    let status = served(&clock);
    assert!(status.fresh_lease().await.unwrap().may_grant(), "at once");
    clock.advance(16 * SECOND);
    let mut waiting = pin!(status.fresh_lease());
    assert!(poll(waiting.as_mut()).is_pending(), "less than a fifth");
    prove(&status);
    let Poll::Ready(Ok(lease)) = poll(waiting) else {
        panic!("a proof has come");
    };
    assert!(lease.may_grant());
}

#[tokio::test]
async fn a_wait_for_a_fresh_lease_ends_with_the_session() {
    let clock = Clock::new_virtual();
    let status = served(&clock);
    clock.advance(16 * SECOND);
    let mut waiting = pin!(status.fresh_lease());
    assert!(poll(waiting.as_mut()).is_pending());
    status.set_state(SessionState::Expired);
    let ended = waiting.await.map(|_| ());
    assert_eq!(ended, Err(Error::SessionExpired { session: ID }));
    let closing = served(&clock);
    closing.set_closing();
    let ended = closing.fresh_lease().await.map(|_| ());
    assert_eq!(ended, Err(Error::SessionClosed { session: ID }));
}

#[test]
fn a_new_connection_has_a_heartbeat_at_once() {
    let status = served(&Clock::new_virtual());
    let mut pulse = pin!(status.pulse().notified());
    status.set_state(SessionState::Suspended);
    assert!(poll(pulse.as_mut()).is_pending());
    status.set_state(SessionState::Reconnected);
    assert!(poll(pulse).is_ready());
}

#[test]
fn a_heartbeat_is_due_by_the_last_one() {
    let clock = Clock::new_virtual();
    let status = served(&clock);
    clock.advance(SECOND);
    let beat = Beat {
        sent: clock.now(),
        is_proof: false,
    };
    let due = clock.now().after(TIMEOUT / 3);
    assert_eq!(status.next_beat(Some(beat)), Some(due));
}

#[cfg(feature = "client")]
mod renegotiated {
    use super::*;
    use crate::runtime::clock::BootInstant;

    #[test]
    fn a_timeout_that_may_change_stops_the_lease_until_it_is_known() {
        let clock = Clock::new_virtual();
        let status = served(&clock);
        let end = || status.held_until().unwrap().moment();
        let former = end();
        status.unsettle_timeout();
        clock.advance(SECOND);
        prove(&status);
        assert_eq!(end(), former);
        let mut shortened = pin!(status.shortened());
        let mut pulse = pin!(status.pulse().notified());
        assert!(poll(shortened.as_mut()).is_pending());
        assert!(poll(pulse.as_mut()).is_pending());
        status.set_timeout(TIMEOUT / 2);
        assert!(poll(shortened).is_ready(), "guards compute their end anew");
        assert!(poll(pulse).is_ready(), "so does the heartbeat");
        assert_eq!(status.timeout(), Some(TIMEOUT / 2));
        assert_eq!(end(), clock.now().after(9 * SECOND));
    }

    #[tokio::test]
    async fn a_longer_timeout_and_a_proof_wake_waiters_for_a_lease() {
        let clock = Clock::new_virtual();
        let status = served(&clock);
        clock.advance(16 * SECOND);
        let mut first = pin!(status.fresh_lease());
        assert!(poll(first.as_mut()).is_pending());
        status.set_timeout(10 * TIMEOUT);
        assert!(poll(first).is_ready());
        clock.advance(150 * SECOND);
        let mut second = pin!(status.fresh_lease());
        assert!(poll(second.as_mut()).is_pending());
        status.prove(BootInstant::default().after(SECOND));
        assert!(poll(second.as_mut()).is_pending(), "an old one");
        status.prove(clock.now());
        assert!(poll(second).is_ready());
    }
}

#[test]
fn clean_ups_are_counted_and_waited_for() {
    let status = served(&Clock::new_virtual());
    assert!(status.wait_for_cleanups(Duration::ZERO), "there are none");
    status.begin_cleanup();
    status.begin_cleanup();
    assert_eq!(status.pending_cleanups(), 2);
    assert!(super::pending_cleanups() >= 2);
    status.end_cleanup();
    assert_eq!(status.pending_cleanups(), 1);
    assert!(!status.wait_for_cleanups(Duration::from_millis(1)));
    status.end_cleanup();
}

#[test]
fn the_last_clean_up_wakes_those_that_wait() {
    for _ in 0..500 {
        let status = served(&Clock::new_virtual());
        status.begin_cleanup();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| status.wait_for_cleanups(60 * SECOND));
            std::thread::yield_now();
            status.end_cleanup();
            assert!(waiting.join().unwrap());
        });
    }
}
