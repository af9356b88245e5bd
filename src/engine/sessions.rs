//! [`SessionTable`]: the part of each session that the engine keeps outside the core. A session has the same slot here
//! and in the core.

use std::sync::{Arc, Weak};

use tokio::sync::oneshot;

use super::outbox::{Ending, Outbox};
use super::unread::Unread;
use crate::backend::SessionStatus;
use crate::model::types::{SessionId, Zxid};
use crate::runtime::process::LocalProcess;

#[derive(Default)]
pub(super) struct SessionTable {
    slots: Vec<Slot>,
    /// Outboxes of closed sessions whose clients have not read all messages yet. Their bytes count towards the limit
    /// until the outboxes are dropped.
    closing: Vec<Weak<Outbox>>,
    unread: Arc<Unread>,
}

#[derive(Default)]
struct Slot {
    peer: Peer,
    /// The transaction that the log must have before any further message to the session leaves.
    bound: Zxid,
    /// Dropped when the session ends or is reattached, which completes the session's
    /// [`Follower`](super::connection::Follower).
    follower: Option<oneshot::Sender<()>>,
    /// The process whose exit ends the session.
    process: Option<Box<(SessionId, LocalProcess)>>,
}

#[derive(Default)]
pub(super) enum Peer {
    /// The slot is free, or its session belongs to another process and has no connection.
    #[default]
    Absent,
    Local(Arc<SessionStatus>),
    Remote(Arc<Outbox>),
}

impl SessionTable {
    pub(super) fn insert(&mut self, slot: u32, peer: Peer) {
        *self.slot(slot) = Slot {
            peer,
            bound: Zxid(0),
            follower: None,
            process: None,
        };
    }

    /// Gives a session the outbox of a new connection, and returns the former outbox. The bound stays, because the new
    /// connection must not show an older state than the former connection did.
    pub(super) fn attach(&mut self, slot: u32, outbox: Arc<Outbox>) -> Option<Arc<Outbox>> {
        let slot = self.slot(slot);
        slot.follower = None;
        let former = std::mem::replace(&mut slot.peer, Peer::Remote(outbox));
        match former {
            Peer::Remote(former) => Some(former),
            Peer::Absent | Peer::Local(_) => None,
        }
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn follow(&mut self, slot: u32) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.slot(slot).follower = Some(sender);
        receiver
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn process(&mut self, slot: u32) -> &mut Option<Box<(SessionId, LocalProcess)>> {
        &mut self.slot(slot).process
    }

    #[cfg(any(test, feature = "server"))]
    pub(super) fn processes(&self) -> impl Iterator<Item = (SessionId, LocalProcess)> {
        self.slots
            .iter()
            .filter_map(|slot| Some(**slot.process.as_ref()?))
    }

    pub(super) fn detach(&mut self, slot: u32, outbox: &Arc<Outbox>) {
        // Keep a newer connection. The client may have reconnected before the store noticed that the old connection was
        // dead.
        if self
            .outbox(slot)
            .is_some_and(|current| Arc::ptr_eq(current, outbox))
        {
            self.slot(slot).peer = Peer::Absent;
        }
    }

    pub(super) fn end(&mut self, slot: u32) -> Peer {
        let Some(slot) = self.slots.get_mut(slot as usize) else {
            return Peer::Absent;
        };
        slot.follower = None;
        slot.process = None;
        std::mem::take(&mut slot.peer)
    }

    #[inline]
    pub(super) fn outbox(&self, slot: u32) -> Option<&Arc<Outbox>> {
        match &self.slots.get(slot as usize)?.peer {
            Peer::Remote(outbox) => Some(outbox),
            Peer::Absent | Peer::Local(_) => None,
        }
    }

    #[inline]
    pub(super) fn min_durable_zxid(&mut self, slot: u32) -> &mut Zxid {
        &mut self.slot(slot).bound
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.slots.iter().map(|slot| &slot.peer)
    }

    #[inline]
    fn slot(&mut self, slot: u32) -> &mut Slot {
        let index = slot as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Slot::default);
        }
        &mut self.slots[index]
    }

    pub(super) fn unread(&self) -> &Arc<Unread> {
        &self.unread
    }

    /// Remembers the outbox of a closed session until its client has read the messages.
    pub(super) fn close(&mut self, outbox: &Arc<Outbox>) {
        if outbox.account().is_some() {
            // Remove dropped outboxes only when the list would have to grow, so that a close costs O(1) on average.
            if self.closing.len() == self.closing.capacity() {
                self.closing.retain(|outbox| outbox.strong_count() > 0);
            }
            self.closing.push(Arc::downgrade(outbox));
        }
    }

    /// Closes the connections with the oldest unread bytes, until the sum of all unread bytes is within the limit.
    /// Returns the outboxes that the caller must wake.
    #[cold]
    pub(super) fn cut_slow_readers(&self) -> Vec<Arc<Outbox>> {
        let mut cut = Vec::new();
        let closing: Vec<_> = self.closing.iter().filter_map(Weak::upgrade).collect();
        let open = self.slots.iter().filter_map(|slot| match &slot.peer {
            Peer::Remote(outbox) => Some(outbox),
            Peer::Absent | Peer::Local(_) => None,
        });
        let mut unread: Vec<_> = open
            .chain(&closing)
            .filter_map(|outbox| outbox.account().map(|account| (account, outbox)))
            .collect();
        let own = self.unread.own_bytes(unread.len());
        // Connections that hold at most half of their equal share of the limit are closed last, so that slow clients do
        // not cost a reading client its connection.
        unread.sort_unstable_by_key(|((bytes, since), _)| (*bytes <= own, *since));
        for (_, outbox) in unread {
            if !self.unread.is_over() {
                break;
            }
            if outbox.end(Ending::Overflow) {
                cut.push(outbox.clone());
            }
        }
        cut
    }
}
