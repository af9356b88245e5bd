//! [`Effects`]: what a call to the core did beside its reply.

use super::lifecycle::End;
use super::watches::{Fired, WatchKey};
use crate::types::SessionId;

/// What a call did beside its answer, in order. The caller empties it.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Events for watchers; they precede the answer.
    pub(crate) fired: Vec<Fired>,
    /// Sessions that are over.
    pub(crate) ended: Vec<Ended>,
    /// Their watches.
    pub(crate) dropped: Vec<(WatchKey, SessionId, End)>,
    /// The slots of sessions past their deadlines, whose connections are to read what is there.
    pub(crate) asked: Vec<u32>,
    /// The slots of sessions of other processes for which there were more events than may wait for their clients:
    /// they are not told all of them.
    pub(crate) overflowed: Vec<u32>,
    /// The bytes of the events for sessions of other processes.
    pub(super) event_bytes: usize,
    /// Grows each time that the events were taken out.
    pub(super) round: u64,
}

impl Effects {
    pub(crate) fn is_empty(&self) -> bool {
        let has_told = !self.fired.is_empty() || !self.overflowed.is_empty();
        let has_ended = !self.ended.is_empty() || !self.dropped.is_empty();
        !has_told && !has_ended && self.asked.is_empty()
    }
}

/// A session that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) id: SessionId,
    pub(crate) slot: u32,
    pub(crate) end: End,
}
