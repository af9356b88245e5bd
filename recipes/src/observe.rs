//! [`queue`] and [`observe`]: the entries of a lock, as others see them.

use bytes::Bytes;
use lockkeeper_store::{Client, Error, ReadOp, ReadReply, Session, SessionId, Watcher, ZnodePath};

use crate::metadata::LockMetadata;
use crate::path::IntoLockPath;
use crate::queue::contenders;
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
    /// Its description of itself; `None` when another library wrote it.
    pub metadata: Option<LockMetadata>,
    /// The data of its znode as it is.
    pub data: Bytes,
}

/// Number of znodes that are read in one request.
const READ_AT_ONCE: usize = 256;

/// Reads the queue of a lock: the holder first, then the waiters, in order of arrival. Empty when nobody contends.
///
/// The list is as stale as the server that answers, and several reads: an entry that leaves in between is left out.
/// Of a semaphore, see [`Semaphore::holders`](crate::Semaphore::holders) and
/// [`Semaphore::waiters`](crate::Semaphore::waiters). Cancel safe.
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

async fn read_queue(session: &Session, path: &ZnodePath) -> Result<Vec<QueueEntry>, Error> {
    let names = match session.get_queue(path, 0).await {
        Ok((names, _)) => names,
        Err(Error::NoNode { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let contenders = contenders(session, &names).into_iter();
    let places = contenders.map(|(sequence, name)| Ok((sequence, path.join(name)?)));
    let places = places.collect::<Result<Vec<_>, Error>>()?;
    let mut entries = Vec::with_capacity(places.len());
    for places in places.chunks(READ_AT_ONCE) {
        let reads: Vec<_> = places
            .iter()
            .map(|(_, path)| ReadOp::GetData(path.clone()))
            .collect();
        let replies = session.multi_read(reads).await?;
        for ((sequence, path), reply) in places.iter().zip(replies) {
            // One that failed has left since the list was read; one that stays is no contender.
            if let ReadReply::Data { data, stat } = reply
                && stat.is_ephemeral()
            {
                entries.push(QueueEntry {
                    path: path.clone(),
                    sequence: *sequence,
                    fencing_token: FencingToken::new(stat.czxid),
                    owner: stat.ephemeral_owner,
                    version: stat.version,
                    metadata: LockMetadata::parse(&data),
                    data,
                });
            }
        }
    }
    Ok(entries)
}

/// Reads the queue of a lock again each time it changes. See [`queue`].
///
/// The first snapshot comes at once. Changes that come faster than the reader reads are seen
/// together. The queue is read anew after every reconnection; after the session's expiry a new one
/// is opened. The stream ends after an error.
///
/// # Errors
/// [`Error::InvalidPath`] at once; those of the store in the stream.
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

/// A change that is awaited before a queue is read again: an event, or another connection.
pub(crate) struct Change {
    session: Session,
    connection: u64,
    watcher: Watcher,
}

impl Change {
    pub(crate) fn new(session: Session, connection: u64, watcher: Watcher) -> Self {
        Self {
            session,
            connection,
            watcher,
        }
    }

    pub(crate) async fn wait(self) {
        let status = self.session.status().clone();
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

/// Arms a watch, then reads: what comes after the reading fires the watch.
async fn observe_once(
    client: &Client,
    path: &ZnodePath,
) -> Result<(Vec<QueueEntry>, Change), Error> {
    let session = client.session().await?;
    let connection = session.status().connection();
    let watcher = match session.watch_children(path).await {
        Ok((.., watcher)) => watcher,
        Err(Error::NoNode { .. }) => session.watch_exists(path).await?.1,
        Err(error) => return Err(error),
    };
    let entries = read_queue(&session, path).await?;
    let change = Change {
        session,
        connection,
        watcher,
    };
    Ok((entries, change))
}

named_stream! {
    /// The stream of [`observe`].
    Snapshots of Result<Vec<QueueEntry>, Error>;
    /// Waits for the next snapshot; `None` after an error.
    ///
    /// Cancel safe.
}
