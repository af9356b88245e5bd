//! A free permit of a store in this process, taken by reference: without a request, and without a path.

use lockkeeper_store::{Condition, Place};

use super::Semaphore;
use super::permit::Permit;
use super::znodes::Znodes;
use crate::error::Result;
use crate::guard::{Guard, GuardSet};
use crate::names::Kind;
use crate::options::LockOptions;
use crate::queue::{Attempt, LocalEntry};

impl Semaphore {
    /// Takes a permit under the conditions of [`PermitWaiter`](super::grant::PermitWaiter)'s first request: that the number
    /// of permits is the one that was last seen, that one of them is free, and that nobody waits. `None`, and nothing is
    /// held, where they do not hold, and where it takes a request.
    ///
    /// Nothing is awaited between the lease's znode and its guard, so no drop can come in between (invariant 7).
    #[inline(never)]
    pub(super) fn take_locally(&self, count: u32, options: &LockOptions) -> Result<Option<Permit>> {
        options.check()?;
        let Znodes {
            locks,
            leases,
            permits,
            ..
        } = &*self.znodes;
        let total = self.znodes.last_seen();
        let is_likely = count == 1
            && total.number > 0
            && self.znodes.is_checked()
            && !self.znodes.is_contended();
        if !is_likely || options.is_reported() {
            return Ok(None);
        }
        let conditions = [
            Condition::Data {
                znode: permits,
                data: &total.data[..],
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
        let (kind, place) = (Kind::Lease, Place::If(&conditions));
        let hold = |session, grant, data| {
            let guard = Guard::new(session, grant, kind, data, None);
            Permit::new(GuardSet::of_one(guard))
        };
        let data = |at| options.data(at);
        let attempt = LocalEntry::enter(&self.client, leases, kind, place, data, false, hold)?;
        Ok(match attempt {
            Attempt::Granted(permit) => Some(permit),
            // The permit goes back if the session has ended meanwhile, or its lease has lapsed.
            Attempt::Queued(_) | Attempt::Unsupported => None,
        })
    }
}
