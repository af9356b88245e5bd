//! Several locks at once: [`lock_all`], [`try_lock_many`], [`lock_each`].

mod all;
mod attempt;
mod batch;
mod each;
mod guard;
mod keys;

pub use all::{lock_all, lock_all_with};
pub use attempt::{TryLockMany, try_lock_many, try_lock_many_with};
pub use each::{LockEach, lock_each, lock_each_with};
pub use guard::MultiGuard;
