//! [`try_lock_all`]: all of several mutexes, if all are free now.

use std::sync::atomic::AtomicUsize;

use lockkeeper_store::Client;

use super::all::wait;
use super::attempt::look;
use super::guard::MultiGuard;
use super::keys::Keys;
use crate::contest::in_time;
#[cfg(doc)]
use crate::error::LockError;
use crate::error::Result;
use crate::options::LockOptions;
use crate::path::IntoLockPath;
use crate::synced::look_synced;

/// Acquires several mutexes if all of them are free now; else `None`, and none is held. It never waits for a lock.
///
/// One request looks at all queues. If any lock is held or waited for, that is all: nothing is written, and trying
/// costs the holders and the waiters nothing. If all look free, one atomic step joins all queues; where somebody
/// was faster at one of them, all places are given up, and those that try meanwhile may find a lock taken that
/// nobody comes to hold. "Held" may be as stale as the server that answers (see
/// [`LockOptions::synced`]); "free" is confirmed by the queues themselves.
///
/// Since it does not wait for locks it may be called while others are held: no order of such calls deadlocks.
///
/// Cancel safe: a dropped call leaves nothing in any queue, at whatever moment it is dropped.
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
/// [`LockError::Timeout`] when the store has not answered in time, and those of [`try_lock_all`].
pub async fn try_lock_all_with(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    mut options: LockOptions,
) -> Result<Option<MultiGuard>> {
    let keys = Keys::parse(keys)?;
    let progress = options.begin();
    let data = options.data(client.clock().unix_ms());
    keys.check_size(client, &data)?;
    let missing = AtomicUsize::new(0);
    let attempt = async {
        let session = client.session().await?;
        let looks = || look(&session, &keys);
        let are_free = look_synced(&session, keys.path(0), options.synced, looks).await?;
        if are_free.contains(&false) {
            return Ok(None);
        }
        wait(client, &keys, &options, data, &missing, true).await
    };
    let timed_out = |after| progress.timed_out(client, keys.path(0), keys.path(0), after);
    in_time(client, options.timeout, attempt, timed_out).await
}
