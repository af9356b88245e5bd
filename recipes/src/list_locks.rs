//! [`list_locks`]: all locks below a prefix, with their holders.

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

/// Returns entries as waiters. The head of a semaphore's queue waits although no entry blocks it.
fn waiters(entries: Vec<QueueEntry>) -> Vec<QueueEntry> {
    entries.into_iter().map(waiter).collect()
}

fn waiter(mut entry: QueueEntry) -> QueueEntry {
    entry.granted_at_ms = None;
    entry
}

/// A part of a lock's queue, as [`lock_queue_part`] has read it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockQueuePart {
    /// The lock.
    pub path: ZnodePath,
    /// Its kind; [`Mutex`](LockKind::Mutex) if there is no contender.
    pub kind: LockKind,
    /// The first entries that hold it, in order of arrival.
    pub holders: Vec<QueueEntry>,
    /// Number of all entries that hold it, by their names.
    pub holder_count: usize,
    /// Entries that wait, in order of arrival, each with its position: 0 is next.
    pub waiters: Vec<(usize, QueueEntry)>,
    /// Number of all entries that wait, by their names.
    pub waiter_count: usize,
}

/// Reads a part of the queue of a lock of any recipe: the first holders, and the waiters at these positions. It costs a
/// list of the queue's names and a read of each entry of the part, so the entries of a long queue are not read to show a
/// screen of them.
///
/// As stale as the server that answers. Entries that leave meanwhile are missing. Cancel safe.
///
/// # Errors
/// [`Error::InvalidPath`], and those of the store.
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
    // Those behind one that is no contender may hold in its place.
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

/// Returns the children of a znode, none where it does not exist.
async fn list(session: &Session, path: &ZnodePath) -> Result<Vec<String>, Error> {
    match retry(|| session.get_children(path)).await {
        Ok((names, _)) => Ok(names),
        Err(Error::NoNode { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
