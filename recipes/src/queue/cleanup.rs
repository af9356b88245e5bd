//! Deletes that are seen through while the session lives.

use lockkeeper_store::{Call, Cleanup, Error, Session, ZnodePath, spawn_detached};

/// A delete that has been sent: its reply, or the call to await for it.
pub(crate) type PendingDelete = Result<Result<(), Error>, Call<()>>;

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
    first: PendingDelete,
) -> Result<bool, Error> {
    let again = |session: &Session, path: &ZnodePath| session.delete(path, None);
    until_gone(session, path, first, again).await
}

async fn until_gone(
    session: Session,
    path: ZnodePath,
    first: PendingDelete,
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
