//! [`lock_all`]: all locks or none.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_store::{Client, Error, Op, Session};

use super::batch::{Batch, guard};
use super::guard::MultiGuard;
use super::keys::Keys;
use crate::contest::in_time;
#[cfg(doc)]
use crate::error::LockError;
use crate::error::Result;
use crate::metadata::EntryData;
use crate::options::LockOptions;
use crate::path::IntoLockPath;
use crate::queue::Waiter;
use crate::retry::retry;
use crate::together::Together;

/// Acquires several mutexes: waits until all are granted, and holds them all or none.
///
/// All queues are joined in one atomic step, so that every two callers stand in the same order in
/// every queue in which they meet. Therefore callers **that hold nothing else while they wait** never
/// wait for each other in a circle, in whatever order they name the locks, and each lock is still
/// granted in the order of arrival. The locks are those of [`Mutex`](crate::Mutex) at the same paths.
///
/// The condition is not checked, and cannot be. A caller that holds one lock and then waits for more is in
/// no order with others that do so:
///
/// ```text
/// task 1: let _a = lock_all(&client, ["/a"]).await?;  lock_all(&client, ["/b"]).await?;
/// task 2: let _b = lock_all(&client, ["/b"]).await?;  lock_all(&client, ["/a"]).await?;   // both wait for ever
/// ```
///
/// Name all locks in one call, or release what you hold first; where neither can be done, use
/// [`try_lock_many`](crate::try_lock_many) for what comes later, or a timeout.
///
/// Free locks cost two round trips on ZooKeeper, however many they are. Cancel safe: a dropped wait
/// leaves all queues, at whatever moment it is dropped.
///
/// # Errors
/// [`LockError::EmptyKeys`]; [`LockError::DuplicateKey`], since a caller that names a lock twice would wait for
/// itself; [`LockError::BatchTooLarge`], before anything is sent; and those of
/// [`Mutex::lock`](crate::Mutex::lock). Whatever fails, at whichever lock: nothing is left in any queue.
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
/// [`LockError::Timeout`] with the first lock that was not granted, [`LockError::QueueFull`], and
/// those of [`lock_all`].
pub async fn lock_all_with(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    mut options: LockOptions,
) -> Result<MultiGuard> {
    let keys = Keys::parse(keys)?;
    let progress = options.begin();
    let data = options.data(client.clock().unix_ms());
    keys.check_size(client, &data)?;
    let missing = AtomicUsize::new(0);
    let wait = async {
        let guard = wait(client, &keys, &options, data, &missing, false).await?;
        Ok(guard.expect("only a try comes back without the locks"))
    };
    let timed_out = |after| {
        let first = keys.path(missing.load(Ordering::Relaxed));
        progress.timed_out(client, first, first, after)
    };
    in_time(client, options.timeout, wait, timed_out).await
}

/// Joins all queues and waits until all are granted. `missing` is the first that is not. `None` if `only_if_free` and
/// one of them is not free.
pub(super) async fn wait(
    client: &Client,
    keys: &Keys,
    options: &LockOptions,
    data: EntryData,
    missing: &AtomicUsize,
    only_if_free: bool,
) -> Result<Option<MultiGuard>> {
    let session = client.session().await?;
    let events = options.events.as_ref();
    let terms = options.terms(data, only_if_free);
    let waiters = Batch::enter(&session, keys, &terms, events).await?;
    let mut turns = Together::new(waiters.into_iter().map(Waiter::take_turn));
    let mut granted: Vec<_> = (0..keys.len()).map(|_| None).collect();
    while let Some((index, turn)) = turns.next().await {
        let Some(place) = turn? else {
            // Dropping the others leaves their queues: all or none.
            return Ok(None);
        };
        granted[index] = Some(place);
        missing.store(turns.first_left().unwrap_or(0), Ordering::Relaxed);
    }
    let mut granted: Vec<_> = granted.into_iter().flatten().collect();
    confirm(&session, &mut granted).await?;
    let locks = granted.into_iter().enumerate().map(|(index, mut waiter)| {
        let guard = guard(&session, waiter.grant(), &terms.data, events);
        (keys.key(index).clone(), guard)
    });
    Ok(Some(MultiGuard::new(locks.collect())))
}

/// Makes sure that all locks are held at the same moment: while the last was waited for, an earlier entry
/// may have been removed, or the session may have fallen silent.
pub(super) async fn confirm(session: &Session, granted: &mut [Waiter<'_>]) -> Result<()> {
    // Where no lock was waited for, one look has shown all of them.
    let mut is_certain = !granted.iter().any(Waiter::has_waited);
    while !is_certain || !granted.iter().all(Waiter::may_grant) {
        let lease = session.fresh_lease().await?;
        let checks = granted.iter().map(|waiter| Op::Check {
            path: waiter.path().clone(),
            version: None,
        });
        let checks: Vec<_> = checks.collect();
        match retry(|| session.multi(checks.clone())).await {
            Ok(_) => {
                is_certain = true;
                granted
                    .iter_mut()
                    .for_each(|waiter| waiter.proved(lease.clone()));
            }
            Err(Error::MultiFailed { index, .. }) => return Err(granted[index].removed()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
