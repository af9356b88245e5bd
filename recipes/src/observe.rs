//! [`queue`] and [`observe`]: the entries of a lock, as others see them. Observers write nothing, and join no queue.

use std::time::Duration;

use bytes::Bytes;
use lockkeeper_store::{
    Client, Error, ReadOp, ReadReply, Session, SessionId, Stat, Watcher, ZnodePath, sequence_of,
};

use crate::metadata::LockMetadata;
use crate::names::Kind;
use crate::path::IntoLockPath;
use crate::queue::in_order;
use crate::select::select;
use crate::stream::named_stream;
use crate::token::FencingToken;

/// One entry of a queue, as an observer sees it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QueueEntry {
    /// Its znode.
    pub path: ZnodePath,
    /// Its sequence number: the order of arrival.
    pub sequence: i64,
    /// The fencing token that it has, or will have.
    pub fencing_token: FencingToken,
    /// The session that it belongs to.
    pub owner: SessionId,
    /// Version of its data: the number of writes since it joined (a request, or its holder's `keep_alive`).
    pub version: i32,
    /// Time at which it joined the queue, in milliseconds since the Unix epoch, by the server's clock. A permit of a
    /// semaphore, and a reader or writer after a conversion, joins when it is granted.
    pub joined_at_ms: i64,
    /// Time at which it was granted, likewise. `None` while it waits, and where the store does not know: on ZooKeeper,
    /// of anything but permits; elsewhere of a contender of another library that has waited, and of one that was
    /// granted before a restart of the store. A [`Warden`](crate::Warden) does not ask for it.
    pub granted_at_ms: Option<i64>,
    /// Time at which an observer first saw it as a holder, where that observer has set it. No function of this library
    /// does. Where the grant is unknown, [`overdue_by`](Self::overdue_by) counts from it: late, and never early.
    pub seen_holding_at_ms: Option<i64>,
    /// Time of the last write of its data (a request, or its holder's `keep_alive`), likewise.
    pub written_at_ms: i64,
    /// Its metadata; `None` if another library wrote it.
    pub metadata: Option<LockMetadata>,
    /// The data of its znode, unparsed.
    pub data: Bytes,
}

impl QueueEntry {
    /// Creates the entry at a path, as it was read.
    pub(crate) fn read(path: ZnodePath, data: Bytes, stat: &Stat, granted: Option<i64>) -> Self {
        // A permit is created as it is granted.
        let is_permit = Kind::Lease.is_own(path.name());
        Self {
            sequence: sequence_of(path.name()).unwrap_or_default(),
            path,
            fencing_token: FencingToken::new(stat.czxid),
            owner: stat.ephemeral_owner,
            version: stat.version,
            joined_at_ms: stat.ctime,
            granted_at_ms: if is_permit { Some(stat.ctime) } else { granted },
            seen_holding_at_ms: None,
            written_at_ms: stat.mtime,
            metadata: LockMetadata::parse(&data),
            data,
        }
    }

    /// Returns the time since it joined the queue. A holder has held for this long at most: see
    /// [`held_for`](Self::held_for).
    ///
    /// `now_ms` is the caller's time, in milliseconds since the Unix epoch. The result is wrong by the difference
    /// between that clock and the server's.
    pub fn age(&self, now_ms: i64) -> Duration {
        elapsed(self.joined_at_ms, now_ms)
    }

    /// Returns the time since it was granted; `None` where that is not [known](Self::granted_at_ms).
    ///
    /// `now_ms` as for [`age`](Self::age).
    pub fn held_for(&self, now_ms: i64) -> Option<Duration> {
        Some(elapsed(self.granted_at_ms?, now_ms))
    }

    /// Returns the time by which it has held for longer than it [expected](LockMetadata::expected_hold), if it has. It
    /// counts from the grant, or from the last `keep_alive`. Where neither is known, no holder is overdue, except for an
    /// observer that sets [`seen_holding_at_ms`](Self::seen_holding_at_ms). A [`Warden`](crate::Warden) times holders on
    /// its own clock, and is never early.
    ///
    /// `now_ms` as for [`age`](Self::age).
    pub fn overdue_by(&self, now_ms: i64) -> Option<Duration> {
        let expected = self.metadata.as_ref()?.expected_hold()?;
        elapsed(self.counts_from_ms()?, now_ms).checked_sub(expected)
    }

    /// Returns the time from which on it has held for longer than it [expected](LockMetadata::expected_hold), in
    /// milliseconds since the Unix epoch, by the server's clock. `None` if it states no duration, or nothing is known
    /// from which that counts. See [`overdue_by`](Self::overdue_by).
    pub fn due_at_ms(&self) -> Option<i64> {
        let expected = self.metadata.as_ref()?.expected_hold()?.as_millis();
        let expected = i64::try_from(expected).unwrap_or(i64::MAX);
        Some(self.counts_from_ms()?.saturating_add(expected))
    }

    /// Returns the last time at which it was granted or gave a sign of life as a holder.
    fn counts_from_ms(&self) -> Option<i64> {
        let kept_alive = self.metadata.as_ref().and_then(|it| it.kept_alive);
        // Without a `keep_alive` all writes are requests for revocation, which are no sign of life.
        let held_from = self.granted_at_ms.or(self.seen_holding_at_ms);
        match kept_alive.unwrap_or(0) {
            0 => held_from,
            _ => held_from.max(Some(self.written_at_ms)),
        }
    }
}

/// Returns the time between two readings of clocks; none where they disagree about the order.
fn elapsed(since_ms: i64, now_ms: i64) -> Duration {
    let elapsed = now_ms.saturating_sub(since_ms);
    Duration::from_millis(u64::try_from(elapsed).unwrap_or(0))
}

/// Number of znodes that are read in one request: neither the request nor its reply grows with the queue.
const READ_AT_ONCE: usize = 256;

/// Reads the queue of a lock: the holder first, then the waiters, in order of arrival. Empty if there is no contender.
///
/// The list is as stale as the server that answers. A long queue takes several reads: an entry that leaves in between
/// is left out, so the result may mix two moments. Of a semaphore, see
/// [`Semaphore::holders`](crate::Semaphore::holders) and [`Semaphore::waiters`](crate::Semaphore::waiters). Cancel
/// safe.
///
/// # Errors
/// [`Error::InvalidPath`], and those of the store.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let client = lockkeeper::connect("memory:queue").await?;
/// let mutex = lockkeeper::Mutex::new(&client, "/lock/orders")?;
/// let guard = mutex.lock().await?;
/// let queue = lockkeeper::queue(&client, "/lock/orders").await?;
/// assert_eq!(queue[0].fencing_token, guard.fencing_token());
/// assert_eq!(queue[0].metadata.as_ref().unwrap().pid, Some(std::process::id()));
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub async fn queue(client: &Client, path: impl IntoLockPath) -> Result<Vec<QueueEntry>, Error> {
    let path = path.into_lock_path()?;
    let session = client.session().await?;
    read_queue(&session, path.as_znode()).await
}

pub(crate) async fn read_queue(
    session: &Session,
    path: &ZnodePath,
) -> Result<Vec<QueueEntry>, Error> {
    let names = match session.get_queue(path, 0).await {
        Ok((names, _)) => names,
        Err(Error::NoNode { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let places = in_order(session, path, &names)?;
    let entries = read_entries(session, &places).await?;
    Ok(entries.into_iter().flatten().collect())
}

/// Reads entries of a queue; `None` for those that are no contenders: one that has left since it was listed, or a
/// persistent znode.
pub(crate) async fn read_entries(
    session: &Session,
    places: &[ZnodePath],
) -> Result<Vec<Option<QueueEntry>>, Error> {
    let mut entries = Vec::with_capacity(places.len());
    for places in places.chunks(READ_AT_ONCE) {
        let reads: Vec<_> = places
            .iter()
            .map(|path| ReadOp::GetEntry(path.clone()))
            .collect();
        let replies = session.multi_read(reads).await?;
        let read = places.iter().zip(replies).map(|(path, reply)| match reply {
            ReadReply::Entry {
                data,
                stat,
                granted_at_ms,
            } if stat.is_ephemeral() => {
                Some(QueueEntry::read(path.clone(), data, &stat, granted_at_ms))
            }
            _ => None,
        });
        entries.extend(read);
    }
    Ok(entries)
}

/// Reads the queue of a lock again each time it changes. See [`queue`].
///
/// The first snapshot comes at once. Changes in quick succession are seen as one, and the latest is never missed: the
/// queue is read again after every reconnection, and in a new session after an expiry. A change of an entry's data
/// alone is not reported. Each change costs a read of the whole queue: for tools and tests, not for every client.
///
/// # Errors
/// [`Error::InvalidPath`] at once. In the stream, and as its last item: [`Error::SessionClosed`] when the client is
/// closed, and the refusals of the store.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let client = lockkeeper::connect("memory:observe").await?;
/// let mut snapshots = lockkeeper::observe(&client, "/lock/orders")?;
/// assert_eq!(snapshots.next().await, Some(Ok(Vec::new())));
/// let guard = lockkeeper::Mutex::new(&client, "/lock/orders")?.lock().await?;
/// let queue = snapshots.next().await.expect("the stream continues")?;
/// assert_eq!(queue[0].fencing_token, guard.fencing_token());
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub fn observe(client: &Client, path: impl IntoLockPath) -> Result<Snapshots, Error> {
    let path = path.into_lock_path()?;
    let client = client.clone();
    let snapshots = Box::pin(async_stream::stream! {
        let mut last: Option<Vec<QueueEntry>> = None;
        loop {
            match observe_once(&client, path.as_znode()).await {
                Ok((entries, change)) => {
                    // A reconnection, or an event of a child that is no contender, is no change.
                    if last.as_ref() != Some(&entries) {
                        last = Some(entries.clone());
                        yield Ok(entries);
                    }
                    change.wait().await;
                }
                // Both wait for the next connection, or session, at the next read.
                Err(Error::ConnectionLoss | Error::SessionExpired { .. }) => {}
                Err(error) => {
                    yield Err(error);
                    return;
                }
            }
        }
    });
    Ok(Snapshots(snapshots))
}

/// A change to await before something is read again: an event, or another connection, on which the watch may be
/// missing.
pub(crate) struct Change {
    session: Session,
    connection: u64,
    watcher: Watcher,
}

impl Change {
    /// `connection` is the number of the connection before the watch was armed.
    pub(crate) fn new(session: Session, connection: u64, watcher: Watcher) -> Self {
        Self {
            session,
            connection,
            watcher,
        }
    }

    /// Waits for the change, or the end of the session.
    pub(crate) async fn wait(self) {
        let status = self.session.status().clone();
        // Subscribed before the comparison: a reconnection between the two is seen by one of them.
        let mut states = status.states();
        if status.connection() != self.connection || status.end().is_some() {
            return;
        }
        let reconnected = async {
            while let Some(state) = states.next().await {
                if state.is_final() || status.connection() != self.connection {
                    return;
                }
            }
        };
        select(self.watcher, reconnected).await;
    }
}

/// Reads the queue once. The watch is armed before the read, so a change after the read fires it.
async fn observe_once(
    client: &Client,
    path: &ZnodePath,
) -> Result<(Vec<QueueEntry>, Change), Error> {
    let session = client.session().await?;
    let connection = session.status().connection();
    let (_, watcher) = watch_names(&session, path).await?;
    let entries = read_queue(&session, path).await?;
    let change = Change {
        session,
        connection,
        watcher,
    };
    Ok((entries, change))
}

/// Lists a znode's children and watches the list; of a znode that does not exist, its creation is watched.
pub(crate) async fn watch_names(
    session: &Session,
    path: &ZnodePath,
) -> Result<(Vec<String>, Watcher), Error> {
    loop {
        match session.watch_children(path).await {
            Ok((names, _, watcher)) => return Ok((names, watcher)),
            Err(Error::NoNode { .. }) => {}
            Err(error) => return Err(error),
        }
        // Created in between, it needs the other watch: this one would not fire for its children.
        if let (None, watcher) = session.watch_exists(path).await? {
            return Ok((Vec::new(), watcher));
        }
    }
}

named_stream! {
    /// The stream of [`observe`].
    Snapshots of Result<Vec<QueueEntry>, Error>;
    /// Waits for the next snapshot; `None` after an error.
    ///
    /// Cancel safe: no change is lost.
}
