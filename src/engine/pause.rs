//! The time after a stop that was not in order in which no session may be opened.

use super::Engine;
#[cfg(feature = "file")]
use crate::clock::Moment;
use crate::clock::Sleep;

impl Engine {
    /// The time until sessions are accepted, if it is not over.
    #[cfg(feature = "file")]
    pub(super) fn pause(&self) -> Option<Sleep> {
        let until = self.pause_until()?;
        (self.clock.now() < until).then(|| self.clock.sleep_until(until))
    }

    #[cfg(not(feature = "file"))]
    pub(super) fn pause(&self) -> Option<Sleep> {
        None
    }

    #[cfg(feature = "file")]
    fn pause_until(&self) -> Option<Moment> {
        let state = self.state.lock();
        state.durable.as_ref()?.timeouts.pause_until
    }
}
