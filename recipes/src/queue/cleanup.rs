//! Leaving nothing behind: deletes that are seen through while the session lives, and the search for
//! an entry whose create was never answered.

use lockkeeper_store::{Call, Cleanup, Error, Session, ZnodePath, Zxid, spawn_detached};

use crate::retry::retry;

/// A delete that has been sent, and perhaps answered already.
pub(crate) type Sent = Result<Result<(), Error>, Call<()>>;

/// Withdraws a node of this session's, now if the store answers at once, else in the background.
pub(crate) fn remove(session: &Session, path: &ZnodePath) {
    match session.withdraw(path).now_or_never() {
        Ok(Ok(()) | Err(Error::NoNode { .. })) => {}
        first => {
            let (session, path) = (session.clone(), path.clone());
            spawn_detached(async move {
                // What it says is logged where it is known; nobody is left to tell.
                let _ = until_gone(session, path, first, Session::withdraw).await;
            });
        }
    }
}

/// Withdraws nodes in a drop: the process may end right after it, so the deletes are waited for until they have
/// been [written](Session::flush).
pub(crate) fn remove_all<'a>(session: &Session, nodes: impl IntoIterator<Item = &'a ZnodePath>) {
    nodes.into_iter().for_each(|node| remove(session, node));
    session.flush();
}

/// Sees the release of a node of this session's through: answers whether the node was there when its
/// delete was first asked for.
///
/// A delete that was refused, or whose answer was lost, is asked for again ([`Cleanup`]); that is
/// safe since the node's name is unique, so it is this node that is deleted or none. The session's
/// end deletes it too.
pub(crate) async fn delete_until_gone(
    session: Session,
    path: ZnodePath,
    first: Sent,
) -> Result<bool, Error> {
    let again = |session: &Session, path: &ZnodePath| session.delete(path, None);
    until_gone(session, path, first, again).await
}

async fn until_gone(
    session: Session,
    path: ZnodePath,
    first: Sent,
    again: fn(&Session, &ZnodePath) -> Call<()>,
) -> Result<bool, Error> {
    let mut cleanup = Cleanup::new(&session, &path);
    // Dropped before the count: the last client waits for that, and then is the last to hold the session.
    let mut session = session;
    let mut may_be_done = false;
    let mut deleted = match first {
        Ok(answer) => answer,
        Err(call) => call.await,
    };
    loop {
        let error = match deleted {
            Ok(()) => return Ok(true),
            Err(Error::NoNode { .. }) => return Ok(may_be_done),
            Err(error) => error,
        };
        may_be_done |= error.is_ambiguous();
        session = cleanup.retry_after(session, error).await?;
        deleted = again(&session, &path).await;
    }
}

/// A version that no znode has.
const NO_VERSION: i32 = i32::MAX;

/// Finds the node whose create was sent but not answered, by its unique name and its owner; also
/// answers the zxid that made it.
///
/// Finding it is proof. Its absence is proof only when a write was committed on the connection on
/// which, or before which, the list was read: until then the create itself may still be on its
/// way. The write is a delete of the name without its number, which never exists, at a version
/// that no node has: refused as it is, it goes through the whole log.
pub(crate) async fn find_unanswered(
    session: &Session,
    parent: &ZnodePath,
    name: &str,
) -> Result<Option<(ZnodePath, Zxid)>, Error> {
    let unnumbered = parent.join(name)?;
    let children = retry(|| list_behind_a_write(session, parent, &unnumbered)).await?;
    for child in children.iter().filter(|child| child.starts_with(name)) {
        let path = parent.join(child)?;
        if let Some(czxid) = made_at(session, &path).await? {
            return Ok(Some((path, czxid)));
        }
    }
    Ok(None)
}

/// Lists a queue behind a write that was committed on the same connection: the delete of a node that never exists.
async fn list_behind_a_write(
    session: &Session,
    parent: &ZnodePath,
    missing: &ZnodePath,
) -> Result<Vec<String>, Error> {
    let barrier = session.delete(missing, Some(NO_VERSION));
    let list = session.get_children(parent);
    match (barrier.await, list.await) {
        // Without the write the list says nothing: both are asked for again.
        (Err(Error::ConnectionLoss), _) => Err(Error::ConnectionLoss),
        (Err(Error::NoNode { .. } | Error::BadVersion { .. }), Ok((names, _))) => Ok(names),
        (_, Err(Error::NoNode { .. })) => Ok(Vec::new()),
        (_, Err(error)) | (Err(error), _) => Err(error),
        (Ok(()), Ok(_)) => Err(Error::Protocol(format!("{missing} should never exist"))),
    }
}

/// The zxid that made a node of this session's; `None` if the node is missing, or another session's:
/// a name can be copied, so it alone is no proof of the owner.
pub(crate) async fn made_at(session: &Session, node: &ZnodePath) -> Result<Option<Zxid>, Error> {
    let stat = retry(|| session.exists(node)).await?;
    Ok(stat
        .filter(|stat| stat.ephemeral_owner == session.id())
        .map(|stat| stat.czxid))
}

/// Removes the node of a create that was sent but not answered, once the answer or its loss is known.
pub(crate) async fn sweep(session: Session, parent: ZnodePath, name: String) {
    let mut cleanup = Cleanup::new(&session, &parent);
    let mut session = session;
    loop {
        let error = match find_unanswered(&session, &parent, &name).await {
            Ok(found) => return found.iter().for_each(|(path, _)| remove(&session, path)),
            Err(error) => error,
        };
        // Given up only for good, and logged where that is decided.
        match cleanup.retry_after(session, error).await {
            Ok(again) => session = again,
            Err(_) => return,
        }
    }
}
