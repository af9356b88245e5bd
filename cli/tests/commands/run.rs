//! `lockkeeper run`: a command under a lock.

mod deaths;
mod losses;
mod signals;
mod statuses;
mod terminal;
