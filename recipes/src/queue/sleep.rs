//! [`sleep`]: waits for a watch, for a new connection, or for the end of the session.
//!
//! A watch reports nothing about the time between two connections. So each new connection wakes the waiter, which then
//! asks the store (invariant 8).

use lockkeeper_store::{
    DeleteReason, Error, EventKind, Session, SessionState, SessionStatus, StateStream, WatchedEvent,
};

use crate::error::Result;
use crate::events::LockEvent;
use crate::reporter::Reporter;
use crate::select::{Either, select};

pub(crate) enum WakeReason {
    /// The entry ahead was deleted for the given reason, and nothing else blocks.
    Clear(DeleteReason),
    Gone,
    /// The data of the entry ahead changed, because of a `keep_alive` or a revocation request.
    Changed,
    /// The connection changed or the watch was lost, so everything that we know about the queue may be outdated.
    Stale,
}

pub(crate) async fn sleep(
    session: &Session,
    reporter: &Reporter,
    watcher: &mut (impl Future<Output = Result<WatchedEvent, Error>> + Send + Unpin),
) -> Result<WakeReason> {
    // A session without a timeout is in an embedded store. Such a session has no connection to lose, and its end also
    // ends its watchers.
    if session.timeout().is_none() {
        return wake(watcher.await);
    }
    Box::pin(sleep_connected(session, reporter, watcher)).await
}

async fn sleep_connected(
    session: &Session,
    reporter: &Reporter,
    watcher: &mut (impl Future<Output = Result<WatchedEvent, Error>> + Send + Unpin),
) -> Result<WakeReason> {
    let status = session.status().clone();
    let connection = status.connection();
    let mut states = status.states();
    // True once we have reported a suspension. Only then do we report a resumption.
    let mut is_told = false;
    loop {
        // `states` was subscribed before this comparison, so that we miss no reconnection in between.
        if status.connection() != connection {
            if is_told {
                reporter.report(LockEvent::Resumed);
            }
            return Ok(WakeReason::Stale);
        }
        match select(&mut *watcher, states.next()).await {
            Either::Left(event) => {
                let wake = wake(event)?;
                if is_told {
                    // The waiter needs a connection to ask the store.
                    next_connection(&status, &mut states, connection).await?;
                    reporter.report(LockEvent::Resumed);
                    return Ok(WakeReason::Stale);
                }
                // If the connection has changed since the start of the wait, we do not know what happened in between
                // (invariant 8).
                let is_same = status.connection() == connection;
                return Ok(if is_same { wake } else { WakeReason::Stale });
            }
            Either::Right(Some(SessionState::Suspended)) => {
                if !std::mem::replace(&mut is_told, true) {
                    reporter.report(LockEvent::Suspended { held_until: None });
                }
            }
            Either::Right(_) => {
                if let Some(end) = status.end() {
                    return Err(end.into());
                }
            }
        }
    }
}

async fn next_connection(
    status: &SessionStatus,
    states: &mut StateStream,
    connection: u64,
) -> Result<()> {
    while status.connection() == connection {
        if let Some(end) = status.end() {
            return Err(end.into());
        }
        states.next().await;
    }
    Ok(())
}

fn wake(event: Result<WatchedEvent, Error>) -> Result<WakeReason> {
    match event {
        Ok(WatchedEvent {
            predecessor_gone: Some(gone),
            ..
        }) if gone.clear => Ok(WakeReason::Clear(gone.reason)),
        Ok(event) if event.kind == EventKind::NodeDeleted => Ok(WakeReason::Gone),
        Ok(_) => Ok(WakeReason::Changed),
        Err(Error::ConnectionLoss | Error::LimitReached { .. }) => Ok(WakeReason::Stale),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use lockkeeper_store::{ConnectOptions, SessionState, connect_with};

    use super::*;
    use crate::metadata::EntryData;
    use crate::names::Kind;
    use crate::queue::Queue;

    const ROUNDS: usize = 5_000;

    fn meet(met: &AtomicUsize) {
        let both = met.fetch_add(1, Ordering::AcqRel) / 2 * 2 + 2;
        let mut spins = 0;
        while met.load(Ordering::Acquire) < both {
            spins += 1;
            if spins % 1_000 == 0 {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
        }
    }

    #[test]
    fn a_reconnection_while_a_wait_begins_is_not_waited_for_again() {
        let options = ConnectOptions::new().session_timeout(Duration::from_secs(60));
        let client = pollster::block_on(connect_with("memory:", options)).unwrap();
        let session = pollster::block_on(client.session()).unwrap();
        let (path, kind) = ("/queue".parse().unwrap(), Kind::Mutex);
        let queue = Queue {
            session: &session,
            path: &path,
            kind,
        };
        let reporter = Reporter::of_wait(queue, &EntryData::Written(Default::default()), None);
        let (status, met) = (session.status(), AtomicUsize::new(0));
        let mut stuck = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for _ in 0..ROUNDS {
                    meet(&met);
                    status.set_state(SessionState::Reconnected);
                    meet(&met);
                }
            });
            for round in 0..ROUNDS {
                status.set_state(SessionState::Suspended);
                let has_fired = AtomicBool::new(false);
                let mut watcher = pin!(std::future::poll_fn(|_| {
                    match has_fired.load(Ordering::Relaxed) {
                        true => Poll::Ready(Err(Error::ConnectionLoss)),
                        false => Poll::Pending,
                    }
                }));
                let mut waiting = pin!(sleep(&session, &reporter, &mut watcher));
                meet(&met);
                (0..round % 10).for_each(|_| std::hint::spin_loop());
                let begun = waiting.as_mut().poll(&mut context).is_ready();
                meet(&met);
                let is_over = begun || waiting.as_mut().poll(&mut context).is_ready() || {
                    has_fired.store(true, Ordering::Relaxed);
                    waiting.as_mut().poll(&mut context).is_ready()
                };
                stuck.extend((!is_over).then_some(round));
            }
        });
        assert!(
            stuck.is_empty(),
            "waits that have their event, and go on: {stuck:?}"
        );
    }
}
