//! [`list_locks`]: all locks below a prefix, with their holders.

mod changes;
mod observe;
mod prefix;
mod walk;

use lockkeeper_store::{Client, Error, ZnodePath};

use crate::holders::holders;
use crate::names::{LockKind, recipe_of};
use crate::observe::{QueueEntry, read_queue};
use crate::path::IntoLockPath;
use crate::retry::retry;

pub(crate) use changes::Changes;
pub use observe::{LockChange, LockChanges, observe_locks};
pub use prefix::LockPrefix;
pub(crate) use walk::{Root, Walk};

/// A lock with contenders, as [`list_locks`] has read it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub path: ZnodePath,
    /// Its kind.
    pub kind: LockKind,
    /// The entries that hold it, in order of arrival: several readers, or one for each permit of a semaphore. Empty where
    /// all contenders wait, as at a semaphore without permits.
    pub holders: Vec<QueueEntry>,
    /// Number of the other contenders, by their names.
    pub waiters: usize,
}

/// The locks that [`list_locks`] has found.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LockList {
    /// The locks with at least one contender, ordered by path.
    pub locks: Vec<LockInfo>,
    /// The znodes that could not be read, with the store's refusals: locks at and below them are missing.
    pub unreadable: Vec<(ZnodePath, Error)>,
}

/// Lists all locks at and below a prefix: mutexes, read-write locks, semaphores and elections, of this library and of
/// others with the same names. Locks without any contender are left out.
///
/// It is meant for many locks: up to 512 znodes are read in one request, several requests are under way at a time, and
/// of a lock's entries only the holders' data is read. The list is not one moment of the store: each lock is as it was
/// when it was read, and one that is released meanwhile may be missing. As stale as the server that answers.
///
/// Cancel safe: it writes nothing.
///
/// # Errors
/// [`Error::InvalidPath`], and those of the store; a refusal for a single znode is part of the result.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let client = lockkeeper::connect("memory:example-list-locks").await?;
/// use lockkeeper::{LockKind, Mutex, Semaphore, list_locks};
///
/// let guard = Mutex::new(&client, "/lock/orders/4711")?.lock().await?;
/// let _permit = Semaphore::new(&client, "/lock/geocoder", 10)?.acquire().await?;
/// let list = list_locks(&client, "/lock").await?;
/// let [geocoder, order] = &list.locks[..] else { panic!() };
/// assert_eq!(geocoder.kind, LockKind::Semaphore);
/// assert_eq!(order.path.as_str(), "/lock/orders/4711");
/// assert_eq!(order.holders[0].fencing_token, guard.fencing_token());
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub async fn list_locks<P>(client: &Client, prefix: P) -> Result<LockList, Error>
where
    P: TryInto<LockPrefix>,
    P::Error: Into<Error>,
{
    let prefix = prefix.try_into().map_err(Into::into)?;
    let session = client.session().await?;
    let mut list = LockList::default();
    let mut walk = Walk::new(&session, &prefix);
    walk.add(Root::tree(prefix.top().clone()));
    while let Some(lock) = walk.next().await? {
        list.locks.push(lock);
    }
    list.unreadable = walk.into_unreadable();
    // Found in the order of the replies.
    list.locks
        .sort_unstable_by(|one, other| one.path.cmp(&other.path));
    list.unreadable
        .sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(list)
}

/// The contenders of one lock, as [`lock_queue`] has read them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockQueue {
    /// The lock.
    pub path: ZnodePath,
    /// Its kind; [`Mutex`](LockKind::Mutex) if there is no contender.
    pub kind: LockKind,
    /// The entries that hold it, in order of arrival; of a semaphore one for each permit.
    pub holders: Vec<QueueEntry>,
    /// The entries that wait, in order of arrival.
    pub waiters: Vec<QueueEntry>,
}

/// Reads the whole queue of a lock of any recipe, holders and waiters. Of [`queue()`](crate::queue()) it differs in that
/// it knows semaphores, the holders and waiters of which stand in two queues.
///
/// As stale as the server that answers, and several reads. Cancel safe.
///
/// # Errors
/// [`Error::InvalidPath`], and those of the store.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let client = lockkeeper::connect("memory:example-lock-queue").await?;
/// use lockkeeper::{LockKind, Semaphore, lock_queue};
///
/// let permit = Semaphore::new(&client, "/quota/geocoder", 10)?.acquire_many(2).await?;
/// let queue = lock_queue(&client, "/quota/geocoder").await?;
/// assert_eq!((queue.kind, queue.holders.len()), (LockKind::Semaphore, 2));
/// assert_eq!(queue.holders[0].fencing_token, permit.fencing_token());
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub async fn lock_queue(client: &Client, path: impl IntoLockPath) -> Result<LockQueue, Error> {
    let path = path.into_lock_path()?.as_znode().clone();
    let session = client.session().await?;
    let names = match retry(|| session.get_children(&path)).await {
        Ok((names, _)) => names,
        Err(Error::NoNode { .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    if walk::is_semaphore(&path, &names) {
        let (leases, locks) = (path.join(walk::LEASES)?, path.join(walk::LOCKS)?);
        return Ok(LockQueue {
            kind: LockKind::Semaphore,
            holders: retry(|| read_queue(&session, &leases)).await?,
            waiters: retry(|| read_queue(&session, &locks)).await?,
            path,
        });
    }
    let mut queue = retry(|| read_queue(&session, &path)).await?;
    let kind = recipe_of(queue.iter().map(|entry| entry.path.name()));
    let waiters = queue.split_off(holders(&queue).len());
    let holders = queue;
    Ok(LockQueue {
        path,
        kind,
        holders,
        waiters,
    })
}
