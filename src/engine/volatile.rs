//! Stand-in for `durable.rs` in builds without the feature `file`. No value of [`Durable`] exists there, so that the
//! compiler leaves out all code that would use one.

use std::sync::Arc;

use crate::clock::BootInstant;
use crate::core::{Core, SessionRef};
use crate::error::Result;
use crate::future::BoxFuture;
#[cfg(any(test, feature = "server"))]
use crate::process::LocalProcess;
use crate::protocol::Request;
#[cfg(any(test, feature = "server"))]
use crate::types::SessionId;
use crate::types::Zxid;
use crate::watch::{News, WatchCell};

pub(super) enum Durable {}

pub(super) enum DurabilityBarrier {}

pub(super) type Passage = std::future::Pending<Result<()>>;

/// Files of a store in a folder; no store has any here.
pub(super) enum Files {}

/// The processes of sessions on disk; no store has any here.
#[cfg(any(test, feature = "server"))]
pub(super) enum ProcessFile {}

#[cfg(any(test, feature = "server"))]
pub(super) type Known = Vec<(SessionId, LocalProcess)>;

impl Files {
    pub(super) fn close(self) {
        match self {}
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn processes(&self) -> &'static mut ProcessFile {
        match *self {}
    }
}

#[cfg(any(test, feature = "server"))]
impl ProcessFile {
    pub(super) fn read(&mut self) -> Known {
        match *self {}
    }

    pub(super) fn record(
        &mut self,
        _: SessionId,
        _: Option<LocalProcess>,
        _: impl FnOnce() -> Known,
    ) -> Result<()> {
        match *self {}
    }
}

impl Durable {
    pub(super) fn check(&self) -> Result<()> {
        match *self {}
    }

    pub(super) fn has_reserve(&self) -> bool {
        match *self {}
    }

    pub(super) fn admit(&self, _: &Core, _: SessionRef, _: &Request) -> Result<Zxid> {
        match *self {}
    }

    pub(super) fn keep(&mut self, _: &mut Core, _: Zxid) {
        match *self {}
    }

    pub(super) fn bind(&self, _: &mut Zxid, _: Zxid) -> Zxid {
        match *self {}
    }

    pub(super) fn passage(&self, _: Zxid) -> Option<Passage> {
        match *self {}
    }

    pub(super) fn deliver(&self, _: &mut Zxid, _: &Arc<WatchCell>, _: News) -> bool {
        match *self {}
    }

    pub(super) fn pause(&mut self, _: BootInstant) -> Option<BootInstant> {
        match *self {}
    }

    pub(super) fn check_session(&self) -> Result<()> {
        match *self {}
    }

    pub(super) fn session_room(&self) -> Option<BoxFuture<()>> {
        match *self {}
    }

    pub(super) fn request_room(
        &self,
        _: &Core,
        _: SessionRef,
        _: &Request,
    ) -> Option<BoxFuture<()>> {
        match *self {}
    }

    pub(super) fn note_timeout(&mut self, _: u64, _: Zxid) {
        match *self {}
    }

    pub(super) fn hold_session(&self, _: &mut Zxid) -> Passage {
        match *self {}
    }

    pub(super) fn timeout_recorded_at(&self) -> Zxid {
        match *self {}
    }

    pub(super) fn allow(&mut self, _: u64) {
        match *self {}
    }

    pub(super) fn barrier(&self) -> Arc<DurabilityBarrier> {
        match *self {}
    }
}

impl DurabilityBarrier {
    pub(super) fn is_open_to(&self, _: Zxid) -> bool {
        match *self {}
    }

    pub(super) fn has_written(&self, _: Zxid) -> bool {
        match *self {}
    }

    pub(super) fn passage(self: &Arc<Self>, _: Zxid) -> Passage {
        match **self {}
    }

    pub(super) fn written(self: &Arc<Self>, _: Zxid) -> Passage {
        match **self {}
    }
}
