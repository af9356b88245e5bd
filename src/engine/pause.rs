//! The pause in which no session may be opened: the log may lack what was acknowledged to sessions of other processes,
//! so these are ended, and their clients may go on to believe in them for as long as their timeouts (invariant 6).

#[cfg(feature = "file")]
use std::sync::Arc;
#[cfg(feature = "file")]
use std::time::Duration;

use super::Engine;
#[cfg(feature = "file")]
use crate::clock::BootInstant;
use crate::clock::Sleep;
#[cfg(feature = "file")]
use crate::log::RemoteSessions;

/// Waits for clocks that are slower than the store's by one part in so many.
#[cfg(feature = "file")]
const DRIFT: u32 = 100;

/// Returns the end of the pause that is owed for sessions that do not live on, and says in the log why it is made.
#[cfg(feature = "file")]
pub(super) fn pause_until(now: BootInstant, remote: &RemoteSessions) -> Option<BootInstant> {
    if !remote.owe_pause() {
        return None;
    }
    let timeout = Duration::from_millis(remote.longest_timeout_ms);
    let pause = timeout + timeout / DRIFT;
    tracing::warn!(
        seconds = pause.as_secs_f64(),
        sessions = remote.ended,
        "a pause: the log may lack what was acknowledged last, so the sessions of other processes are ended, and none is \
         admitted until no client can believe in one of them"
    );
    Some(now.after(pause))
}

impl Engine {
    /// The time until sessions are accepted, if it is not over.
    #[cfg(feature = "file")]
    pub(super) fn pause(&self) -> Option<Sleep> {
        let mut state = self.state.lock();
        let durable = state.durable.as_mut()?;
        // Whoever is admitted finds it ended, however late its timer is.
        durable.end_pause(self.clock.now());
        let until = durable.timeouts.pause_until?;
        Some(self.clock.sleep_until(until))
    }

    #[cfg(not(feature = "file"))]
    pub(super) fn pause(&self) -> Option<Sleep> {
        None
    }

    /// Ends the pause when its time has come, though nobody asks to be admitted: a stop in order is clean then.
    #[cfg(feature = "file")]
    pub(super) fn time_pause(self: &Arc<Self>) {
        if let Some(pause) = self.pause() {
            let engine = Arc::downgrade(self);
            crate::spawn_detached(async move {
                pause.await;
                if let Some(engine) = engine.upgrade() {
                    drop(engine.pause());
                }
            });
        }
    }
}
