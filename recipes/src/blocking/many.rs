//! Locks of several mutexes: [`lock_all`], [`try_lock_all`], [`lock_each`], [`try_lock_many`].

use std::time::Duration;

use super::forward::{Blocking, forward_functions};
use super::observe::Iter;
use super::{Client, Guard, MultiGuard};
use crate::error::Result;
use crate::options::LockOptions;
use crate::path::{IntoLockPath, LockPath};

forward_functions! {
    /// Acquires several mutexes, all or none.
    ///
    /// ```
    /// use lockkeeper::blocking::{self, lock_all};
    ///
    /// let client = blocking::connect("memory:blocking-lock-all")?;
    /// let both = lock_all(&client, ["/account/ann", "/account/bob"])?;
    /// println!("one token for both: {}", both.fencing_token());
    /// both.release()?;
    /// # Ok::<(), lockkeeper::LockError>(())
    /// ```
    fn lock_all(keys: impl IntoIterator<Item: IntoLockPath>) -> MultiGuard;

    /// Acquires several mutexes within `timeout`.
    fn lock_all_timeout(keys: impl IntoIterator<Item: IntoLockPath>, timeout: Duration) -> MultiGuard;

    /// Acquires several mutexes with the given options.
    fn lock_all_with(keys: impl IntoIterator<Item: IntoLockPath>, options: LockOptions) -> MultiGuard;

    /// Acquires several mutexes if all of them are free now.
    fn try_lock_all(keys: impl IntoIterator<Item: IntoLockPath>) -> Option<MultiGuard>;

    /// Acquires several mutexes if all of them are free now, with the given options.
    fn try_lock_all_with(keys: impl IntoIterator<Item: IntoLockPath>, options: LockOptions) -> Option<MultiGuard>;

    /// Acquires the mutexes that are free now.
    ///
    /// ```
    /// # let client = lockkeeper::blocking::connect("memory:example-blocking-many-try-lock-many")?;
    /// use lockkeeper::blocking::{Mutex, try_lock_many};
    ///
    /// let _other = Mutex::new(&client, "/job/2")?.lock()?;
    /// let tried = try_lock_many(&client, ["/job/1", "/job/2"])?;
    /// assert_eq!((tried.acquired.len(), tried.contended.len()), (1, 1));
    /// # Ok::<(), lockkeeper::LockError>(())
    /// ```
    fn try_lock_many(keys: impl IntoIterator<Item: IntoLockPath>) -> TryLockMany;

    /// Acquires the mutexes that are free now, with the given options.
    fn try_lock_many_with(keys: impl IntoIterator<Item: IntoLockPath>, options: LockOptions) -> TryLockMany;
}

/// Outcome of [`try_lock_many`].
pub type TryLockMany = crate::TryLockMany<Guard>;

impl Blocking for crate::TryLockMany {
    type Output = TryLockMany;

    fn blocking(self) -> TryLockMany {
        TryLockMany {
            acquired: self.acquired.blocking(),
            contended: self.contended,
        }
    }
}

/// Acquires several mutexes, and yields each as it is granted.
///
/// # Errors
/// Same as [`lock_each`](crate::lock_each()).
///
/// ```
/// # let client = lockkeeper::blocking::connect("memory:example-blocking-many-lock-each")?;
/// for granted in lockkeeper::blocking::lock_each(&client, ["/job/1", "/job/2"])? {
///     let (job, guard) = granted?;
///     println!("{job} is mine, token {}", guard.fencing_token());
///     guard.release()?;
/// }
/// # Ok::<(), lockkeeper::LockError>(())
/// ```
pub fn lock_each(client: &Client, keys: impl IntoIterator<Item: IntoLockPath>) -> Result<LockEach> {
    crate::lock_each(client.as_async(), keys).map(LockEach::new)
}

/// Acquires several mutexes within `timeout` of this call, and yields each as it is granted.
///
/// # Errors
/// Same as [`lock_each_timeout`](crate::lock_each_timeout()).
pub fn lock_each_timeout(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    timeout: Duration,
) -> Result<LockEach> {
    crate::lock_each_timeout(client.as_async(), keys, timeout).map(LockEach::new)
}

/// Acquires several mutexes with the given options, and yields each as it is granted.
///
/// # Errors
/// Same as [`lock_each_with`](crate::lock_each_with()).
pub fn lock_each_with(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    options: LockOptions,
) -> Result<LockEach> {
    crate::lock_each_with(client.as_async(), keys, options).map(LockEach::new)
}

/// Iterator of [`lock_each`], which blocks until the next lock is granted.
#[derive(Debug)]
#[must_use = "nothing is locked until it is iterated"]
pub struct LockEach(Iter<crate::LockEach>);

impl LockEach {
    fn new(each: crate::LockEach) -> Self {
        Self(super::iter(each))
    }
}

impl Iterator for LockEach {
    type Item = Result<(LockPath, Guard)>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.next()?.map(Blocking::blocking))
    }
}
