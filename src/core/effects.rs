//! [`Effects`]: what a call to the core causes in addition to its reply.

use super::lifecycle::End;
use super::tree::Waiter;
use super::watches::{Fired, WatchKey};
use crate::model::types::SessionId;

/// Effects of calls to the core. Each list is in order of occurrence. The caller drains the lists.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Watch events. The caller sends them before the reply (invariant 3).
    pub(crate) fired: Vec<Fired>,
    /// Waiters whose watches have fired, each with the index of its event in `fired`. `resolve_waiters` completes these
    /// events at the end of the transaction.
    pub(super) waiters: Vec<(usize, Waiter)>,
    pub(crate) ended: Vec<Ended>,
    pub(crate) dropped: Vec<(WatchKey, SessionId, End)>,
    /// Slots of overdue sessions. The caller must check each session's connection for unread requests.
    pub(crate) asked: Vec<u32>,
    /// Slots of remote sessions with too many events. Some events were dropped, so each session's connection must be
    /// closed before anything else is sent.
    pub(crate) overflowed: Vec<u32>,
    pub(super) event_bytes: usize,
    pub(super) round: u64,
}

impl Effects {
    pub(crate) fn is_empty(&self) -> bool {
        let has_told = !self.fired.is_empty() || !self.overflowed.is_empty();
        let has_ended = !self.ended.is_empty() || !self.dropped.is_empty();
        !has_told && !has_ended && self.asked.is_empty()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) id: SessionId,
    pub(crate) slot: u32,
    pub(crate) end: End,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::path::ZnodePath;
    use crate::model::watch::{EventKind, WatchUpdate, WatchedEvent};

    #[test]
    fn effects_are_empty_without_any_of_their_kinds() {
        let (watch, id, end, slot) = (WatchKey::from_u64(1), SessionId(1), End::Closed, 1);
        let event = WatchedEvent {
            kind: EventKind::NodeDeleted,
            path: ZnodePath::root(),
            zxid: None,
            predecessor_gone: None,
        };
        let fired = || Fired {
            watch,
            slot,
            news: WatchUpdate::Event(event.clone()),
            is_last: true,
        };
        assert!(Effects::default().is_empty());
        for kind in 0..5 {
            let mut effects = Effects::default();
            match kind {
                0 => effects.fired.push(fired()),
                1 => effects.ended.push(Ended { id, slot, end }),
                2 => effects.dropped.push((watch, id, end)),
                3 => effects.asked.push(slot),
                _ => effects.overflowed.push(slot),
            }
            assert!(!effects.is_empty(), "{effects:?}");
        }
    }
}
