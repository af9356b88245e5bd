//! [`GuardParts`]: the parts of a guard, used to build it and to convert it.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use lockkeeper_store::Session;
use parking_lot::Mutex;

use super::monitor::{Monitor, reason_of};
use super::self_node::SelfNode;
use super::{Guard, GuardState};
use crate::error::LostReason;
use crate::metadata::EntryData;
use crate::names::Kind;
use crate::queue::Grant;
use crate::reporter::Reporter;

impl Guard {
    #[inline(always)] // so that the parts are written directly into the guard
    pub(super) fn of(parts: GuardParts) -> Self {
        let GuardParts {
            session,
            held,
            kind,
            data,
            reporter,
            own,
        } = parts;
        // The guard of a leadership starts its own monitor (see `monitored`). A session without a timeout belongs to an
        // embedded store. There `is_held` reads the store directly, so a guard needs a monitor only for its events.
        let has_sink = reporter.sink().is_some();
        let watched = kind != Kind::Candidate && (session.timeout().is_some() || has_sink);
        let guard = Self(Box::new(GuardState {
            session,
            held,
            kind,
            data: Mutex::new(data),
            own: own.map_or_else(OnceLock::new, OnceLock::from),
            lost: OnceLock::new(),
            monitor: None,
            reporter,
            released: AtomicBool::new(false),
        }));
        if watched { guard.watched() } else { guard }
    }

    fn watched(mut self) -> Self {
        self.0.monitor = Some(Monitor::of(&self));
        self
    }

    /// Takes the guard apart so that its znode can be replaced. Ends the monitor, which would mistake the replacement
    /// for a removal. If the guard is lost, returns an error and releases the lock.
    pub(crate) fn take_apart(mut self) -> Result<GuardParts, LostReason> {
        if let Some(reason) = self.reason() {
            return Err(reason);
        }
        *self.0.released.get_mut() = true;
        self.0.monitor = None;
        Ok(GuardParts {
            session: self.0.session.clone(),
            held: self.0.held.clone(),
            kind: self.0.kind,
            data: self.0.data.lock().clone(),
            reporter: self.0.reporter.clone(),
            own: self.0.own.take(),
        })
    }
}

/// Contents of a guard without its monitor. Dropping the parts does not release the lock.
pub(crate) struct GuardParts {
    pub(crate) session: Session,
    pub(crate) held: Grant,
    pub(crate) kind: Kind,
    pub(crate) data: EntryData,
    pub(crate) reporter: Reporter,
    pub(super) own: Option<Box<SelfNode>>,
}

impl GuardParts {
    /// Fails if the lease has lapsed since the guard was taken apart. Does not check whether the znode was removed.
    pub(crate) fn into_guard(mut self) -> Result<Guard, LostReason> {
        let lost = reason_of(&self.held.lease);
        self.own = self.own.map(|own| Box::new(own.renewed()));
        // Build the guard even after a loss, because its drop releases the znode.
        let guard = Guard::of(self);
        match lost {
            None => Ok(guard),
            Some(reason) => Err(reason),
        }
    }
}
