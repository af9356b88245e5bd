//! How much room the znodes take, and whether there is more.

use super::tree::Node;
use super::{Core, Limits, SessionRef};
use crate::acl::Acl;
use crate::error::{Error, Result};
use crate::path::ZnodePath;
use crate::types::AclEntry;

/// What a znode counts for beyond its path, its data and its list: the znode itself, its places in
/// the tables, what the allocator adds.
pub(crate) const ZNODE_BYTES: usize = 384;

/// What an entry of an access control list counts for beyond its texts.
pub(crate) const ACL_ENTRY_BYTES: usize = 80;

/// What a znode counts for.
#[inline]
pub(super) fn bytes_of(path: &ZnodePath, data_bytes: usize, acl: &Acl) -> usize {
    ZNODE_BYTES + path.as_str().len() + data_bytes + bytes_of_acl(acl)
}

/// What a list counts for.
#[inline]
pub(crate) fn bytes_of_acl(acl: &Acl) -> usize {
    acl.entries().map_or(0, bytes_of_list)
}

fn bytes_of_list(entries: &[AclEntry]) -> usize {
    let texts = entries
        .iter()
        .map(|entry| ACL_ENTRY_BYTES + entry.scheme.len() + entry.id.len());
    texts.sum()
}

impl Node {
    /// What it counts for.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        bytes_of(&self.path, self.data.len(), &self.acl)
    }
}

impl Core {
    /// Checks that there is room for one more znode, which counts for `bytes`; `is_own` if it goes with the session.
    #[inline]
    pub(super) fn check_room(&self, session: SessionRef, bytes: usize, is_own: bool) -> Result<()> {
        check_znodes(self.tree.nodes.len(), &self.options.limits)?;
        let payer = || self.payer(session, is_own);
        self.budget().check(bytes, payer)
    }

    /// Whether a part of a znode may come to count for `to` bytes, from `from`. What does not grow
    /// always may, so that a store that is full can still be worked on.
    #[inline]
    pub(super) fn check_growth(
        &self,
        session: SessionRef,
        node: u32,
        from: usize,
        to: usize,
    ) -> Result<()> {
        if to <= from {
            return Ok(());
        }
        let is_own = self.tree.node(node).owner_slot == session.slot;
        let payer = || self.payer(session, is_own);
        self.budget().check(to - from, payer)
    }
}

/// What the operations of a multi add. They are judged by their sum: one may take the room that
/// another gives back, in whatever order they stand.
#[derive(Default)]
pub(super) struct Growth {
    znodes: isize,
    bytes: isize,
    /// The last operation that adds anything.
    last: usize,
    /// True if any of what is added outlives the session.
    is_lasting: bool,
}

impl Growth {
    /// `is_own` if it goes with the session.
    pub(super) fn add(&mut self, index: usize, znodes: isize, bytes: isize, is_own: bool) {
        self.znodes += znodes;
        self.bytes = self.bytes.saturating_add(bytes);
        if znodes > 0 || bytes > 0 {
            self.last = index;
            self.is_lasting |= !is_own;
        }
    }

    /// Whether there is room for it; if not, which operation is to blame.
    pub(super) fn check(&self, core: &Core, session: SessionRef) -> Result<(), (usize, Error)> {
        let (tree, limits) = (&core.tree, &core.options.limits);
        let mut checked = Ok(());
        if self.znodes > 0 {
            let before = tree.nodes.len().saturating_add_signed(self.znodes - 1);
            checked = check_znodes(before, limits);
        }
        if self.bytes > 0 && checked.is_ok() {
            let payer = || core.payer(session, !self.is_lasting);
            checked = core.budget().check(self.bytes.unsigned_abs(), payer);
        }
        checked.map_err(|error| (self.last, error))
    }
}

/// Whether one more may be added to so many.
#[inline]
fn check_znodes(before: usize, limits: &Limits) -> Result<()> {
    if before < limits.znodes {
        return Ok(());
    }
    Err(Error::LimitReached {
        what: "znodes",
        limit: limits.znodes,
    })
}
