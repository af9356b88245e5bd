//! Stands for `stalls.rs` in builds without the feature `server`: no session depends on what the store has read.

use super::state::State;
use crate::clock::Clock;

pub(super) enum StallMeter {}

#[derive(Debug, Default)]
pub(super) struct LivenessQuestion(());

impl LivenessQuestion {
    pub(super) fn ask(&self) {}

    pub(super) fn is_asked(&self) -> bool {
        false
    }
}

impl State {
    pub(super) fn count_stall(&mut self, _: &Clock) {
        debug_assert!(self.stalls.is_none());
    }
}
