//! Iterators over streams, and the observers of queues.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;

use futures_core::Stream;
use lockkeeper_store::Error;

use super::{Client, block_on, wait};
use crate::error::Result;
use crate::list_locks::{LockList, LockPrefix, LockQueue, LockQueuePart};
use crate::observe::QueueEntry;
use crate::path::IntoLockPath;

/// Turns a stream of the async recipes into an iterator that blocks for each item.
///
/// ```
/// use lockkeeper::blocking::{self, Mutex, iter};
/// use lockkeeper::{LockEvent, LockOptions, lock_events};
///
/// let client = blocking::connect("memory:blocking-iter")?;
/// let (sink, events) = lock_events();
/// let mutex = Mutex::new(&client, "/lock/orders")?;
/// mutex.lock_with(LockOptions::new().events(sink))?.release()?;
/// let events: Vec<_> = iter(events).collect(); // up to the release, after which none can follow
/// assert!(matches!(events[..], [LockEvent::Acquired { .. }, LockEvent::Released]));
/// # Ok::<(), lockkeeper::LockError>(())
/// ```
pub fn iter<S: Stream + Unpin>(stream: S) -> Iter<S> {
    Iter(stream)
}

/// Iterator over a stream, returned by [`iter`].
#[derive(Debug)]
pub struct Iter<S>(S);

impl<S: Stream + Unpin> Iterator for Iter<S> {
    type Item = S::Item;

    #[track_caller]
    fn next(&mut self) -> Option<S::Item> {
        block_on(poll_fn(|context| Pin::new(&mut self.0).poll_next(context)))
    }
}

/// Iterator of [`observe`].
pub type Snapshots = Iter<crate::Snapshots>;

/// Reads the queue of a lock, the holder first, then the waiters in order.
///
/// # Errors
/// Store errors.
#[track_caller]
pub fn queue(client: &Client, path: impl IntoLockPath) -> Result<Vec<QueueEntry>> {
    wait(crate::queue(client.as_async(), path))
}

/// Reads the queue of a lock, and reads it again whenever it changes. The iterator blocks until the next change.
///
/// # Errors
/// [`Error::InvalidPath`] from the call, and store errors from the iterator.
///
/// ```
/// # let client = lockkeeper::blocking::connect("memory:example-blocking-observe-observe")?;
/// use lockkeeper::blocking::{Mutex, observe};
///
/// let mut snapshots = observe(&client, "/lock/orders")?;
/// assert_eq!(snapshots.next(), Some(Ok(Vec::new())));
/// let guard = Mutex::new(&client, "/lock/orders")?.lock()?;
/// let queue = snapshots.next().expect("the iterator continues")?;
/// assert_eq!(queue[0].fencing_token, guard.fencing_token());
/// # Ok::<(), lockkeeper::LockError>(())
/// ```
pub fn observe(client: &Client, path: impl IntoLockPath) -> Result<Snapshots, Error> {
    crate::observe(client.as_async(), path).map(Iter)
}

/// Iterator of [`observe_locks`].
pub type LockChanges = Iter<crate::LockChanges>;

/// Lists all locks at and below a prefix.
///
/// # Errors
/// [`Error::InvalidPath`], and store errors.
///
/// ```
/// # let client = lockkeeper::blocking::connect("memory:example-blocking-list-locks")?;
/// use lockkeeper::blocking::{Mutex, list_locks};
///
/// let _guard = Mutex::new(&client, "/lock/orders")?.lock()?;
/// assert_eq!(list_locks(&client, "/")?.locks[0].path.as_str(), "/lock/orders");
/// # Ok::<(), lockkeeper::LockError>(())
/// ```
#[track_caller]
pub fn list_locks<P>(client: &Client, prefix: P) -> Result<LockList, Error>
where
    P: TryInto<LockPrefix>,
    P::Error: Into<Error>,
{
    block_on(crate::list_locks(client.as_async(), prefix))
}

/// Reads the whole queue of a lock of any recipe.
///
/// # Errors
/// [`Error::InvalidPath`], and store errors.
#[track_caller]
pub fn lock_queue(client: &Client, path: impl IntoLockPath) -> Result<LockQueue, Error> {
    block_on(crate::lock_queue(client.as_async(), path))
}

/// Reads a part of the queue of a lock of any recipe. See [`lock_queue_part`](crate::lock_queue_part()).
///
/// # Errors
/// [`Error::InvalidPath`], and store errors.
#[track_caller]
pub fn lock_queue_part(
    client: &Client,
    path: impl IntoLockPath,
    max_holders: usize,
    waiters: Range<usize>,
) -> Result<LockQueuePart, Error> {
    let part = crate::lock_queue_part(client.as_async(), path, max_holders, waiters);
    block_on(part)
}

/// Reads the locks at and below a prefix, and reads them again as they change. The iterator blocks until the next
/// change.
///
/// # Errors
/// [`Error::InvalidPath`] from the call, and store errors from the iterator.
pub fn observe_locks<P>(client: &Client, prefix: P) -> Result<LockChanges, Error>
where
    P: TryInto<LockPrefix>,
    P::Error: Into<Error>,
{
    crate::observe_locks(client.as_async(), prefix).map(Iter)
}
