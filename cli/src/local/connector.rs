//! [`LocalConnector`]: a connector that starts the server when it is missing, for the first session and for as long as a
//! session lives. So a server that was killed, or has ended at a logout, costs no client its locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_store::{
    Backend, BoxFuture, Clock, ConnectOptions, Connector, Result, SessionState, SessionStatus,
    StateStream, connect_with, spawn_detached,
};

use super::{LocalStore, Peer};

/// Pause before the server is looked for again, while a client waits for it. Each start that fails doubles it.
const RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(2);

/// The same after the server's end.
const SHORTEST_RETRY: Duration = Duration::from_millis(10);

/// The connector of the user's own store.
#[derive(Debug)]
pub(super) struct LocalConnector {
    store: LocalStore,
    clock: Clock,
}

impl LocalConnector {
    pub(super) fn new(store: LocalStore) -> Self {
        let clock = Clock::system();
        Self { store, clock }
    }
}

impl Connector for LocalConnector {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        let (store, clock, options) = (self.store.clone(), self.clock.clone(), options.clone());
        Box::pin(async move {
            let url = store.url();
            let missing = async {
                // The server may be killed while the client connects. It does not end as idle: one connection is kept
                // until the client has its own.
                let (mut kept, mut pause) = (None::<Peer>, RETRY);
                loop {
                    // One that hangs keeps each connection in its queue, so it gets no second one.
                    if kept
                        .as_ref()
                        .is_none_or(|kept| kept.ended_within(Duration::ZERO))
                    {
                        kept = store.started().await.ok();
                        pause = pause_after(&kept, pause);
                    }
                    clock.sleep(pause).await;
                }
            };
            let client = tokio::select! {
                opened = connect_with(&url, options) => opened?,
                () = missing => unreachable!("it never ends"),
            };
            // Only the session's backend is used from here on: the wrapper's own client takes the place of this one.
            let session = client.current_session();
            spawn_detached(keep(store, session.states(), session.status().clone()));
            Ok(session.backend().clone())
        })
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }
}

/// Starts the server whenever the session has lost it, until the session ends.
async fn keep(store: LocalStore, mut states: StateStream, status: Arc<SessionStatus>) {
    let is_restarting = Arc::new(AtomicBool::new(false));
    let mut state = Some(status.state());
    while let Some(now) = state {
        if now == SessionState::Suspended && !is_restarting.swap(true, Ordering::AcqRel) {
            let (store, status, restarting) =
                (store.clone(), status.clone(), is_restarting.clone());
            // A thread of its own: starting blocks, and this future runs on the thread that brings the news.
            let started = std::thread::Builder::new()
                .name("lockkeeper-start".into())
                .spawn(move || restart(&store, &status, &restarting));
            // The system refuses it. Another client may start the server.
            if started.is_err() {
                is_restarting.store(false, Ordering::Release);
            }
        }
        state = states.next().await;
    }
}

fn restart(store: &LocalStore, status: &SessionStatus, is_restarting: &AtomicBool) {
    let (mut kept, mut pause) = (None::<Peer>, RETRY);
    loop {
        while status.state() == SessionState::Suspended {
            // While it is kept, the server is not idle. One that takes no connection ends this one at once.
            if kept.as_ref().is_some_and(|kept| !kept.ended_within(RETRY)) {
                continue;
            }
            std::thread::sleep(SHORTEST_RETRY);
            kept = match store.peer() {
                Ok(Some(peer)) => Some(peer),
                _ => store.start().ok(),
            };
            pause = pause_after(&kept, pause);
            // A reason not to start may pass, as a full disk does. The session says when it is too late.
            if kept.is_none() {
                std::thread::sleep(pause);
            }
        }
        is_restarting.store(false, Ordering::Release);
        // The session may have been suspended again before this thread said that it ends.
        let is_needed = status.state() == SessionState::Suspended;
        if !is_needed || is_restarting.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}

/// Returns the pause after an attempt to find or start a server.
fn pause_after(found: &Option<Peer>, pause: Duration) -> Duration {
    match found {
        Some(_) => RETRY,
        None => (pause * 2).min(LONGEST_RETRY),
    }
}
