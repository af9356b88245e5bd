//! [`lock_all`] and [`try_lock_all`]: all locks or none.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use lockkeeper_store::Client;

use super::batch::{Batch, grant};
use super::guard::MultiGuard;
use super::multi_lock::MultiLock;
#[cfg(doc)]
use crate::error::LockError;
use crate::error::Result;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// Acquires several mutexes: waits until all are granted, and holds them all or none.
///
/// All queues are joined in one atomic step, so that any two callers have the same order in every queue in which they
/// meet. Therefore callers **that hold nothing else while they wait** never deadlock, in any order of naming, and each lock
/// is still granted in the order of arrival. The locks are those of [`Mutex`](crate::Mutex) at the same paths.
///
/// The condition is not checked, and cannot be. Callers that hold one lock and then wait for more have no common order:
///
/// ```text
/// task 1: let _a = lock_all(&client, ["/a"]).await?;  lock_all(&client, ["/b"]).await?;
/// task 2: let _b = lock_all(&client, ["/b"]).await?;  lock_all(&client, ["/a"]).await?;   // both wait for ever
/// ```
///
/// Name all locks in one call, or release what you hold first; where neither can be done, use
/// [`try_lock_many`](crate::try_lock_many) for the later locks, or a timeout.
///
/// Free locks cost two round trips on ZooKeeper, however many they are. Cancel safe: a dropped wait leaves all queues, at any
/// moment.
///
/// # Errors
/// [`LockError::EmptyKeys`]; [`LockError::DuplicateKey`], since a caller that names a lock twice would wait for
/// itself; [`LockError::BatchTooLarge`], before anything is sent; and those of
/// [`Mutex::lock`](crate::Mutex::lock). After any error, at any of the locks, no entry is left in any queue.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # use lockkeeper::{FencingGate, lock_all};
/// # let (mut from, mut to) = (FencingGate::default(), FencingGate::default());
/// # let client = lockkeeper::connect("memory:lock-all").await?;
/// let guard = lock_all(&client, ["/account/ann", "/account/bob"]).await?;
/// from.admit(guard.fencing_token())?; // one token for both resources
/// to.admit(guard.fencing_token())?;
/// guard.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub async fn lock_all(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
) -> Result<MultiGuard> {
    lock_all_with(client, keys, LockOptions::new()).await
}

/// Acquires several mutexes within `timeout`: one deadline for everything, the joining of the queues included.
///
/// Cancel safe, as [`lock_all`].
///
/// # Errors
/// [`LockError::Timeout`] with the first lock that was not granted, and those of [`lock_all`].
pub async fn lock_all_timeout(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    timeout: Duration,
) -> Result<MultiGuard> {
    lock_all_with(client, keys, LockOptions::new().timeout(timeout)).await
}

/// Acquires several mutexes with the given options.
///
/// The timeout is one for everything: the joining, and the waits at all locks together. A queue limit
/// is one for each queue. Events tell of each lock by itself.
///
/// # Errors
/// [`LockError::Timeout`] with the first lock that was not granted, [`LockError::QueueFull`],
/// [`LockError::InvalidField`], and those of [`lock_all`].
pub async fn lock_all_with(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    options: LockOptions,
) -> Result<MultiGuard> {
    let lock = MultiLock::new(client, keys, options)?;
    let guard = acquire(&lock, false).await?;
    Ok(guard.expect("only a try comes back without the locks"))
}

/// Acquires several mutexes if all of them are free now; else `None`, and none is held. It never waits for a lock.
///
/// One request looks at all queues. If any lock is held or waited for, that is all: nothing is written, and trying
/// costs the holders and the waiters nothing. If all look free, one atomic step joins all queues; if another contender was
/// faster at one of them, the call leaves all queues again, and a third that tries meanwhile may find a lock held that is
/// free a moment later. "Held" may be as stale as the server that answers (see
/// [`LockOptions::synced`]); "free" is confirmed by the queues themselves.
///
/// Since it does not wait for locks it may be called while others are held: no order of such calls deadlocks.
///
/// Cancel safe: a dropped call leaves all queues, at any moment.
///
/// # Errors
/// Those of [`lock_all`](crate::lock_all()). After an error nothing is held.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # use lockkeeper::{Mutex, try_lock_all};
/// # let client = lockkeeper::connect("memory:try-lock-all").await?;
/// let accounts = ["/account/ann", "/account/bob"];
/// let bob = Mutex::new(&client, "/account/bob")?.lock().await?;
/// assert!(try_lock_all(&client, accounts).await?.is_none()); // and ann's is free for others
/// bob.release().await?;
/// let both = try_lock_all(&client, accounts).await?.expect("both are free");
/// both.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub async fn try_lock_all(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
) -> Result<Option<MultiGuard>> {
    try_lock_all_with(client, keys, LockOptions::new()).await
}

/// Acquires several mutexes if all of them are free now, with the given options. A queue limit has no effect.
///
/// Cancel safe, as [`try_lock_all`].
///
/// # Errors
/// [`LockError::Timeout`] when the store has not answered in time, [`LockError::InvalidField`], and those of
/// [`try_lock_all`].
pub async fn try_lock_all_with(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    options: LockOptions,
) -> Result<Option<MultiGuard>> {
    let lock = MultiLock::new(client, keys, options)?;
    acquire(&lock, true).await
}

/// Acquires all locks of a call, under its deadline. `None` if `only_if_free` and one of them is not free.
async fn acquire(lock: &MultiLock, only_if_free: bool) -> Result<Option<MultiGuard>> {
    // Index of the first lock that is not granted, for the error of a timeout.
    let first_left = AtomicUsize::new(0);
    let acquire = async {
        let session = lock.client.session().await?;
        if only_if_free && lock.look(&session).await?.contains(&false) {
            return Ok(None);
        }
        let (wait_options, events) = (
            lock.wait_options(only_if_free),
            lock.options.events.as_ref(),
        );
        let waiters = Batch::enter(&session, &lock.keys, &wait_options, events).await?;
        let turns = waiters.into_iter().enumerate();
        let turns = turns.map(|(index, waiter)| async move { (index, waiter.take_turn().await) });
        let mut turns: FuturesUnordered<_> = turns.collect();
        let mut granted: Vec<_> = (0..lock.keys.len()).map(|_| None).collect();
        while let Some((index, turn)) = turns.next().await {
            let Some(waiter) = turn? else {
                // Dropping the others leaves their queues: all or none.
                return Ok(None);
            };
            granted[index] = Some(waiter);
            let left = granted.iter().position(Option::is_none);
            first_left.store(left.unwrap_or(0), Ordering::Relaxed);
        }
        let granted = granted.into_iter().flatten().collect();
        let guards = grant(&session, granted, &wait_options, events).await?;
        Ok(Some(MultiGuard::new(lock.keys.to_vec(), guards)))
    };
    match lock.deadline.race(acquire).await {
        Some(outcome) => outcome,
        None => Err(lock.timed_out(first_left.load(Ordering::Relaxed))),
    }
}
