//! The private queue of all recipes: one ephemeral sequential znode for each contender, in the order of their numbers.
//!
//! [`wait`] takes a lock, from the create of an entry to the grant, and is the place to begin reading. It is made of
//! [`claim`] (the create that leaves nothing behind), [`order`] (the order of a queue from names alone; pure), [`list`]
//! (the same at a store without an index), [`sleep`] and [`grant`]. A recipe adds which entries block which
//! ([`Kind::blockers`]).

mod claim;
mod cleanup;
mod contenders;
mod grant;
mod list;
mod order;
mod self_deadlock;
mod sleep;
mod wait;

use lockkeeper_store::{Session, Watcher, ZnodePath};

use crate::names::Kind;

pub(crate) use claim::{Claim, Creation, Names, Submitted, create_queue, created_at, enqueue};
pub(crate) use cleanup::{delete_until_gone, remove, remove_all};
pub(crate) use contenders::{
    any_contends, check_kind, contenders, first_ephemeral, first_such, in_order, list_queue,
};
pub(crate) use grant::Grant;
pub(crate) use order::{blocks, count_holders, holding, is_shared};
pub(crate) use wait::{WaitOptions, Waiter};

/// A queue, as one kind of contender of one session sees it.
#[derive(Clone, Copy)]
pub(crate) struct Queue<'a> {
    pub(crate) session: &'a Session,
    pub(crate) path: &'a ZnodePath,
    pub(crate) kind: Kind,
}

/// Knowledge of a waiter about those ahead, which decides what it does next.
pub(crate) enum Step {
    /// Nobody ahead blocks.
    Clear,
    /// This entry blocks.
    Behind(Blocker),
    /// The store has answered with the names of all children, which have to be ordered.
    Listed(Vec<String>),
    /// The store's index does not tell: the children have to be listed.
    ListAll,
    /// A list does not show the waiter's own entry: it lags behind the create, or the entry was removed.
    Unlisted,
    /// The waiter's own entry is gone.
    Gone,
    /// Nothing: the store is to be asked again.
    Recheck,
}

/// The entry that a waiter watches: the nearest one that blocks it.
pub(crate) struct Blocker {
    by: ZnodePath,
    /// `None` if it has gone already.
    watcher: Option<Watcher>,
    /// Contenders ahead in all, blocking or not, where that is known.
    count: Option<usize>,
    source: Source,
}

/// Source of the knowledge that an entry blocks.
#[derive(Clone, Copy)]
enum Source {
    /// The store's index, which also tells whether the way is clear when the entry goes.
    Index,
    /// A list of names. It still tells which entry is next when this one has gone, if that is traceable: if all names
    /// under which the same contender may come back are known.
    List { is_traceable: bool },
}
