//! The private queue that serves all recipes: enter, find what blocks me, wait, confirm, hold,
//! leave. A recipe adds which entries block which.

mod blocker;
mod cleanup;
mod contenders;
mod entry;
mod itself;
mod listed;
mod release_marker;
mod sleep;
mod snapshot;
mod telling;
mod turn;

pub(crate) use cleanup::{delete_until_gone, find_unanswered, made_at, remove, remove_all};
pub(crate) use contenders::{
    any_contends, check_kind, contenders, first_ephemeral, first_such, list_queue,
};
pub(crate) use entry::{Alongside, Entry, Form, ask, make_queue};
pub(crate) use snapshot::blocks;
pub(crate) use turn::{Held, Terms, Waiting};
