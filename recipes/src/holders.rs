//! Who holds a lock, by the names of those in its queue.

use lockkeeper_store::{Error, SHARED_MARK, Session, ZnodePath};

use crate::observe::QueueEntry;
use crate::queue::contenders;

/// Those in a queue who hold, by the rule of the recipe that their names tell: the head of the
/// queue; with a reader at the head all readers up to the first other; of a semaphore's `leases`
/// all.
///
/// `queue` is as [`queue`](crate::queue()) and [`observe`](crate::observe()) answer it, in order.
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
    &queue[..count(queue.iter().map(|entry| entry.path.name()))]
}

/// How many of those in a queue hold: they are its first.
fn count<'a>(names: impl IntoIterator<Item = &'a str>) -> usize {
    let mut names = names.into_iter();
    match names.next() {
        None => 0,
        Some(head) if is_shared(head) => 1 + names.take_while(|name| is_shared(name)).count(),
        Some(_) => 1,
    }
}

/// Whether one of this name holds beside others: a reader (kazoo's, too) or a semaphore's permit.
pub(crate) fn is_shared(name: &str) -> bool {
    [SHARED_MARK, "__rlock__", "-lease-"]
        .iter()
        .any(|mark| name.contains(mark))
}

/// Those in a lock's queue, in order. Of a semaphore those who have permits; who waits for permits
/// stands in a queue of its own.
pub(crate) struct Survey {
    queue: Vec<ZnodePath>,
    acquirers: Vec<ZnodePath>,
}

impl Survey {
    /// Those who hold. Znodes that only have the names of contenders are asked about as far as they stand
    /// among them.
    pub(crate) async fn into_holders(mut self, session: &Session) -> Result<Vec<ZnodePath>, Error> {
        loop {
            let count = count(self.queue.iter().map(ZnodePath::name));
            let mut stays = Vec::with_capacity(count);
            for holder in &self.queue[..count] {
                let stat = persistently(|| session.exists(holder)).await?;
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

/// The parts of a semaphore, below its path.
pub(crate) const LEASES: &str = "leases";
const ACQUIRERS: &str = "locks";

/// Lists those in a lock's queue.
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

/// The paths of the contenders among the children of a queue, by their names and in their order.
pub(crate) fn in_order(
    session: &Session,
    parent: &ZnodePath,
    names: &[String],
) -> Result<Vec<ZnodePath>, Error> {
    let contenders = contenders(session, names).into_iter();
    contenders.map(|(_, name)| parent.join(name)).collect()
}

/// Those of a queue, in their order, who hold.
pub(crate) fn holding(mut queue: Vec<ZnodePath>) -> Vec<ZnodePath> {
    queue.truncate(count(queue.iter().map(ZnodePath::name)));
    queue
}

/// Asks again for as long as the connection breaks under the question. A session's end is an error
/// of its own, so that this comes to an end.
pub(crate) async fn persistently<T, F>(mut ask: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    loop {
        match ask().await {
            Err(Error::ConnectionLoss) => {}
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(names: &[&str]) -> usize {
        count(names.iter().copied())
    }

    #[test]
    fn the_names_tell_who_holds() {
        assert_eq!(held(&[]), 0);
        assert_eq!(held(&["a-lock-0", "b-lock-1"]), 1);
        assert_eq!(held(&["a-latch-0", "b-latch-1"]), 1);
        assert_eq!(held(&["a-__WRIT__0", "b-__READ__1"]), 1);
        assert_eq!(held(&["a-__READ__0", "b-__READ__1", "c-__WRIT__2"]), 2);
        let behind = ["a-__READ__0", "b-__WRIT__1", "c-__READ__2"];
        assert_eq!(held(&behind), 1, "who is behind a writer waits");
        assert_eq!(held(&["a-lease-4", "b-lease-7", "c-lease-9"]), 3);
        assert_eq!(held(&["a__rlock__0", "b__rlock__1", "c__lock__2"]), 2);
        assert_eq!(held(&["lock-0", "lock-1"]), 1);
    }
}
