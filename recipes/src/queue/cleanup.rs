//! Leaving nothing behind: deletes that are retried while the session lives, and the search for
//! an entry whose create was never answered.

use lockkeeper_store::{Call, Error, Session, ZnodePath, drive};

/// Withdraws a node of this session's, now if the store answers at once, else in the background.
pub(crate) fn remove(session: &Session, path: &ZnodePath) {
    let first = match session.withdraw(path).try_now() {
        Ok(Err(Error::ConnectionLoss)) => session.withdraw(path),
        Ok(_) => return,
        Err(first) => first,
    };
    let (session, path) = (session.clone(), path.clone());
    drive(async move {
        // What it says is logged where it is known; nobody is left to tell.
        let _ = until_gone(&session, &path, first, Session::withdraw).await;
    });
}

/// Sees a delete through: answers whether the node was there when it was first asked for.
///
/// A lost answer is asked for again; that is safe since the node's name is unique, so it is this
/// node that is deleted or none. The session's end deletes it too.
pub(crate) async fn delete_until_gone(
    session: &Session,
    path: &ZnodePath,
    first: Call<()>,
) -> Result<bool, Error> {
    until_gone(session, path, first, |session, path| {
        session.delete(path, None)
    })
    .await
}

async fn until_gone(
    session: &Session,
    path: &ZnodePath,
    first: Call<()>,
    again: fn(&Session, &ZnodePath) -> Call<()>,
) -> Result<bool, Error> {
    let mut delete = first;
    let mut lost_an_answer = false;
    loop {
        match delete.await {
            Ok(()) => return Ok(true),
            Err(Error::NoNode { .. }) => return Ok(lost_an_answer),
            Err(Error::ConnectionLoss) => lost_an_answer = true,
            Err(error) => {
                if !error.is_session_end() {
                    tracing::warn!(%path, %error, "a lock's znode could not be deleted");
                }
                return Err(error);
            }
        }
        delete = again(session, path);
    }
}

/// Finds the node whose create was sent but not answered, by its unique name.
///
/// Finding it is proof. Its absence is proof only when a write was committed on the connection on
/// which, or before which, the list was read: until then the create itself may still be on its
/// way. The write is a delete of the name without its number, which never exists: refused as it
/// is, it goes through the whole log.
pub(crate) async fn find_unanswered(
    session: &Session,
    parent: &ZnodePath,
    name: &str,
) -> Result<Option<ZnodePath>, Error> {
    let unnumbered = parent.join(name)?;
    loop {
        let barrier = session.delete(&unnumbered, None);
        let list = session.get_children(parent);
        let (barrier, list) = (barrier.await, list.await);
        match (barrier, list) {
            (Err(Error::ConnectionLoss), _) | (_, Err(Error::ConnectionLoss)) => {}
            (Err(Error::NoNode { .. }), Ok((names, _))) => {
                let mine = names.iter().find(|child| child.starts_with(name));
                return mine.map(|child| parent.join(child)).transpose();
            }
            (_, Err(Error::NoNode { .. })) => return Ok(None),
            (_, Err(error)) | (Err(error), _) => return Err(error),
            (Ok(()), Ok(_)) => {
                return Err(Error::Protocol(format!("{unnumbered} should never exist")));
            }
        }
    }
}

/// Removes the node of a create that was sent but not answered, once the answer or its loss is known.
pub(crate) async fn sweep(session: &Session, parent: &ZnodePath, name: &str) {
    match find_unanswered(session, parent, name).await {
        Ok(Some(path)) => remove(session, &path),
        Ok(None) => {}
        Err(error) if error.is_session_end() => {}
        Err(error) => {
            tracing::warn!(%parent, name, %error, "could not look for an abandoned entry");
        }
    }
}
