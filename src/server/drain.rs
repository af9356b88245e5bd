//! [`Drain`]: a server that opens no more sessions, and serves those that it has until they end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Server;

/// State of a drain, which can be undone.
#[derive(Debug, Default)]
pub(super) struct Drain {
    is_on: AtomicBool,
    begun: Notify,
}

impl Drain {
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Waits until a drain begins.
    ///
    /// Cancel safe.
    pub(super) async fn begun(&self) {
        loop {
            let begun = self.begun.notified();
            let mut begun = std::pin::pin!(begun);
            // Enabled before the check, so that no notification is missed in between.
            begun.as_mut().enable();
            if self.is_on() {
                return;
            }
            begun.await;
        }
    }
}

/// Pause between two looks at the number of sessions of a drained server.
const LOOK: Duration = Duration::from_millis(50);

impl Server {
    /// Opens no more sessions from now on: a client that asks for one is disconnected, and goes to the next server of
    /// its list. Sessions that exist are served on, and taken up again after a reconnection, so that holders and waiters
    /// finish. [`ServerMonitor::check_ready`](super::ServerMonitor::check_ready) says
    /// [`Draining`](super::NotReady::Draining) meanwhile. Returns true if that is new.
    pub fn drain(&self) -> bool {
        let drain = &self.shared.drain;
        let is_new = !drain.is_on.swap(true, Ordering::AcqRel);
        // Handshakes that wait for a store which admits no sessions yet.
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

    /// Waits until the server drains and its store has no session any more: it can be shut down, and no client loses
    /// anything.
    ///
    /// Cancel safe.
    pub async fn drained(&self) {
        self.drained_to(0).await;
    }

    /// Waits until the server drains and its store has no more than this number of sessions: those of the server's own
    /// process, which end when it wants them to.
    ///
    /// Cancel safe.
    pub async fn drained_to(&self, sessions: usize) {
        let store = &self.shared.store;
        loop {
            self.shared.drain.begun().await;
            if store.counts().sessions <= sessions {
                return;
            }
            // A look at a number, and no event: sessions end by many ways, and this is no hurry.
            store.clock().sleep(LOOK).await;
        }
    }
}
