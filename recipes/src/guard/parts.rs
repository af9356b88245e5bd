//! [`GuardParts`] of a guard: it is put together of them, and taken apart for a conversion.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use lockkeeper_store::Session;
use parking_lot::Mutex;

use super::Guard;
use super::monitor::{Monitor, reason_of};
use super::self_node::SelfNode;
use crate::error::LostReason;
use crate::events::EventSink;
use crate::metadata::EntryData;
use crate::names::Kind;
use crate::queue::Grant;

impl Guard {
    /// Puts a guard together: the only constructor.
    #[inline]
    pub(super) fn of(parts: GuardParts) -> Self {
        let GuardParts {
            session,
            held,
            kind,
            data,
            events,
            own,
        } = parts;
        // A leader's is started with the leadership, see `monitored`.
        let watched = kind != Kind::Candidate && (session.timeout().is_some() || events.is_some());
        let guard = Self {
            session,
            held,
            kind,
            data: Mutex::new(data),
            own: own.map_or_else(OnceLock::new, OnceLock::from),
            lost: OnceLock::new(),
            monitor: None,
            events,
            released: AtomicBool::new(false),
        };
        if watched { guard.watched() } else { guard }
    }

    /// Apart, so that a guard which nobody looks after is made where it is wanted, and not moved.
    #[inline(never)]
    fn watched(mut self) -> Self {
        self.monitor = Some(Monitor::start(&self, Arc::default(), None));
        self
    }

    /// Takes the guard apart, so that its node can be replaced by another. Its monitor ends here,
    /// or it would take that for a removal by somebody else.
    ///
    /// A guard that is lost is not taken apart, but released.
    pub(crate) fn take_apart(mut self) -> Result<GuardParts, LostReason> {
        if let Some(reason) = self.reason() {
            return Err(reason);
        }
        *self.released.get_mut() = true;
        self.monitor = None;
        Ok(GuardParts {
            session: self.session.clone(),
            held: self.held.clone(),
            kind: self.kind,
            data: self.data.lock().clone(),
            events: self.events.take(),
            own: self.own.take(),
        })
    }
}

/// The parts of a guard, while nothing looks after them.
pub(crate) struct GuardParts {
    pub(crate) session: Session,
    pub(crate) held: Grant,
    pub(crate) kind: Kind,
    pub(crate) data: EntryData,
    pub(crate) events: Option<EventSink>,
    pub(super) own: Option<Box<SelfNode>>,
}

impl GuardParts {
    /// A guard again; a reason, if what it held was lost meanwhile, removals apart.
    pub(crate) fn into_guard(mut self) -> Result<Guard, LostReason> {
        let lost = reason_of(&self.held.lease);
        self.own = self.own.map(|own| Box::new(own.renewed()));
        let guard = Guard::of(self);
        match lost {
            None => Ok(guard),
            Some(reason) => Err(reason),
        }
    }
}
