//! What the log keeps for sessions of other processes.

use std::sync::Arc;
use std::time::Duration;

use super::durable::DurabilityBarrier;
use super::{Engine, State};
use crate::core::SessionRef;
use crate::error::{Error, Result};
use crate::future::BoxFuture;
use crate::log::Passage;
use crate::protocol::Request;
use crate::types::Zxid;

impl Engine {
    /// Has everything logged from now on, and the longest timeout that other processes may be granted.
    pub(super) fn keep_all(&self) -> Result<()> {
        let now = self.now(true, true);
        let mut state = self.state.lock();
        if state.durable.is_some() {
            state.check_session()?;
            let before = state.core.last_kept();
            state.core.keep_all(now);
            state.keep(before);
            let allowed = state.core.longest_timeout().as_millis() as u64;
            if let Some(durable) = &mut state.durable {
                durable.allow(allowed);
            }
        }
        Ok(())
    }
}

impl State {
    /// Whether the log takes another session.
    pub(super) fn check_session(&self) -> Result<()> {
        self.check_log()?;
        let durable = self.durable.as_ref();
        durable.map_or(Ok(()), |durable| durable.check_session())
    }

    /// Waits while the log is busy and has no room for another session; `None` if it is not.
    pub(super) fn session_room(&self) -> Option<BoxFuture<()>> {
        let is_busy = matches!(self.check_session(), Err(Error::LimitReached { .. }));
        let durable = self.durable.as_ref().filter(|_| is_busy)?;
        Some(durable.until_session_room())
    }

    /// Waits while the log is busy and has no room for a request; `None` if it is not.
    pub(super) fn request_room(
        &self,
        session: SessionRef,
        request: &Request,
    ) -> Option<BoxFuture<()>> {
        let durable = self.durable.as_ref()?;
        durable.until_room(request, || {
            let needs_log = self.core.needs_log(session, request);
            needs_log.then(|| self.core.txn_bytes(session, request))
        })
    }

    /// Hands a new session to the log; what its client is to wait for.
    pub(super) fn seat_remote(
        &mut self,
        slot: u32,
        timeout: Duration,
        before: Zxid,
    ) -> Option<Passage> {
        let durable = self.durable.as_mut()?;
        durable.seat(slot);
        // Written before the session itself: whoever finds that finds this, too.
        durable.note_timeout(timeout.as_millis() as u64, self.core.last_zxid());
        self.keep(before);
        let durable = self.durable.as_mut()?;
        let shown = durable.shown();
        Some(durable.hold_session(slot, shown))
    }

    /// Prepares a session that the log does not hear of yet: it waits for nothing.
    pub(super) fn seat_unproven(&mut self, slot: u32) {
        if let Some(durable) = &mut self.durable {
            durable.seat(slot);
        }
    }

    /// Hands a session to the log that was proved just now. Returns what the log must have, in any class of durability,
    /// before its client is told anything more.
    pub(super) fn keep_proved(&mut self, slot: u32, timeout: Duration, before: Zxid) -> Zxid {
        drop(self.seat_remote(slot, timeout, before));
        let durable = self.durable.as_ref();
        durable.map_or(Zxid(0), |durable| durable.timeouts.recorded_at)
    }

    pub(super) fn gate(&self) -> Option<Arc<DurabilityBarrier>> {
        self.durable.as_ref().map(|durable| durable.gate())
    }
}
