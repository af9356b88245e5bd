//! [`holders`]: the entries of a queue that hold the lock.

use lockkeeper_store::{Error, Session, ZnodePath};

use crate::observe::QueueEntry;
use crate::queue::{count_holders, in_order};
use crate::retry::retry;

/// Returns the entries that hold the lock, judged by their names: the head of the queue or, if the head is a reader,
/// all readers ahead of the first entry that is not a reader. In a semaphore's queue `leases`, all entries are holders.
///
/// `queue` must be in order, as returned by [`queue`](crate::queue()) and [`observe`](crate::observe()).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let client = lockkeeper::connect("memory:holders").await?;
/// let guard = lockkeeper::Mutex::new(&client, "/lock/orders")?.lock().await?;
/// let queue = lockkeeper::queue(&client, "/lock/orders").await?;
/// let holders = lockkeeper::holders(&queue);
/// assert_eq!(holders[0].fencing_token, guard.fencing_token());
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub fn holders(queue: &[QueueEntry]) -> &[QueueEntry] {
    &queue[..count_holders(queue.iter().map(|entry| entry.path.name()))]
}

/// A lock's entries in order. For a semaphore, `queue` contains the held permits and `acquirers` the waiters.
pub(crate) struct Survey {
    queue: Vec<ZnodePath>,
    acquirers: Vec<ZnodePath>,
}

impl Survey {
    /// Returns the holders. A persistent znode can have a holder's name but is not a contender, so we skip it and check
    /// the entries behind it.
    pub(crate) async fn into_holders(mut self, session: &Session) -> Result<Vec<ZnodePath>, Error> {
        loop {
            let count = count_holders(self.queue.iter().map(ZnodePath::name));
            let mut stays = Vec::with_capacity(count);
            for holder in &self.queue[..count] {
                let stat = retry(|| session.exists(holder)).await?;
                stays.push(stat.is_some_and(|stat| !stat.is_ephemeral()));
            }
            if !stays.contains(&true) {
                self.queue.truncate(count);
                return Ok(self.queue);
            }
            let mut stays = stays.into_iter();
            self.queue.retain(|_| !stays.next().unwrap_or(false));
        }
    }

    pub(crate) fn into_all(self) -> impl Iterator<Item = ZnodePath> {
        self.queue.into_iter().chain(self.acquirers)
    }
}

pub(crate) const LEASES: &str = "leases";
const ACQUIRERS: &str = "locks";

pub(crate) async fn survey(session: &Session, path: &ZnodePath) -> Result<Survey, Error> {
    let names = children(session, path).await?;
    if !names.iter().any(|name| name == LEASES || name == ACQUIRERS) {
        let queue = in_order(session, path, &names)?;
        let acquirers = Vec::new();
        return Ok(Survey { queue, acquirers });
    }
    let (leases, locks) = (path.join(LEASES)?, path.join(ACQUIRERS)?);
    Ok(Survey {
        queue: in_order(session, &leases, &children(session, &leases).await?)?,
        acquirers: in_order(session, &locks, &children(session, &locks).await?)?,
    })
}

async fn children(session: &Session, path: &ZnodePath) -> Result<Vec<String>, Error> {
    match session.get_children(path).await {
        Ok((names, _)) => Ok(names),
        Err(Error::NoNode { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
