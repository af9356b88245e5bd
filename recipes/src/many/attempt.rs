//! [`try_lock_many`]: those locks that are free now.

use lockkeeper_store::{Client, Error, ReadOp, ReadReply, Session, ZnodePath};

use super::all::confirm;
use super::batch::{Batch, guard};
use super::keys::Keys;
use crate::contest::in_time;
#[cfg(doc)]
use crate::error::LockError;
use crate::error::Result;
use crate::guard::Guard;
use crate::metadata::EntryData;
use crate::names::Kind;
use crate::options::LockOptions;
use crate::path::{IntoLockPath, LockPath};
use crate::queue::{Waiter, any_contends, check_kind, contenders};
use crate::retry::retry;
use crate::synced::look_synced;
use crate::together::Together;

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
/// [`LockError::Timeout`] when the store has not answered in time, and those of [`try_lock_many`].
pub async fn try_lock_many_with(
    client: &Client,
    keys: impl IntoIterator<Item: IntoLockPath>,
    mut options: LockOptions,
) -> Result<TryLockMany> {
    let keys = Keys::parse(keys)?;
    let (timeout, progress) = (options.timeout, options.begin());
    let data = options.data(client.clock().unix_ms());
    keys.check_size(client, &data)?;
    let first = keys.path(0).clone();
    let timed_out = |after| progress.timed_out(client, &first, &first, after);
    in_time(
        client,
        timeout,
        attempt(client, keys, options, data),
        timed_out,
    )
    .await
}

async fn attempt(
    client: &Client,
    keys: Keys,
    options: LockOptions,
    data: EntryData,
) -> Result<TryLockMany> {
    let session = client.session().await?;
    let looks = || look(&session, &keys);
    let looks_free = look_synced(&session, keys.path(0), options.synced, looks).await?;
    let free = keys.only(|index| looks_free[index]);
    let taken = match free.is_empty() {
        true => Vec::new(),
        false => take(&session, &free, &options, data).await?,
    };
    let mut tried = TryLockMany {
        acquired: Vec::with_capacity(taken.len()),
        contended: Vec::new(),
    };
    let mut taken = taken.into_iter();
    for (key, looks_free) in keys.into_vec().into_iter().zip(looks_free) {
        match looks_free.then(|| taken.next().flatten()).flatten() {
            Some(guard) => tried.acquired.push((key, guard)),
            None => tried.contended.push(key),
        }
    }
    Ok(tried)
}

/// Finds the queues that look empty.
pub(super) async fn look(session: &Session, keys: &Keys) -> Result<Vec<bool>> {
    let reads: Vec<_> = keys
        .queues()
        .iter()
        .cloned()
        .map(ReadOp::GetChildren)
        .collect();
    let lists = retry(|| session.multi_read(reads.clone())).await?;
    let mut look_free = Vec::with_capacity(lists.len());
    for (path, list) in keys.queues().iter().zip(lists) {
        look_free.push(looks_free(session, path, list).await?);
    }
    Ok(look_free)
}

async fn looks_free(session: &Session, path: &ZnodePath, list: ReadReply) -> Result<bool> {
    match list {
        ReadReply::Children(names) => {
            check_kind(session, path, Kind::Mutex, &names).await?;
            let names: Vec<_> = contenders(session, &names)
                .into_iter()
                .map(|(_, name)| name)
                .collect();
            Ok(!any_contends(session, path, &names).await?)
        }
        ReadReply::Failed(Error::NoNode { .. }) => Ok(true),
        ReadReply::Failed(error) => Err(error.into()),
        reply => Err(Error::Protocol(format!("a list was answered {reply:?}")).into()),
    }
}

/// Joins these queues, and leaves those again in which an entry is ahead.
async fn take(
    session: &Session,
    keys: &Keys,
    options: &LockOptions,
    data: EntryData,
) -> Result<Vec<Option<Guard>>> {
    let terms = options.terms(data, true);
    let events = options.events.as_ref();
    let waiters = Batch::enter(session, keys, &terms, events).await?;
    let mut turns = Together::new(waiters.into_iter().map(Waiter::take_turn));
    let mut places: Vec<_> = (0..keys.len()).map(|_| None).collect();
    while let Some((index, turn)) = turns.next().await {
        places[index] = turn?;
    }
    let is_mine: Vec<_> = places.iter().map(Option::is_some).collect();
    let mut places: Vec<_> = places.into_iter().flatten().collect();
    // What kept one place waiting must not make a lost lock of another.
    confirm(session, &mut places).await?;
    let mut places = places.into_iter();
    let guards = is_mine.into_iter().map(|is_mine| {
        let mut place = is_mine.then(|| places.next()).flatten()?;
        Some(guard(session, place.grant(), &terms.data, events))
    });
    Ok(guards.collect())
}
