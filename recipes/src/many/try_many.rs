//! [`try_lock_many`]: those of several locks that are free now.

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

/// Outcome of [`try_lock_many`]: the locks that were free, and those that were not.
#[derive(Debug)]
#[must_use = "dropping it releases the locks"]
#[non_exhaustive]
pub struct TryLockMany<G = Guard> {
    /// The locks that were free, each with its guard, in the order of their naming. Their guards
    /// have one token, and are released one by one.
    pub acquired: Vec<(LockPath, G)>,
    /// The locks that others hold or wait for, in the order of their naming.
    pub contended: Vec<LockPath>,
}

/// Acquires those of several mutexes that are free now, and names the others. It never waits for a lock.
///
/// One request looks at all queues, and one joins those that look free; where another contender was faster
/// the entry is given up again. Nothing is written at a lock that is held: trying costs its holder
/// and its waiters nothing. "Held" may be as stale as the server that answers; "free" is confirmed
/// by the queue itself.
///
/// Since it does not wait for locks it may be called while others are held. Cancel safe: when it is
/// dropped nothing is held and nothing left.
///
/// # Errors
/// As [`lock_all`](crate::lock_all()). After an error nothing is held.
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

/// Acquires those of several mutexes that are free now, with the given options. A queue limit has no effect.
///
/// Cancel safe, as [`try_lock_many`].
///
/// # Errors
/// [`LockError::Timeout`] when the store has not answered in time, [`LockError::InvalidField`], and those of
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
        // Another contender may have been faster since the look.
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
