//! `lockkeeper run`: a command under a lock.

mod arena;
mod deaths;
mod losses;
mod signals;
mod statuses;
mod terminal;
