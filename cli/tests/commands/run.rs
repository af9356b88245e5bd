//! `lockkeeper run`: a command under a lock.

mod busy;
mod deaths;
mod losses;
mod once_per;
mod signals;
mod statuses;
mod stress;
mod terminal;
