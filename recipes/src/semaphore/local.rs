//! A free permit of a store in this process, taken by reference: without a request, and without a path.

use lockkeeper_store::{Condition, Place};

use super::Semaphore;
use super::permit::Permit;
use super::znodes::Znodes;
use crate::error::Result;
use crate::guard::{Guard, GuardSet};
use crate::metadata::EntryData;
use crate::names::{EntryId, Kind};
use crate::queue::{Grant, HeldEntry, LocalEntry, enter_locally};
use crate::reporter::is_always_reported;

impl Semaphore {
    /// Takes a permit under the conditions of [`PermitWaiter`](super::grant::PermitWaiter)'s first request: that the number
    /// of permits is the one that was last seen, that one of them is free, and that nobody waits. `None`, and nothing is
    /// held, where they do not hold, and where it takes a request.
    ///
    /// Nothing is awaited between the lease's znode and its guard, so no drop can come in between (invariant 7).
    #[inline(never)]
    pub(super) fn take_locally(&self) -> Result<Option<Permit>> {
        let Znodes {
            locks,
            leases,
            permits,
            ..
        } = &*self.znodes;
        let total = self.znodes.last_seen();
        let is_likely = total.number > 0 && self.znodes.is_checked() && !self.znodes.is_contended();
        if !is_likely || is_always_reported() {
            return Ok(None);
        }
        let Some(session) = self.client.live_session()? else {
            return Ok(None);
        };
        let queued_at_ms = session.clock().unix_ms();
        // The lease is read before the znode is created: a lapse meanwhile then shows.
        let (id, lease) = (EntryId::fresh(), session.lease());
        let conditions = [
            Condition::Data {
                znode: permits,
                data: &total.data,
            },
            Condition::Children {
                znode: leases,
                limit: total.number - 1,
            },
            // Nobody is passed.
            Condition::Children {
                znode: locks,
                limit: 0,
            },
        ];
        let place = Place::If(&conditions);
        let Some(entered) = enter_locally(&session, leases, Kind::Lease, place, id, queued_at_ms)
        else {
            return Ok(None);
        };
        let entry = HeldEntry {
            queue: leases.clone(),
            name: Kind::Lease.entry_name(id),
            key: entered.entry,
        };
        if !lease.may_grant() {
            // The session has ended meanwhile, or the lease lapsed: the permit goes back.
            drop(LocalEntry::new(session, entry, None, Kind::Lease));
            return Ok(None);
        }
        let grant = Grant::of_entry(entry, lease);
        let data = EntryData::Default { queued_at_ms };
        let guard = Guard::new(session, grant, Kind::Lease, data, None);
        Ok(Some(Permit::new(GuardSet::of_one(guard))))
    }
}
