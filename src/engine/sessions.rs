//! [`SessionTable`]: the shell's part of each session, by the session's slot in the core: the receiver of its messages,
//! and how far these have to wait for the log.

use std::sync::{Arc, Weak};

use tokio::sync::oneshot;

use super::outbox::{Ending, Outbox};
use super::unread::Unread;
use crate::backend::SessionStatus;
use crate::model::types::{SessionId, Zxid};
use crate::runtime::process::LocalProcess;

/// Receivers of the messages to sessions, each with the bound up to which it has to wait for the log.
#[derive(Default)]
pub(super) struct SessionTable {
    slots: Vec<Slot>,
    /// Outboxes of closed sessions, unread by their clients: their bytes count until they are gone.
    closing: Vec<Weak<Outbox>>,
    /// The bytes in all outboxes together.
    unread: Arc<Unread>,
}

#[derive(Default)]
struct Slot {
    peer: Peer,
    /// No message leaves to the session before the log has this transaction.
    bound: Zxid,
    /// Dropped when the session ends or is taken up again: completes its [`Follower`](super::connection::Follower).
    follower: Option<oneshot::Sender<()>>,
    /// The session's id, and the process that it ends with.
    process: Option<Box<(SessionId, LocalProcess)>>,
}

/// Receiver of the messages to a session.
#[derive(Default)]
pub(super) enum Peer {
    /// None: the slot is free, or its session is one of another process without a connection.
    #[default]
    Absent,
    /// A session of this process.
    Local(Arc<SessionStatus>),
    /// The connection of a session of another process.
    Remote(Arc<Outbox>),
}

impl SessionTable {
    /// Gives a new session its slot. The bound of the slot's former session is dropped with it.
    pub(super) fn seat(&mut self, slot: u32, peer: Peer) {
        *self.slot(slot) = Slot {
            peer,
            bound: Zxid(0),
            follower: None,
            process: None,
        };
    }

    /// Gives a session of another process a connection, and returns its former one. The bound stays: messages over this
    /// connection must not show a state older than those over the former.
    pub(super) fn attach(&mut self, slot: u32, outbox: Arc<Outbox>) -> Option<Arc<Outbox>> {
        let slot = self.slot(slot);
        slot.follower = None;
        let former = std::mem::replace(&mut slot.peer, Peer::Remote(outbox));
        match former {
            Peer::Remote(former) => Some(former),
            Peer::Absent | Peer::Local(_) => None,
        }
    }

    /// Returns a receiver that completes when the session ends or is taken up again.
    #[cfg(any(test, feature = "server"))]
    pub(super) fn follow(&mut self, slot: u32) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.slot(slot).follower = Some(sender);
        receiver
    }

    /// Returns a session's id, and the process that it ends with, if that is known.
    #[cfg(any(test, feature = "server"))]
    pub(super) fn process(&mut self, slot: u32) -> &mut Option<Box<(SessionId, LocalProcess)>> {
        &mut self.slot(slot).process
    }

    /// Returns all sessions of which a process is known.
    #[cfg(any(test, feature = "server"))]
    pub(super) fn processes(&self) -> impl Iterator<Item = (SessionId, LocalProcess)> {
        self.slots
            .iter()
            .filter_map(|slot| Some(**slot.process.as_ref()?))
    }

    /// Takes the connection away from a session, unless it has another one by now.
    pub(super) fn detach(&mut self, slot: u32, outbox: &Arc<Outbox>) {
        // A client may have come back over another connection before this one was found to be dead.
        if self
            .outbox(slot)
            .is_some_and(|current| Arc::ptr_eq(current, outbox))
        {
            self.slot(slot).peer = Peer::Absent;
        }
    }

    /// Empties the slot of a session that has ended.
    pub(super) fn end(&mut self, slot: u32) -> Peer {
        let Some(slot) = self.slots.get_mut(slot as usize) else {
            return Peer::Absent;
        };
        slot.follower = None;
        slot.process = None;
        std::mem::take(&mut slot.peer)
    }

    /// Returns the outbox of a session of another process, while it has a connection.
    #[inline]
    pub(super) fn outbox(&self, slot: u32) -> Option<&Arc<Outbox>> {
        match &self.slots.get(slot as usize)?.peer {
            Peer::Remote(outbox) => Some(outbox),
            Peer::Absent | Peer::Local(_) => None,
        }
    }

    /// Returns the session's bound: the transaction that the log must have before its next message leaves.
    #[inline]
    pub(super) fn bound(&mut self, slot: u32) -> &mut Zxid {
        &mut self.slot(slot).bound
    }

    /// Returns all receivers.
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

    /// Returns the count of the bytes that wait for all clients of other processes.
    pub(super) fn unread(&self) -> &Arc<Unread> {
        &self.unread
    }

    /// Remembers the outbox of a closed session until its client has read it.
    pub(super) fn close(&mut self, outbox: &Arc<Outbox>) {
        if outbox.account().is_some() {
            // Only before it would grow, so that a close costs O(1) on average.
            if self.closing.len() == self.closing.capacity() {
                self.closing.retain(|outbox| outbox.strong_count() > 0);
            }
            self.closing.push(Arc::downgrade(outbox));
        }
    }

    /// Closes the connections that have left their bytes unread for longest, until the rest is within the limit. One
    /// that holds less than half of an equal part has its turn last: a client that reads is not pushed out by others.
    /// Returns the outboxes to be woken.
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
        // Connections with more than half of an equal part first, the oldest unread byte first among them.
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
