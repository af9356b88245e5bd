//! The private queue that serves all recipes: enter, find what blocks me, wait, confirm, hold,
//! leave. A recipe adds which entries block which.

mod blocker;
mod claim;
mod cleanup;
mod contenders;
mod itself;
mod list;
mod order;
mod release_marker;
mod sleep;
mod telling;
mod wait;

pub(crate) use claim::{Alongside, Entry, Form, ask, make_queue};
pub(crate) use cleanup::{delete_until_gone, find_unanswered, made_at, remove, remove_all};
pub(crate) use contenders::{
    any_contends, check_kind, contenders, first_ephemeral, first_such, list_queue,
};
pub(crate) use order::blocks;
pub(crate) use wait::{Held, Terms, Waiting};
