//! [`Leases`]: the znodes of the permits that one request asks for.

use lockkeeper_store::{Error, LARGEST_REQUEST_BYTES, Op, OpReply, Session, ZnodePath, Zxid};

use crate::error::Result;
use crate::names::{EntryId, Kind};
use crate::queue::{made_at, remove_all};

/// The znodes of the permits that one request asks for, under names that are known before they are
/// made. Dropping it leaves none of them, even while the grant that makes them is under way.
pub(super) struct Leases<'a> {
    session: &'a Session,
    paths: Vec<ZnodePath>,
    /// Whether they may be at the store.
    may_stand: bool,
}

/// What the create of a lease takes at the least beside its parent's path, without its data.
const LEASE_BYTES: usize = 64 + "/_c_00000000-0000-4000-8000-000000000000-lease-0000000000".len();

/// Refuses so many that no request can make them, before the names of all are written out. Those that
/// this lets pass may still be too large with their data, which the sending tells.
pub(super) fn check_count(parent: &ZnodePath, count: u32) -> Result<(), Error> {
    let each = LEASE_BYTES + parent.as_str().len();
    let actual = each.saturating_mul(usize::try_from(count).unwrap_or(usize::MAX));
    if actual <= LARGEST_REQUEST_BYTES {
        return Ok(());
    }
    Err(Error::TooLarge {
        what: "a request",
        actual,
        limit: LARGEST_REQUEST_BYTES,
    })
}

impl<'a> Leases<'a> {
    pub(super) fn new(session: &'a Session, parent: &ZnodePath, count: u32) -> Result<Self, Error> {
        let name = Kind::Lease.name(EntryId::fresh());
        let paths = (0..count).map(|index| parent.join(&format!("{name}{index:010}")));
        Ok(Self {
            session,
            paths: paths.collect::<Result<_, _>>()?,
            may_stand: false,
        })
    }

    pub(super) fn paths(&self) -> &[ZnodePath] {
        &self.paths
    }

    /// Sends the multi that makes them.
    pub(super) async fn ask(&mut self, ops: Vec<Op>) -> Result<Vec<OpReply>, Error> {
        // Known before it is awaited, so that a drop sends the deletes behind it.
        self.may_stand = true;
        let answer = match self.session.multi(ops).now_or_never() {
            Ok(answer) => answer,
            Err(call) => Box::pin(call).await,
        };
        self.may_stand = match &answer {
            Ok(_) => true,
            Err(error) => error.is_ambiguous(),
        };
        answer
    }

    /// Looks for them after the answer was lost. The absence of the first tells that there are none:
    /// they are made together.
    pub(super) async fn find(&mut self) -> Result<Option<Zxid>, Error> {
        made_at(self.session, &self.paths[0]).await
    }

    /// Notes that they have not been made, nor will be.
    pub(super) fn refused(&mut self) {
        self.may_stand = false;
    }

    /// Hands them over to guards, which delete them from now on.
    pub(super) fn into_paths(mut self) -> Vec<ZnodePath> {
        self.may_stand = false;
        std::mem::take(&mut self.paths)
    }
}

impl Drop for Leases<'_> {
    fn drop(&mut self) {
        if self.may_stand {
            // The names are unique, and what was sent before is carried out before: whatever of
            // them there is or will be, it is deleted.
            remove_all(self.session, &self.paths);
        }
    }
}
