//! `ProcessWatch` for systems without process handles. It watches nothing, so sessions end with their timeouts.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::Semaphore;

use super::peer::PeerAddress;
use crate::engine::Follower;
use crate::runtime::process::{LocalProcess, ProcessIdentity};

pub(super) enum ProcessWatch {}

#[derive(Debug, thiserror::Error)]
pub(super) enum NotWatched {
    #[error("this system has no handles to processes")]
    NotHere,
    #[allow(dead_code, reason = "it is never known")]
    #[error("the process has exited")]
    Exited,
}

impl ProcessWatch {
    pub(super) fn new(
        _socket: impl AsFd,
        _address: PeerAddress,
        _stated: &ProcessIdentity,
        _permits: &Arc<Semaphore>,
    ) -> Result<Self, NotWatched> {
        Err(NotWatched::NotHere)
    }

    pub(super) fn recorded(_: LocalProcess, _: &Arc<Semaphore>) -> Result<Self, NotWatched> {
        Err(NotWatched::NotHere)
    }

    pub(super) fn process(&self) -> LocalProcess {
        match *self {}
    }

    pub(super) fn poll_exit(&self, _: &mut Context<'_>) -> Poll<()> {
        match *self {}
    }

    pub(super) async fn follow(self, _: Follower) {
        match self {}
    }
}
