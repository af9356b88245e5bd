//! [`sleep`]: a wait for a watch, the next connection, or the end of the session.

use lockkeeper_store::{DeleteReason, Error, EventKind, Session, WatchedEvent};

use crate::error::Result;
use crate::events::{EventSink, LockEvent};
use crate::select::{Either, select};

/// Reason for which a sleep ended.
pub(crate) enum WakeReason {
    /// The entry ahead was deleted, for this reason, and the store says that no other ahead blocks.
    Clear(DeleteReason),
    /// The entry ahead was deleted.
    Gone,
    /// The entry ahead exists; its data was set, as a holder does that says that it is still at work.
    Changed,
    /// The connection is another: what is known may be out of date.
    Stale,
}

/// Sleeps until a watch fires, the session is connected again, or it ends.
pub(crate) async fn sleep(
    session: &Session,
    events: Option<&EventSink>,
    watcher: &mut (impl Future<Output = Result<WatchedEvent, Error>> + Send + Unpin),
) -> Result<WakeReason> {
    // Without a timeout the store is in this process: its watchers end with the session, and there is
    // no connection to lose.
    if session.timeout().is_none() {
        return wake(watcher.await);
    }
    Box::pin(sleep_connected(session, events, watcher)).await
}

async fn sleep_connected(
    session: &Session,
    events: Option<&EventSink>,
    watcher: &mut (impl Future<Output = Result<WatchedEvent, Error>> + Send + Unpin),
) -> Result<WakeReason> {
    let put = |event| {
        if let Some(events) = events {
            events.put(event);
        }
    };
    let status = session.status().clone();
    let mut states = status.states();
    let connection = status.connection();
    loop {
        match select(&mut *watcher, states.next()).await {
            Either::Left(event) => {
                let wake = wake(event)?;
                // What came over another connection is confirmed anew (invariant 8).
                let is_same = status.connection() == connection;
                return Ok(if is_same { wake } else { WakeReason::Stale });
            }
            Either::Right(_) => {
                if let Some(end) = status.end() {
                    return Err(end.into());
                }
                if status.connection() != connection {
                    put(LockEvent::Resumed);
                    return Ok(WakeReason::Stale);
                }
                put(LockEvent::Suspended { held_until: None });
            }
        }
    }
}

fn wake(event: Result<WatchedEvent, Error>) -> Result<WakeReason> {
    match event {
        Ok(WatchedEvent {
            predecessor_gone: Some(gone),
            ..
        }) if gone.clear => Ok(WakeReason::Clear(gone.reason)),
        Ok(event) if event.kind == EventKind::NodeDeleted => Ok(WakeReason::Gone),
        Ok(_) => Ok(WakeReason::Changed),
        // The watch went with its connection, or was dropped for want of room.
        Err(Error::ConnectionLoss | Error::LimitReached { .. }) => Ok(WakeReason::Stale),
        Err(error) => Err(error.into()),
    }
}
