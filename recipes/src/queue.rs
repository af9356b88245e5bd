//! The queue shared by all recipes. Each contender has one ephemeral sequential znode. The numbers in the znodes' names
//! define the order.
//!
//! Start reading at [`wait`], the loop that takes a lock. A recipe only defines which entries block which other entries
//! ([`Kind::blockers`]).

mod claim;
mod cleanup;
mod contenders;
mod grant;
mod list;
mod local;
mod order;
mod self_deadlock;
mod sleep;
mod untaken;
mod wait;

use lockkeeper_store::{Session, Watcher, ZnodePath};

use crate::names::Kind;

pub(crate) use claim::{Claim, Creation, Names, create_above, create_queue, created_at};
pub(crate) use cleanup::{PendingDelete, delete_until_gone, remove, remove_all};
pub(crate) use contenders::{
    any_contends, check_kind, contenders, first_ephemeral, first_such, in_order, is_taken,
    list_queue, looks_taken,
};
pub(crate) use grant::Grant;
pub(crate) use local::{LocalAttempt, LocalEntry};
#[cfg(feature = "simulation")]
pub(crate) use order::{MarkerReading, Predecessors, ReleaseMarker, blocks};
pub(crate) use order::{count_holders, holding, is_shared};
pub(crate) use untaken::{Contender, Permits, attended};
pub(crate) use wait::{WaitOptions, Waiter};

#[derive(Clone, Copy)]
pub(crate) struct Queue<'a> {
    pub(crate) session: &'a Session,
    pub(crate) path: &'a ZnodePath,
    pub(crate) kind: Kind,
}

pub(crate) enum QueuePosition {
    Clear,
    Behind(Blocker),
    Listed(Vec<String>),
    /// The index returned a znode that is not a contender, so we must list all children.
    ListAll,
    /// A list does not contain our entry. Either the server lags behind the create, or the entry was removed.
    Unlisted,
    Gone,
    Recheck,
}

/// The nearest entry that blocks the waiter. The waiter watches only this entry.
pub(crate) struct Blocker {
    by: ZnodePath,
    /// `None` if the entry has already left.
    watcher: Option<Watcher>,
    count: Option<usize>,
    source: BlockerSource,
}

#[derive(Clone, Copy)]
enum BlockerSource {
    /// The store's index. The blocker's deletion event also reports whether another entry still blocks ours.
    Index,
    /// A list of names. The blocker is traceable if we know every name that a conversion can give it. Only a new list
    /// shows whether an untraceable blocker still exists under another name.
    List { is_traceable: bool },
}
