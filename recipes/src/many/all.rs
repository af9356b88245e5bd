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

/// Acquires several mutexes. Waits until all are granted, and holds all or none.
///
/// One atomic step joins all queues. Callers **that hold nothing else while they wait** therefore never deadlock,
/// whatever the order of the names, and each lock is still granted in the order of arrival.
///
/// Callers that hold one lock and then wait for another have no common order and can deadlock. The library cannot
/// detect this:
///
/// ```text
/// task 1: let _a = lock_all(&client, ["/a"]).await?;  lock_all(&client, ["/b"]).await?;
/// task 2: let _b = lock_all(&client, ["/b"]).await?;  lock_all(&client, ["/a"]).await?;   // both wait for ever
/// ```
///
/// Name all locks in one call, or release your locks before the call. If you can do neither, use
/// [`try_lock_many`](crate::try_lock_many) or a timeout for the later locks.
///
/// Free locks cost two round trips on ZooKeeper, whatever their number. Cancel safe: a dropped wait leaves all queues.
///
/// # Errors
/// [`LockError::EmptyKeys`], [`LockError::DuplicateKey`] or [`LockError::BatchTooLarge`] before anything is sent, and
/// the errors of [`Mutex::lock`](crate::Mutex::lock). After an error no entry is left in any queue.
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

/// Acquires several mutexes within `timeout`, which covers the whole call.
///
/// Cancel safe, like [`lock_all`].
///
/// # Errors
/// [`LockError::Timeout`] with the first lock that was not granted, and the errors of [`lock_all`].
pub async fn lock_all_timeout(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    timeout: Duration,
) -> Result<MultiGuard> {
    lock_all_with(client, keys, LockOptions::new().timeout(timeout)).await
}

/// Acquires several mutexes with the given options.
///
/// The timeout covers the whole call. A queue limit applies to each queue. Events report each lock separately. Cancel
/// safe, like [`lock_all`].
///
/// # Errors
/// [`LockError::Timeout`] with the first lock that was not granted, [`LockError::QueueFull`],
/// [`LockError::InvalidField`], and the errors of [`lock_all`].
pub async fn lock_all_with(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    options: LockOptions,
) -> Result<MultiGuard> {
    let lock = MultiLock::new(client, keys, options)?;
    let guard = acquire(&lock, false).await?;
    Ok(guard.expect("only a try comes back without the locks"))
}

/// Acquires several mutexes if all of them are free now, otherwise returns `None` and holds none. Never waits for a
/// lock.
///
/// One request reads all queues. If a lock is held or waited for, the call writes nothing. Otherwise one atomic step
/// joins all queues. If another contender was faster at one of them, the call leaves all queues again. Until then,
/// another caller's try may fail because of these entries. The result `None` can be outdated unless
/// [`LockOptions::synced`] is set.
///
/// You can call this while you hold other locks, because a call that never waits cannot deadlock.
///
/// Cancel safe: a dropped call leaves all queues.
///
/// # Errors
/// Same as [`lock_all`](crate::lock_all()). After an error nothing is held.
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
/// Cancel safe, like [`try_lock_all`].
///
/// # Errors
/// [`LockError::Timeout`] if the store does not answer in time, [`LockError::InvalidField`], and the errors of
/// [`try_lock_all`].
pub async fn try_lock_all_with(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    options: LockOptions,
) -> Result<Option<MultiGuard>> {
    let lock = MultiLock::new(client, keys, options)?;
    acquire(&lock, true).await
}

async fn acquire(lock: &MultiLock, only_if_free: bool) -> Result<Option<MultiGuard>> {
    // A timeout error names the first lock that is not granted yet.
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
