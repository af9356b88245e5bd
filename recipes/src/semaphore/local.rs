//! Fast path that takes a free permit in an embedded store without a request.

use lockkeeper_store::{Condition, EnqueueMode};

use super::Semaphore;
use super::permit::Permit;
use super::znodes::Znodes;
use crate::error::Result;
use crate::guard::{Guard, GuardSet};
use crate::names::Kind;
use crate::options::LockOptions;
use crate::queue::{LocalAttempt, LocalEntry};

impl Semaphore {
    /// Takes a permit if the number of permits is unchanged, one is free, and no request waits. Otherwise returns
    /// `None`.
    ///
    /// There is no await between creating the lease's znode and its guard, so a drop cannot leave a lease without an
    /// owner (invariant 7).
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
            Condition::Children {
                znode: locks,
                limit: 0,
            },
        ];
        let (kind, mode) = (Kind::Lease, EnqueueMode::When(&conditions));
        let hold = |session, grant, data| {
            let guard = Guard::new(session, grant, kind, data, None);
            Permit::new(GuardSet::of_one(guard))
        };
        let data = |at| options.data(at);
        let attempt = LocalEntry::enter(&self.client, leases, kind, mode, data, false, hold)?;
        Ok(match attempt {
            LocalAttempt::Granted(permit) => Some(permit),
            // If the session has ended or its lease has lapsed, `enter` has returned the permit.
            LocalAttempt::Queued(_) | LocalAttempt::Unsupported => None,
        })
    }
}
