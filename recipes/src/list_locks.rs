//! [`list_locks`]: lists all locks below a prefix, with their holders.

mod changes;
mod observe;
mod prefix;
mod walk;

use std::ops::Range;

use lockkeeper_store::{Client, Error, Session, ZnodePath};

use crate::holders::holders;
use crate::names::{LockKind, recipe_of};
use crate::observe::{QueueEntry, read_entries, read_queue};
use crate::path::IntoLockPath;
use crate::queue::{count_holders, in_order};
use crate::retry::retry;

pub(crate) use changes::Changes;
pub use observe::{LockChange, LockChanges, observe_locks};
pub use prefix::LockPrefix;
pub(crate) use walk::{Root, Walk};

/// A lock with contenders, as read by [`list_locks`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Path of the lock.
    pub path: ZnodePath,
    /// Kind of the lock.
    pub kind: LockKind,
    /// The entries that hold the lock, in order of arrival, one per reader or permit. Empty if all contenders wait, for
    /// example at a semaphore without permits.
    pub holders: Vec<QueueEntry>,
    /// Number of other contenders. Only names are counted, so persistent znodes with such names count too.
    pub waiters: usize,
}

/// Result of [`list_locks`].
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LockList {
    /// Locks with at least one contender, ordered by path.
    pub locks: Vec<LockInfo>,
    /// Znodes that could not be read, with the errors. The list contains no locks at or below them.
    pub unreadable: Vec<(ZnodePath, Error)>,
}

/// Lists all locks at and below a prefix, except locks without contenders. Locks of other libraries are included if we
/// recognize the names of their znodes.
///
/// The call batches its reads, and reads only the holders' data. The list is not an atomic snapshot. A lock that
/// changes hands during the call may be missing, and the list can be as outdated as the server that answers.
///
/// Cancel safe: it writes nothing.
///
/// # Errors
/// [`Error::InvalidPath`], and store errors. If the store refuses to read a znode, the call still succeeds, and
/// [`unreadable`](LockList::unreadable) contains the error.
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
    list.locks
        .sort_unstable_by(|one, other| one.path.cmp(&other.path));
    list.unreadable
        .sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(list)
}

/// The contenders of one lock, as read by [`lock_queue`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockQueue {
    /// Path of the lock.
    pub path: ZnodePath,
    /// Kind of the lock. [`Mutex`](LockKind::Mutex) if there is no contender.
    pub kind: LockKind,
    /// The entries that hold the lock, in order of arrival. For a semaphore, one per permit.
    pub holders: Vec<QueueEntry>,
    /// The entries that wait, in order of arrival.
    pub waiters: Vec<QueueEntry>,
}

/// Reads the whole queue of a lock of any recipe. Unlike [`queue()`](crate::queue()), it supports semaphores, which
/// keep holders and waiters in two queues.
///
/// Sends several reads. The result may be as outdated as the server that answers. Cancel safe.
///
/// # Errors
/// [`Error::InvalidPath`], and store errors.
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
    let names = list(&session, &path).await?;
    if walk::is_semaphore(&path, &names) {
        let (leases, locks) = (path.join(walk::LEASES)?, path.join(walk::LOCKS)?);
        return Ok(LockQueue {
            kind: LockKind::Semaphore,
            holders: retry(|| read_queue(&session, &leases)).await?,
            waiters: waiters(retry(|| read_queue(&session, &locks)).await?),
            path,
        });
    }
    let mut queue = retry(|| read_queue(&session, &path)).await?;
    let kind = recipe_of(queue.iter().map(|entry| entry.path.name()));
    let waiting = queue.split_off(holders(&queue).len());
    let holders = queue;
    Ok(LockQueue {
        path,
        kind,
        holders,
        waiters: waiters(waiting),
    })
}

/// Clears the grant times, because the head of a semaphore's queue has a grant time although it waits.
fn waiters(entries: Vec<QueueEntry>) -> Vec<QueueEntry> {
    entries.into_iter().map(waiter).collect()
}

fn waiter(mut entry: QueueEntry) -> QueueEntry {
    entry.granted_at_ms = None;
    entry
}

/// A part of a lock's queue, as read by [`lock_queue_part`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockQueuePart {
    /// Path of the lock.
    pub path: ZnodePath,
    /// Kind of the lock. [`Mutex`](LockKind::Mutex) if there is no contender.
    pub kind: LockKind,
    /// The first holders, in order of arrival.
    pub holders: Vec<QueueEntry>,
    /// Number of all holders, by the names of their znodes.
    pub holder_count: usize,
    /// The requested waiters, in order of arrival, each with its position. The waiter at position 0 is next.
    pub waiters: Vec<(usize, QueueEntry)>,
    /// Number of all waiters, by the names of their znodes.
    pub waiter_count: usize,
}

/// Reads the first holders of a lock of any recipe, and the waiters at the given positions. Use it to show one page of
/// a long queue.
///
/// The result can be as outdated as the server that answers. Entries that leave during the call are missing. Cancel
/// safe.
///
/// # Errors
/// [`Error::InvalidPath`], and store errors.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let client = lockkeeper::connect("memory:example-lock-queue-part").await?;
/// use lockkeeper::{Mutex, lock_queue_part};
///
/// let guard = Mutex::new(&client, "/lock/orders/4711")?.lock().await?;
/// let part = lock_queue_part(&client, "/lock/orders/4711", 10, 0..50).await?;
/// assert_eq!(part.holders[0].fencing_token, guard.fencing_token());
/// assert_eq!((part.holder_count, part.waiter_count), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub async fn lock_queue_part(
    client: &Client,
    path: impl IntoLockPath,
    max_holders: usize,
    waiters: Range<usize>,
) -> Result<LockQueuePart, Error> {
    let path = path.into_lock_path()?.as_znode().clone();
    let session = client.session().await?;
    let names = list(&session, &path).await?;
    let (kind, mut queue, acquirers) = match walk::is_semaphore(&path, &names) {
        true => {
            let (leases, locks) = (path.join(walk::LEASES)?, path.join(walk::LOCKS)?);
            let permits = in_order(&session, &leases, &list(&session, &leases).await?)?;
            let waiting = in_order(&session, &locks, &list(&session, &locks).await?)?;
            (LockKind::Semaphore, permits, Some(waiting))
        }
        false => {
            let queue = in_order(&session, &path, &names)?;
            let kind = recipe_of(queue.iter().map(ZnodePath::name));
            (kind, queue, None)
        }
    };
    // If an entry turns out not to be a contender, the next entry may be a holder, so count again.
    let (holders, holder_count) = loop {
        let count = count_holders(queue.iter().map(ZnodePath::name));
        let shown = count.min(max_holders);
        let read = retry(|| read_entries(&session, &queue[..shown])).await?;
        if read.iter().all(Option::is_some) {
            break (read.into_iter().flatten().collect(), count);
        }
        let mut read = read.into_iter();
        queue.retain(|_| read.next().is_none_or(|entry| entry.is_some()));
    };
    let waiting = acquirers.unwrap_or_else(|| queue.split_off(holder_count));
    let end = waiters.end.min(waiting.len());
    let from = waiters.start.min(end);
    let read = retry(|| read_entries(&session, &waiting[from..end])).await?;
    let positions = (from..end).zip(read);
    Ok(LockQueuePart {
        path,
        kind,
        holders,
        holder_count,
        waiters: positions
            .filter_map(|(position, entry)| Some((position, waiter(entry?))))
            .collect(),
        waiter_count: waiting.len(),
    })
}

async fn list(session: &Session, path: &ZnodePath) -> Result<Vec<String>, Error> {
    match retry(|| session.get_children(path)).await {
        Ok((names, _)) => Ok(names),
        Err(Error::NoNode { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
