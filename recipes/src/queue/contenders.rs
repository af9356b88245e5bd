//! Finds contenders among the children of a queue.
//!
//! Contenders are ephemeral, so a persistent znode with a contender's name must not block a lock. If the store only
//! lists names, we may have to read some of the znodes.

use lockkeeper_store::{Error, Session, Stat, ZnodePath};

use super::Queue;
use super::order::blocks;
use crate::error::{LockError, Result};
use crate::names::{Kind, contender_number, has_unique_id};
use crate::retry::retry;

/// Number of requests in flight at once. Bounds the memory for queues with many children (invariant 10).
const ASKED_AT_ONCE: usize = 256;

pub(crate) fn contenders<'a>(session: &Session, children: &'a [String]) -> Vec<(i64, &'a str)> {
    let numbered = children.iter().filter_map(|child| {
        let number = contender_number(session, child)?;
        Some((number, child.as_str()))
    });
    let mut contenders: Vec<_> = numbered.collect();
    contenders.sort_unstable();
    contenders
}

pub(crate) fn in_order(
    session: &Session,
    parent: &ZnodePath,
    names: &[String],
) -> Result<Vec<ZnodePath>, Error> {
    let contenders = contenders(session, names).into_iter();
    contenders.map(|(_, name)| parent.join(name)).collect()
}

/// `is_index` is true if the names are from the store's index, which only contains ephemeral znodes.
pub(crate) async fn is_taken(queue: Queue<'_>, names: &[String], is_index: bool) -> Result<bool> {
    let Queue {
        session,
        path,
        kind,
    } = queue;
    check_kind(session, path, kind, names).await?;
    let contenders = contenders(session, names).into_iter();
    let blocking: Vec<_> = contenders
        .map(|(_, name)| name)
        .filter(|name| blocks(name, kind.blockers()))
        .collect();
    Ok(match is_index {
        true => !blocking.is_empty(),
        false => any_contends(session, path, &blocking).await?,
    })
}

pub(crate) async fn looks_taken(queue: Queue<'_>, synced: bool) -> Result<bool> {
    // Any entry blocks an exclusive contender, so read only the first one. For a reader, list all entries (limit 0),
    // because any number of readers may be ahead of the first writer.
    let limit = usize::from(queue.kind.is_exclusive());
    match list_queue(queue.session, queue.path, limit, synced).await {
        Ok((names, is_index)) => is_taken(queue, &names, is_index).await,
        Err(Error::NoNode { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns true if one of these names is a contender. A name with a unique id counts as a contender without reading its
/// znode, so that trying a held lock costs one request.
pub(crate) async fn any_contends(
    session: &Session,
    queue: &ZnodePath,
    names: &[&str],
) -> Result<bool, Error> {
    if names.iter().any(|name| has_unique_id(name)) {
        return Ok(true);
    }
    Ok(first_ephemeral(session, queue, names).await?.is_some())
}

pub(crate) async fn check_kind(
    session: &Session,
    queue: &ZnodePath,
    expected: Kind,
    children: &[String],
) -> Result<()> {
    let children = children.iter().map(String::as_str);
    let strangers: Vec<_> = children
        .filter(|child| expected.foreign_recipe(child).is_some())
        .collect();
    // The children `locks` and `leases` identify a semaphore even though they are persistent. A numbered child only
    // identifies a recipe if it is ephemeral.
    let part = strangers.iter().find(|child| !is_numbered(child));
    let stranger = match part {
        Some(part) => Some(*part),
        None => first_ephemeral(session, queue, &strangers).await?,
    };
    stranger.map_or(Ok(()), |stranger| check_name(queue, expected, stranger))
}

/// Returns an error if the child's name belongs to another recipe. The child must be ephemeral or part of a semaphore.
pub(crate) fn check_name(queue: &ZnodePath, expected: Kind, child: &str) -> Result<()> {
    match expected.foreign_recipe(child) {
        None => Ok(()),
        Some(kind) => Err(LockError::WrongKind {
            path: queue.clone(),
            expected: expected.title(),
            found: child.to_owned(),
            kind,
        }),
    }
}

fn is_numbered(child: &str) -> bool {
    lockkeeper_store::sequence_of(child).is_some()
}

pub(crate) async fn first_ephemeral<'a>(
    session: &Session,
    queue: &ZnodePath,
    names: &[&'a str],
) -> Result<Option<&'a str>, Error> {
    let first = first_such(session, queue, names, Stat::is_ephemeral).await?;
    Ok(first.map(|index| names[index]))
}

pub(crate) async fn first_such(
    session: &Session,
    queue: &ZnodePath,
    names: &[impl AsRef<str>],
    wanted: impl Fn(&Stat) -> bool,
) -> Result<Option<usize>, Error> {
    for (chunk, names) in names.chunks(ASKED_AT_ONCE).enumerate() {
        let stats = retry(|| stats(session, queue, names)).await?;
        let found = stats
            .iter()
            .position(|stat| stat.as_ref().is_some_and(&wanted));
        if let Some(index) = found {
            return Ok(Some(chunk * ASKED_AT_ONCE + index));
        }
    }
    Ok(None)
}

async fn stats(
    session: &Session,
    queue: &ZnodePath,
    names: &[impl AsRef<str>],
) -> Result<Vec<Option<Stat>>, Error> {
    let asked = names
        .iter()
        .map(|name| Ok(session.exists(&queue.join(name.as_ref())?)))
        .collect::<Result<Vec<_>, Error>>()?;
    let mut stats = Vec::with_capacity(names.len());
    for answer in asked {
        stats.push(answer.await?);
    }
    Ok(stats)
}

/// Calls [`Session::get_queue`]. If `synced` is true, the server first catches up with everything committed before the
/// call.
pub(crate) async fn list_queue(
    session: &Session,
    queue: &ZnodePath,
    limit: usize,
    synced: bool,
) -> Result<(Vec<String>, bool), Error> {
    retry(|| async {
        // Send both requests together. The server answers in FIFO order, so the sync costs no extra round trip.
        let barrier = synced.then(|| session.sync(queue));
        let list = session.get_queue(queue, limit);
        if let Some(barrier) = barrier {
            match barrier.await {
                // The sync concerns the whole server, so a missing path does not matter.
                Ok(()) | Err(Error::NoNode { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        list.await
    })
    .await
}

#[cfg(test)]
mod tests {
    use lockkeeper_store::{CreateMode, connect};

    use super::*;

    #[test]
    fn the_first_of_many_children_is_found_by_its_place() {
        pollster::block_on(async {
            let client = connect("memory:").await.unwrap();
            let session = client.session().await.unwrap();
            let queue: ZnodePath = "/first-such".parse().unwrap();
            let made = session.create(&queue, "", CreateMode::Persistent);
            made.await.unwrap();
            let names: Vec<_> = (0..3 * ASKED_AT_ONCE)
                .map(|place| format!("n-{place}"))
                .collect();
            let places = [2 * ASKED_AT_ONCE + 1, ASKED_AT_ONCE + 9, ASKED_AT_ONCE, 7];
            assert_eq!(
                first_such(&session, &queue, &names, Stat::is_ephemeral)
                    .await
                    .unwrap(),
                None
            );
            for place in places {
                let child = queue.join(&names[place]).unwrap();
                let ahead = queue.join(&names[place - 1]).unwrap();
                session
                    .create(&ahead, "", CreateMode::Persistent)
                    .await
                    .unwrap();
                session
                    .create(&child, "", CreateMode::Ephemeral)
                    .await
                    .unwrap();
                let found = first_such(&session, &queue, &names, Stat::is_ephemeral).await;
                assert_eq!(found.unwrap(), Some(place));
            }
        });
    }

    #[test]
    fn a_part_of_a_semaphore_tells_the_recipe_and_a_numbered_child_only_if_it_is_ephemeral() {
        pollster::block_on(async {
            let client = connect("memory:").await.unwrap();
            let session = client.session().await.unwrap();
            let queue: ZnodePath = "/check-kind".parse().unwrap();
            let numbered = "x-latch-0000000003";
            let child = queue.join(numbered).unwrap();
            session
                .create_all(&queue, CreateMode::Persistent)
                .await
                .unwrap();
            let check = async |child: &str| {
                let children = [child.to_owned()];
                check_kind(&session, &queue, Kind::Mutex, &children).await
            };
            for (child, is_refused) in [("leases", true), ("locks", true), (numbered, false)] {
                assert_eq!(check(child).await.is_err(), is_refused, "{child}, missing");
            }
            session
                .create(&child, "", CreateMode::Persistent)
                .await
                .unwrap();
            assert!(check(numbered).await.is_ok(), "persistent");
            session.delete(&child, None).await.unwrap();
            session
                .create(&child, "", CreateMode::Ephemeral)
                .await
                .unwrap();
            let refused = check(numbered).await.unwrap_err();
            assert!(matches!(refused, LockError::WrongKind { .. }), "{refused}");
        });
    }
}
