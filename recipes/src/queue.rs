//! The private queue of all recipes: one ephemeral sequential znode for each contender, in the order of their numbers.
//!
//! Start reading at [`wait`], the loop that takes a lock. It uses [`claim`] (the create that leaves nothing behind),
//! [`list`] and [`order`] (finding the blocker from names, where the store has no index), [`sleep`] and [`grant`]. A recipe
//! only adds which entries block which ([`Kind::blockers`]).

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
pub(crate) use local::{Attempt, LocalEntry};
#[cfg(feature = "simulation")]
pub(crate) use order::{MarkerReading, Predecessors, ReleaseMarker, blocks};
pub(crate) use order::{count_holders, holding, is_shared};
pub(crate) use untaken::{Contender, Permits, attended};
pub(crate) use wait::{WaitOptions, Waiter};

/// A queue, as one kind of contender of one session sees it.
#[derive(Clone, Copy)]
pub(crate) struct Queue<'a> {
    pub(crate) session: &'a Session,
    pub(crate) path: &'a ZnodePath,
    pub(crate) kind: Kind,
}

/// Next step of a wait, by what is known of the entries ahead.
pub(crate) enum Step {
    /// No entry ahead blocks.
    Clear,
    /// This entry blocks.
    Behind(Blocker),
    /// The store has replied with the names of all children, which have to be ordered.
    Listed(Vec<String>),
    /// The index names a znode that is no contender: the children have to be listed.
    ListAll,
    /// A list does not show the waiter's entry: the server that gave it lags behind the create, or the entry was removed.
    Unlisted,
    /// The waiter's entry is gone.
    Gone,
    /// Nothing is known: ask the store.
    Recheck,
}

/// The entry that a waiter watches: the nearest one that blocks it.
pub(crate) struct Blocker {
    by: ZnodePath,
    /// `None` if the entry is gone already.
    watcher: Option<Watcher>,
    /// Number of all contenders ahead, blocking or not, if known.
    count: Option<usize>,
    source: Source,
}

/// Source of the knowledge that an entry blocks. It decides what an event of that entry proves.
#[derive(Clone, Copy)]
enum Source {
    /// The store's index: the event of the deletion also tells whether another entry blocks.
    Index,
    /// A list of names. When the entry goes, the list still tells the next one if the contender is traceable: if all
    /// names under which it may come back after a conversion are known.
    List { is_traceable: bool },
}
