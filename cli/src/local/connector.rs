//! [`LocalConnector`]: a connector that starts the server when it is missing, for the first session and for as long as a
//! session lives. So a server that was killed, or has ended at a logout, costs no client its locks.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{
    Backend, BoxFuture, Clock, ConnectOptions, Connector, Result, SessionState, SessionStatus,
    StateStream, connect_with, spawn_detached,
};

use super::LocalStore;

/// Pause before the server is looked for again, while a client waits for it.
const RETRY: Duration = Duration::from_millis(200);

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
                let mut _kept = None;
                loop {
                    _kept = store.started().await.ok();
                    clock.sleep(RETRY).await;
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
    let mut state = Some(status.state());
    while let Some(now) = state {
        if now == SessionState::Suspended {
            let (store, status) = (store.clone(), status.clone());
            // A thread of its own: starting blocks, and this future runs on the thread that brings the news. Where the
            // system refuses it, another client may start the server.
            let _ = std::thread::Builder::new()
                .name("lockkeeper-start".into())
                .spawn(move || restart(&store, &status));
        }
        state = states.next().await;
    }
}

fn restart(store: &LocalStore, status: &SessionStatus) {
    let mut _kept = None;
    while status.state() == SessionState::Suspended {
        let peer = match store.peer() {
            Ok(Some(peer)) => Some(peer),
            _ => store.start().ok(),
        };
        // While it is kept, the server is not idle.
        _kept = match peer {
            Some(peer) => {
                peer.ended_within(RETRY);
                // A server that takes no connection ends this one at once.
                std::thread::sleep(SHORTEST_RETRY);
                Some(peer)
            }
            // A reason not to start may pass, as a full disk does; the session says when it is too late.
            None => {
                std::thread::sleep(RETRY);
                None
            }
        };
    }
}
