//! [`Drain`]: a draining server opens no more sessions, and serves the existing ones until they end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Server;

#[derive(Debug, Default)]
pub(super) struct Drain {
    is_on: AtomicBool,
    begun: Notify,
}

impl Drain {
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    pub(super) async fn begun(&self) {
        loop {
            let begun = self.begun.notified();
            let mut begun = std::pin::pin!(begun);
            // Enable the notification before the check, so that it is not missed in between.
            begun.as_mut().enable();
            if self.is_on() {
                return;
            }
            begun.await;
        }
    }
}

const LOOK: Duration = Duration::from_millis(50);

impl Server {
    /// Starts a drain: the server opens no more sessions. Returns true unless the server was already draining.
    ///
    /// The server disconnects a client that asks for a new session, and the client tries the next server in its list.
    /// The server still serves existing sessions, even after a reconnect, so that clients that hold or wait for locks
    /// can finish. [`ServerMonitor::check_ready`](super::ServerMonitor::check_ready) returns
    /// [`Draining`](super::NotReady::Draining).
    pub fn drain(&self) -> bool {
        let drain = &self.shared.drain;
        let is_new = !drain.is_on.swap(true, Ordering::AcqRel);
        // Wake the handshakes that wait for a session, because they must be refused now.
        drain.begun.notify_waiters();
        is_new
    }

    /// Opens sessions again. Returns true if the server was draining.
    pub fn undrain(&self) -> bool {
        self.shared.drain.is_on.swap(false, Ordering::AcqRel)
    }

    /// Returns true between [`drain`](Self::drain) and [`undrain`](Self::undrain).
    pub fn is_draining(&self) -> bool {
        self.shared.drain.is_on()
    }

    /// Waits until the server is draining and its store has no sessions left. A shutdown then disturbs no client.
    ///
    /// Cancel safe.
    pub async fn drained(&self) {
        self.drained_to(0).await;
    }

    /// Waits until the server is draining and its store has at most this many sessions. The remaining sessions are
    /// usually in-process sessions, which the program ends itself.
    ///
    /// Cancel safe.
    pub async fn drained_to(&self, sessions: usize) {
        let store = &self.shared.store;
        loop {
            self.shared.drain.begun().await;
            if store.counts().sessions <= sessions {
                return;
            }
            // Poll instead of using an event, because sessions end in many ways and there is no hurry.
            store.clock().sleep(LOOK).await;
        }
    }
}
