//! What [`durable`](super::durable) does, where no store keeps a log.

use std::sync::Arc;
use std::time::Duration;

use super::State;
use crate::core::SessionRef;
use crate::error::Result;
use crate::future::BoxFuture;
use crate::protocol::Request;
use crate::types::Zxid;

/// There is none.
pub(super) enum DurabilityBarrier {}

impl DurabilityBarrier {
    pub(super) fn is_open_to(&self, _: Zxid) -> bool {
        match *self {}
    }

    pub(super) fn has_written(&self, _: Zxid) -> bool {
        match *self {}
    }

    pub(super) fn written(self: &Arc<Self>, _: Zxid) -> BoxFuture<Result<()>> {
        match **self {}
    }

    pub(super) fn passage(self: &Arc<Self>, _: Zxid) -> BoxFuture<Result<()>> {
        match **self {}
    }
}

impl super::Engine {
    pub(super) fn keep_all(&self) -> Result<()> {
        Ok(())
    }
}

impl State {
    pub(super) fn admit(&self, _: SessionRef, _: &Request) -> Result<Zxid> {
        Ok(Zxid(0))
    }

    pub(super) fn bind(&mut self, _: u32, _: Zxid) -> Zxid {
        Zxid(0)
    }

    pub(super) fn keep(&mut self, _: Zxid) {}

    pub(super) fn may_tick(&self) -> bool {
        true
    }

    pub(super) fn check_log(&self) -> Result<()> {
        Ok(())
    }

    pub(super) fn check_session(&self) -> Result<()> {
        Ok(())
    }

    pub(super) fn session_room(&self) -> Option<BoxFuture<()>> {
        None
    }

    pub(super) fn request_room(&self, _: SessionRef, _: &Request) -> Option<BoxFuture<()>> {
        None
    }

    pub(super) fn seat_remote(
        &mut self,
        _: u32,
        _: Duration,
        _: Zxid,
    ) -> Option<BoxFuture<Result<()>>> {
        None
    }

    pub(super) fn seat_unproven(&mut self, _: u32) {}

    pub(super) fn keep_proved(&mut self, _: u32, _: Duration, _: Zxid) -> Zxid {
        Zxid(0)
    }

    pub(super) fn gate(&self) -> Option<Arc<DurabilityBarrier>> {
        None
    }
}
