//! The live list of a store's locks, for `top` and the dashboard.

mod feed;
mod grants;
#[cfg(test)]
pub(crate) mod samples;
mod sort;

pub(crate) use feed::{Feed, News, SILENCE};
pub(crate) use grants::{SeenGrants, add_seen};
pub(crate) use sort::{Sort, granted_at, rank, searched};
