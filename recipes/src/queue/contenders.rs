//! Contenders among the children of a queue.
//!
//! A name alone does not make a contender: contenders are ephemeral, and a persistent znode must block no lock. A store's
//! index holds ephemeral znodes only; over a list of names, a request tells.

use lockkeeper_store::{Error, Session, Stat, ZnodePath};

use super::Queue;
use super::order::blocks;
use crate::error::{LockError, Result};
use crate::names::{Kind, contender_number, has_unique_id};
use crate::retry::retry;

/// Number of requests that are sent before the first reply is awaited: a bound, however many znodes stand in a folder
/// (invariant 10).
const ASKED_AT_ONCE: usize = 256;

/// Returns those of a queue's children that have the names of contenders, in order.
pub(crate) fn contenders<'a>(session: &Session, children: &'a [String]) -> Vec<(i64, &'a str)> {
    let numbered = children.iter().filter_map(|child| {
        let number = contender_number(session, child)?;
        Some((number, child.as_str()))
    });
    let mut contenders: Vec<_> = numbered.collect();
    contenders.sort_unstable();
    contenders
}

/// Returns the paths of the contenders among the children of a queue, by their names and in their order.
pub(crate) fn in_order(
    session: &Session,
    parent: &ZnodePath,
    names: &[String],
) -> Result<Vec<ZnodePath>, Error> {
    let contenders = contenders(session, names).into_iter();
    contenders.map(|(_, name)| parent.join(name)).collect()
}

/// Returns true if one of these children of a queue would block a new contender. `is_index`: they are from the store's
/// index, which has ephemeral znodes only.
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

/// Returns true if a list of the queue shows a contender that would block a new one.
pub(crate) async fn looks_taken(queue: Queue<'_>, synced: bool) -> Result<bool> {
    // For an exclusive contender the head alone tells; ahead of the first writer may be any number of readers. 0: all.
    let limit = usize::from(queue.kind.is_exclusive());
    match list_queue(queue.session, queue.path, limit, synced).await {
        Ok((names, is_index)) => is_taken(queue, &names, is_index).await,
        // Never used, or reaped.
        Err(Error::NoNode { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns true if one of these children, which have the names of contenders, is a contender. A name with a unique id is
/// believed, so that trying a held lock costs one request.
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

/// Refuses a queue in which an entry belongs to another kind of recipe.
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
    // A semaphore's `locks` and `leases` are persistent, and tell the recipe by their names; a numbered entry counts only
    // if it is ephemeral.
    let part = strangers.iter().find(|child| !is_numbered(child));
    let stranger = match part {
        Some(part) => Some(*part),
        None => first_ephemeral(session, queue, &strangers).await?,
    };
    stranger.map_or(Ok(()), |stranger| check_name(queue, expected, stranger))
}

/// Refuses a child, known to be ephemeral or part of a semaphore, that belongs to another kind of recipe.
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

/// Returns the first of these children that exists and is ephemeral.
pub(crate) async fn first_ephemeral<'a>(
    session: &Session,
    queue: &ZnodePath,
    names: &[&'a str],
) -> Result<Option<&'a str>, Error> {
    let first = first_such(session, queue, names, Stat::is_ephemeral).await?;
    Ok(first.map(|index| names[index]))
}

/// Returns the index of the first of these children that exists with a wanted state.
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

/// Reads the states of several children in one round trip: all requests are sent before the first reply is awaited.
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

/// Lists a queue as [`Session::get_queue`] does; if `synced`, on a server that has first caught up with everything
/// committed before the call.
pub(crate) async fn list_queue(
    session: &Session,
    queue: &ZnodePath,
    limit: usize,
    synced: bool,
) -> Result<(Vec<String>, bool), Error> {
    retry(|| async {
        // Sent together, in this order: the server answers in FIFO order, so the barrier costs no extra round trip.
        let barrier = synced.then(|| session.sync(queue));
        let list = session.get_queue(queue, limit);
        if let Some(barrier) = barrier {
            match barrier.await {
                // A server syncs as a whole, for any path.
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

    /// Beyond those that are asked about in one round trip.
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
                // A persistent one ahead of it is not wanted.
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
