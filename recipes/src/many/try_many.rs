//! [`try_lock_many`]: acquires the locks that are free, out of several locks.

use futures_util::future::try_join_all;
use lockkeeper_store::Client;

use super::batch::{Batch, grant};
use super::multi_lock::MultiLock;
#[cfg(doc)]
use crate::error::LockError;
use crate::error::Result;
use crate::guard::Guard;
use crate::options::LockOptions;
use crate::path::{IntoLockPath, LockPath};
use crate::queue::Waiter;

/// Result of [`try_lock_many`].
#[derive(Debug)]
#[must_use = "dropping it releases the locks"]
#[non_exhaustive]
pub struct TryLockMany<G = Guard> {
    /// The locks that were free, in the caller's order. The guards are independent and share one token.
    pub acquired: Vec<(LockPath, G)>,
    /// The locks that other contenders hold or wait for, in the caller's order.
    pub contended: Vec<LockPath>,
}

/// Acquires the mutexes that are free now, and returns the names of the others. Never waits for a lock.
///
/// One request reads all queues, and a second request joins the queues that look empty. If another contender was faster
/// at one of these queues, the call removes its own entry there. The list of contended locks can be outdated unless
/// [`LockOptions::synced`] is set.
///
/// You can call this while you hold other locks, because it never waits. Cancel safe: a dropped call leaves nothing
/// held or queued.
///
/// # Errors
/// Same as [`lock_all`](crate::lock_all()). After an error nothing is held.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # use lockkeeper::{Mutex, try_lock_many};
/// # let client = lockkeeper::connect("memory:try-lock-many").await?;
/// let _other = Mutex::new(&client, "/job/2")?.lock().await?;
/// let tried = try_lock_many(&client, ["/job/1", "/job/2", "/job/3"]).await?;
/// assert_eq!(tried.contended[0].to_string(), "/job/2");
/// for (job, guard) in tried.acquired {
///     println!("{job} is mine");
///     guard.release().await?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub async fn try_lock_many(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
) -> Result<TryLockMany> {
    try_lock_many_with(client, keys, LockOptions::new()).await
}

/// Acquires the mutexes that are free now, with the given options. A queue limit has no effect.
///
/// Cancel safe, like [`try_lock_many`].
///
/// # Errors
/// [`LockError::Timeout`] if the store does not answer in time, [`LockError::InvalidField`], and the errors of
/// [`try_lock_many`].
pub async fn try_lock_many_with(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    options: LockOptions,
) -> Result<TryLockMany> {
    let lock = MultiLock::new(client, keys, options)?;
    let first = lock.keys.path(0);
    lock.deadline.run(first, first, try_acquire(&lock)).await
}

async fn try_acquire(lock: &MultiLock) -> Result<TryLockMany> {
    let session = lock.client.session().await?;
    let mut is_free = lock.look(&session).await?;
    let free = lock.keys.only(|index| is_free[index]);
    let mut acquired = Vec::new();
    if !free.is_empty() {
        let (wait_options, events) = (lock.wait_options(true), lock.options.events.as_ref());
        let waiters = Batch::enter(&session, &free, &wait_options, events).await?;
        let granted = try_join_all(waiters.into_iter().map(Waiter::take_turn)).await?;
        let is_granted: Vec<_> = granted.iter().map(Option::is_some).collect();
        let mut is_granted = is_granted.into_iter();
        for is_free in is_free.iter_mut().filter(|is_free| **is_free) {
            *is_free = is_granted.next().unwrap_or(false);
        }
        let granted = granted.into_iter().flatten().collect();
        acquired = grant(&session, granted, &wait_options, events).await?;
    }
    let contended = lock.keys.only(|index| !is_free[index]).to_vec();
    let keys = lock.keys.only(|index| is_free[index]).to_vec();
    Ok(TryLockMany {
        acquired: keys.into_iter().zip(acquired).collect(),
        contended,
    })
}
