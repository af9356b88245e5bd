//! `lockkeeper run`: a command under a lock.

pub(crate) mod arena;
mod deaths;
mod losses;
mod signals;
mod statuses;
mod terminal;
