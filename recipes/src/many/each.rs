//! [`lock_each`]: several locks, each yielded when it is granted.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lockkeeper_store::Client;

use super::batch::{Batch, guard};
use super::multi_lock::MultiLock;
#[cfg(doc)]
use crate::error::LockError;
use crate::error::Result;
use crate::guard::Guard;
use crate::options::LockOptions;
use crate::path::{IntoLockPath, LockPath};

type Granted = (LockPath, Guard);

/// Acquires several mutexes, and yields each as it is granted.
///
/// When the stream is first polled, it joins all queues in one atomic step, so callers of this function cannot deadlock
/// with each other. A caller that also waits for another lock, or already holds one, can still deadlock. See
/// [`lock_all`](crate::lock_all()).
///
/// Keep polling the stream or drop it. A lock that is granted while you do not poll blocks other contenders. A dropped
/// stream leaves the queues, and releases the locks that it has not yielded. The yielded guards are independent and
/// share one token.
///
/// # Errors
/// The call fails with [`LockError::EmptyKeys`], [`LockError::DuplicateKey`], [`LockError::BatchTooLarge`], or the
/// error of an invalid path. The stream yields the errors of [`Mutex::lock`](crate::Mutex::lock). The first error ends
/// the stream and releases the locks that were not yielded.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # use lockkeeper::lock_each;
/// # let client = lockkeeper::connect("memory:lock-each").await?;
/// let mut jobs = lock_each(&client, ["/job/1", "/job/2"])?;
/// while let Some(granted) = jobs.next().await {
///     let (job, guard) = granted?;
///     println!("{job} is mine, token {}", guard.fencing_token());
///     guard.release().await?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub fn lock_each(client: &Client, keys: impl IntoIterator<Item: IntoLockPath>) -> Result<LockEach> {
    lock_each_with(client, keys, LockOptions::new())
}

/// Acquires several mutexes within `timeout` of this call, and yields each as it is granted.
///
/// # Errors
/// The errors of [`lock_each`]. The stream can also yield [`LockError::Timeout`] with the first lock that was not
/// granted.
pub fn lock_each_timeout(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    timeout: Duration,
) -> Result<LockEach> {
    lock_each_with(client, keys, LockOptions::new().timeout(timeout))
}

/// Acquires several mutexes with the given options, and yields each as it is granted.
///
/// # Errors
/// The errors of [`lock_each`] and [`LockError::InvalidField`]. The stream can also yield [`LockError::Timeout`] with
/// the first lock that was not granted, or [`LockError::QueueFull`].
pub fn lock_each_with(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    options: LockOptions,
) -> Result<LockEach> {
    let lock = MultiLock::new(client, keys, options)?;
    let left = lock.keys.len();
    let granted = Box::pin(acquire_each(lock));
    Ok(LockEach { granted, left })
}

fn acquire_each(lock: MultiLock) -> impl Stream<Item = Result<Granted>> + Send {
    async_stream::stream! {
        let (wait_options, events) = (lock.wait_options(false), lock.options.events.as_ref());
        let session = match lock.deadline.race(lock.client.session()).await {
            Some(Ok(session)) => session,
            Some(Err(error)) => return yield Err(error.into()),
            None => return yield Err(lock.timed_out(0)),
        };
        let entering = Batch::enter(&session, &lock.keys, &wait_options, events);
        let waiters = match lock.deadline.race(entering).await {
            Some(Ok(waiters)) => waiters,
            Some(Err(error)) => return yield Err(error),
            None => return yield Err(lock.timed_out(0)),
        };
        let mut is_left = vec![true; waiters.len()];
        let waits = waiters.into_iter().enumerate();
        let waits = waits.map(|(index, mut waiter)| async move { (index, waiter.acquire().await) });
        let mut waits: FuturesUnordered<_> = waits.collect();
        loop {
            match lock.deadline.race(waits.next()).await {
                Some(None) => return,
                Some(Some((index, Ok(grant)))) => {
                    is_left[index] = false;
                    let grant = grant.expect("only a try comes back without the lock");
                    let guard = guard(&session, grant, &wait_options.data, events);
                    yield Ok((lock.keys.key(index).clone(), guard));
                }
                Some(Some((_, Err(error)))) => return yield Err(error),
                None => {
                    let first = is_left.iter().position(|is_left| *is_left);
                    return yield Err(lock.timed_out(first.unwrap_or(0)));
                }
            }
        }
    }
}

/// Stream returned by [`lock_each`].
#[must_use = "nothing is locked until it is polled"]
pub struct LockEach {
    granted: Pin<Box<dyn Stream<Item = Result<Granted>> + Send>>,
    left: usize,
}

impl LockEach {
    /// Returns the next granted lock, or `None` after the last one or after an error. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Granted>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for LockEach {
    type Item = Result<Granted>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.granted.as_mut().poll_next(context);
        match &polled {
            Poll::Ready(Some(Ok(_))) => self.left -= 1,
            Poll::Ready(_) => self.left = 0,
            Poll::Pending => {}
        }
        polled
    }
}

impl fmt::Debug for LockEach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockEach")
            .field("left", &self.left)
            .finish()
    }
}
