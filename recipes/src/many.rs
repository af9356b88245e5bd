//! Locks of several mutexes: [`lock_all`], [`try_lock_all`], [`lock_each`], [`try_lock_many`].
//!
//! One multi joins all queues, so any two callers have the same order in all queues that they share, and cannot wait
//! for each other in a cycle.

mod all;
mod batch;
mod each;
mod guard;
mod multi_lock;
mod try_many;

pub use all::{lock_all, lock_all_timeout, lock_all_with, try_lock_all, try_lock_all_with};
pub use each::{LockEach, lock_each, lock_each_timeout, lock_each_with};
pub use guard::MultiGuard;
pub use try_many::{TryLockMany, try_lock_many, try_lock_many_with};
