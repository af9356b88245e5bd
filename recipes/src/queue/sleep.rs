//! Sleeping until a watch fires, the connection is another, or the session ends.

use std::pin::Pin;
use std::task::{Context, Poll};

use lockkeeper_store::{DeleteReason, Error, EventKind, WatchedEvent, Watcher};

use super::wait::Waiting;
use crate::error::Result;
use crate::events::LockEvent;
use crate::select::{Either, select};

/// Why a sleep ended.
pub(super) enum Wake {
    /// The one ahead was deleted, for this cause, and the store knows that my way is clear.
    Clear(DeleteReason),
    /// The one ahead was deleted.
    Gone,
    /// The one ahead is there; its data was set (it says that it is still at work).
    Changed,
    /// The connection is another, or what has gone may have left another in its place: look again.
    Look,
}

impl Waiting<'_> {
    /// Sleeps until one of two watches fires, the session is connected again, or it ends.
    pub(crate) async fn until_either(&mut self, either: (Watcher, Watcher)) -> Result<()> {
        self.sleep(&mut EitherWatcher(either.0, either.1))
            .await
            .map(drop)
    }

    /// Sleeps until the watch fires, the session is connected again, or it ends.
    pub(super) async fn sleep(&mut self, watcher: &mut (impl Watch + Unpin)) -> Result<Wake> {
        // Without a timeout the store is in this process: its watchers end with the session, and
        // there is no connection to lose.
        if self.entry.session.timeout().is_none() {
            return wake(watcher.await);
        }
        Box::pin(self.sleep_connected(watcher)).await
    }

    async fn sleep_connected(&mut self, watcher: &mut (impl Watch + Unpin)) -> Result<Wake> {
        let status = self.entry.session.status().clone();
        let mut states = status.states();
        let connection = status.connection();
        loop {
            match select(&mut *watcher, states.next()).await {
                Either::Left(event) => {
                    let wake = wake(event)?;
                    // What came over another connection is confirmed anew.
                    let is_same = status.connection() == connection;
                    return Ok(if is_same { wake } else { Wake::Look });
                }
                Either::Right(_) => {
                    if let Some(end) = status.end() {
                        return Err(end.into());
                    }
                    if status.connection() != connection {
                        self.entry.put(|| LockEvent::Resumed);
                        return Ok(Wake::Look);
                    }
                    let held_until = None;
                    self.entry.put(|| LockEvent::Suspended { held_until });
                }
            }
        }
    }
}

/// Something to sleep on: a watch, or several.
pub(super) trait Watch: Future<Output = Result<WatchedEvent, Error>> + Send {}

impl<F: Future<Output = Result<WatchedEvent, Error>> + Send> Watch for F {}

/// The first event of two watches.
struct EitherWatcher(Watcher, Watcher);

impl Future for EitherWatcher {
    type Output = Result<WatchedEvent, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.0).poll(context) {
            Poll::Pending => Pin::new(&mut self.1).poll(context),
            ready => ready,
        }
    }
}

fn wake(event: Result<WatchedEvent, Error>) -> Result<Wake> {
    match event {
        Ok(WatchedEvent {
            departure: Some(departure),
            ..
        }) if departure.clear => Ok(Wake::Clear(departure.cause)),
        Ok(event) if event.kind == EventKind::NodeDeleted => Ok(Wake::Gone),
        Ok(_) => Ok(Wake::Changed),
        Err(Error::ConnectionLoss | Error::LimitReached { .. }) => Ok(Wake::Look),
        Err(error) => Err(error.into()),
    }
}
