//! `lockkeeper run`: a command under a lock.

mod deaths;
mod losses;
mod once_per;
mod signals;
mod statuses;
mod terminal;
