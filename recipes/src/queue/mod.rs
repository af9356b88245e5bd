//! The private queue that serves all recipes: enter, find what blocks me, wait, confirm, hold,
//! leave. A recipe adds which entries block which.

mod cleanup;
mod entry;
mod mark;
mod snapshot;
mod turn;

pub(crate) use cleanup::{delete_until_gone, remove};
pub(crate) use entry::{Entry, Form};
pub(crate) use mark::Mark;
pub(crate) use turn::{Held, Terms, check_kind, number_of};
