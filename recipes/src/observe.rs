//! [`queue`] and [`observe`]: the entries of a lock as seen by observers, which write nothing.

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

/// One entry of a queue as seen by an observer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QueueEntry {
    /// Path of its znode.
    pub path: ZnodePath,
    /// Sequence number. It gives the order of arrival.
    pub sequence: i64,
    /// Fencing token of the entry, valid from its grant on.
    pub fencing_token: FencingToken,
    /// Session that owns the entry.
    pub owner: SessionId,
    /// Version of the data. Revocation requests and `keep_alive` increment it.
    pub version: i32,
    /// Time of joining the queue, in milliseconds since the Unix epoch, by the server's clock (on etcd, by the
    /// contender's clock). For a semaphore's permit and for a converted reader or writer, this is the time of the
    /// grant.
    pub joined_at_ms: i64,
    /// Time of the grant, with the unit and clock of `joined_at_ms`. `None` while the entry waits, or if the store does
    /// not know the time. ZooKeeper only knows it for permits. Other stores do not know it for grants before their
    /// restart.
    pub granted_at_ms: Option<i64>,
    /// Time at which an observer first saw the entry as a holder, in milliseconds since the Unix epoch. The library
    /// never sets this field, but you can. If the grant time is unknown, [`overdue_by`](Self::overdue_by) counts from
    /// this time.
    pub seen_holding_at_ms: Option<i64>,
    /// Time of the last write of the data, in milliseconds since the Unix epoch, by the server's clock. 0 on etcd.
    pub written_at_ms: i64,
    /// The entry's metadata. `None` if another library wrote the entry.
    pub metadata: Option<LockMetadata>,
    /// Unparsed data of the znode.
    pub data: Bytes,
}

impl QueueEntry {
    pub(crate) fn read(path: ZnodePath, data: Bytes, stat: &Stat, granted: Option<i64>) -> Self {
        // A permit's znode is created at the grant.
        let is_permit = Kind::Lease.is_own(path.name());
        let metadata = LockMetadata::parse(&data);
        let queued_at_ms = metadata.as_ref().and_then(|it| it.queued_at_ms);
        // etcd has no clock.
        let joined_at_ms = match stat.ctime {
            0 => queued_at_ms.unwrap_or(0),
            ctime => ctime,
        };
        Self {
            sequence: sequence_of(path.name()).unwrap_or_default(),
            path,
            fencing_token: FencingToken::new(stat.czxid),
            owner: stat.ephemeral_owner,
            version: stat.version,
            joined_at_ms,
            granted_at_ms: if is_permit {
                Some(joined_at_ms)
            } else {
                granted
            },
            seen_holding_at_ms: None,
            written_at_ms: stat.mtime,
            metadata,
            data,
        }
    }

    /// Returns the time since the entry joined the queue. A holder has held for at most this long.
    ///
    /// `now_ms` is your current time, in milliseconds since the Unix epoch. The result is off by the difference between
    /// your clock and the server's clock.
    pub fn age(&self, now_ms: i64) -> Duration {
        elapsed(self.joined_at_ms, now_ms)
    }

    /// Returns the time since the grant, or `None` if the [grant time](Self::granted_at_ms) is unknown.
    pub fn held_for(&self, now_ms: i64) -> Option<Duration> {
        Some(elapsed(self.granted_at_ms?, now_ms))
    }

    /// Returns by how much the hold exceeds its [expected duration](LockMetadata::expected_hold), or `None` if it does
    /// not. The hold is measured from the last `keep_alive` or, without one, from the grant. If the grant time is
    /// unknown, [`seen_holding_at_ms`](Self::seen_holding_at_ms) is used instead.
    pub fn overdue_by(&self, now_ms: i64) -> Option<Duration> {
        let expected = self.metadata.as_ref()?.expected_hold()?;
        elapsed(self.counts_from_ms()?, now_ms).checked_sub(expected)
    }

    /// Returns the time at which the hold becomes overdue, in milliseconds since the Unix epoch, by the server's clock.
    /// `None` if the expected duration or the start of the hold is unknown.
    pub fn due_at_ms(&self) -> Option<i64> {
        let expected = self.metadata.as_ref()?.expected_hold()?.as_millis();
        let expected = i64::try_from(expected).unwrap_or(i64::MAX);
        Some(self.counts_from_ms()?.saturating_add(expected))
    }

    fn counts_from_ms(&self) -> Option<i64> {
        let kept_alive = self.metadata.as_ref().and_then(|it| it.kept_alive);
        // Without a `keep_alive`, all writes are revocation requests by other clients, so the time of the last write is
        // not a sign of life.
        let held_from = self.granted_at_ms.or(self.seen_holding_at_ms);
        match kept_alive.unwrap_or(0) {
            0 => held_from,
            // On etcd the time of the `keep_alive` is unknown.
            _ if self.written_at_ms == 0 => None,
            _ => held_from.max(Some(self.written_at_ms)),
        }
    }
}

fn elapsed(since_ms: i64, now_ms: i64) -> Duration {
    let elapsed = now_ms.saturating_sub(since_ms);
    Duration::from_millis(u64::try_from(elapsed).unwrap_or(0))
}

/// Number of entries per request. The limit keeps requests and replies small.
const READ_AT_ONCE: usize = 256;

/// Reads the queue of a lock, the holder first, then the waiters in order of arrival. Empty if there is no contender.
///
/// The result can be as outdated as the server that answers. It is not an atomic snapshot, because a long queue takes
/// several reads. For semaphores use [`lock_queue`](crate::lock_queue()). Cancel safe.
///
/// # Errors
/// [`Error::InvalidPath`], and store errors.
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

/// Reads entries. Returns `None` for entries that have left, and for persistent znodes.
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

/// Reads the queue of a lock again each time it changes.
///
/// Quick changes may be merged, but the latest change is never missed, even after reconnections and expired sessions.
/// Changes of an entry's data are not reported. Each change of the queue costs a read of the whole queue, so use this
/// function in tools and tests.
///
/// # Errors
/// The call fails with [`Error::InvalidPath`]. The stream ends with [`Error::SessionClosed`] if the client is closed,
/// or with the store's error if it refuses a request.
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
                    if last.as_ref() != Some(&entries) {
                        last = Some(entries.clone());
                        yield Ok(entries);
                    }
                    change.wait().await;
                }
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

/// A wait for a watch event or for a new connection, which may lack the watch.
pub(crate) struct Change {
    session: Session,
    connection: u64,
    watcher: Watcher,
}

impl Change {
    /// `connection` is the connection number that was read before the watch was armed.
    pub(crate) fn new(session: Session, connection: u64, watcher: Watcher) -> Self {
        Self {
            session,
            connection,
            watcher,
        }
    }

    pub(crate) async fn wait(self) {
        let status = self.session.status().clone();
        // Subscribe before the comparison, so that no reconnection is missed.
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

/// Lists and watches a znode's children, or watches its creation if it does not exist.
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
        // If the znode was created in the meantime, watch its children, because an exists watch does not fire for them.
        if let (None, watcher) = session.watch_exists(path).await? {
            return Ok((Vec::new(), watcher));
        }
    }
}

named_stream! {
    /// Stream returned by [`observe`].
    Snapshots of Result<Vec<QueueEntry>, Error>;
    /// Waits for the next snapshot. Returns `None` after an error.
    ///
    /// Cancel safe: no change is lost.
}
