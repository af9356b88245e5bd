//! The queue shared by all recipes. Each contender has one ephemeral sequential znode. The order of the queue is the
//! order of the numbers in their names.
//!
//! Start reading at [`wait`], the loop that takes a lock. It uses [`claim`] (a create that leaves nothing behind),
//! [`list`] and [`order`] (which find the blocker by name if the store has no index), [`sleep`] and [`grant`]. A recipe
//! only defines which entries block which other entries ([`Kind::blockers`]).

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

/// A queue from the view of one kind of contender in one session.
#[derive(Clone, Copy)]
pub(crate) struct Queue<'a> {
    pub(crate) session: &'a Session,
    pub(crate) path: &'a ZnodePath,
    pub(crate) kind: Kind,
}

pub(crate) enum Step {
    /// No entry ahead blocks.
    Clear,
    Behind(Blocker),
    /// The store returned the names of all children, which still have to be ordered.
    Listed(Vec<String>),
    /// The index returned a znode that is not a contender, so we must list all children.
    ListAll,
    /// Our entry is missing in a list. Either the server lags behind the create, or the entry was removed.
    Unlisted,
    Gone,
    /// What we know may be outdated, so we must ask the store again.
    Recheck,
}

/// The nearest entry that blocks the waiter, which is the one it watches.
pub(crate) struct Blocker {
    by: ZnodePath,
    /// `None` if the entry has already left.
    watcher: Option<Watcher>,
    /// Number of all contenders ahead, if known, including those that do not block.
    count: Option<usize>,
    source: Source,
}

/// How we know that an entry blocks. This decides what we can conclude from the deletion of that entry.
#[derive(Clone, Copy)]
enum Source {
    /// The store's index. Its deletion event also contains whether another entry blocks.
    Index,
    /// A list of names. After a deletion, this list shows the next blocker if the deleted contender is traceable.
    /// Traceable means that we know all names that the contender may get in a conversion.
    List { is_traceable: bool },
}
