//! [`LocalConnector`]: starts the server whenever no server is running. Clients therefore keep their locks if the
//! server is killed or ends at a logout.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_store::{
    Backend, BoxFuture, Clock, ConnectOptions, Connector, Result, SessionState, SessionStatus,
    StateStream, connect_with, spawn_detached,
};

use super::{LocalStore, Peer};

/// Delay before a waiting client looks for the server again. Each failed start doubles the delay.
const RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(2);

const SHORTEST_RETRY: Duration = Duration::from_millis(10);

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
                // The server may be killed while the client connects, so keep looking for a server. Until the client
                // has connected, hold a separate connection, so that the server is not idle and does not exit.
                let (mut kept, mut pause) = (None::<Peer>, RETRY);
                loop {
                    // Open no second connection while the first is open, because connections to a hung server would
                    // pile up in its queue.
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
            // Return only the backend of this client's session. The caller creates its own session object over the
            // backend.
            let session = client.current_session();
            spawn_detached(keep(store, session.states(), session.status().clone()));
            Ok(session.backend().clone())
        })
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }
}

async fn keep(store: LocalStore, mut states: StateStream, status: Arc<SessionStatus>) {
    let is_restarting = Arc::new(AtomicBool::new(false));
    let mut state = Some(status.state());
    while let Some(now) = state {
        if now == SessionState::Suspended && !is_restarting.swap(true, Ordering::AcqRel) {
            let (store, status, restarting) =
                (store.clone(), status.clone(), is_restarting.clone());
            // Use a separate thread, because starting blocks and this future runs on the thread that delivers state
            // changes.
            let started = std::thread::Builder::new()
                .name("lockkeeper-start".into())
                .spawn(move || restart(&store, &status, &restarting));
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
            if kept.as_ref().is_some_and(|kept| !kept.ended_within(RETRY)) {
                continue;
            }
            std::thread::sleep(SHORTEST_RETRY);
            kept = match store.peer() {
                Ok(Some(peer)) => Some(peer),
                _ => store.start().ok(),
            };
            pause = pause_after(&kept, pause);
            // Try again after a failed start, because its cause, such as a full disk, may pass.
            if kept.is_none() {
                std::thread::sleep(pause);
            }
        }
        is_restarting.store(false, Ordering::Release);
        // Check the state again. If the session was suspended again before we cleared the flag, no other thread was
        // started, so continue.
        let is_needed = status.state() == SessionState::Suspended;
        if !is_needed || is_restarting.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}

fn pause_after(found: &Option<Peer>, pause: Duration) -> Duration {
    match found {
        Some(_) => RETRY,
        None => (pause * 2).min(LONGEST_RETRY),
    }
}
