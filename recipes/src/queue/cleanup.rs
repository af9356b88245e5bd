//! Deletes that are retried until the znode is gone or the session has ended (invariant 7).

use lockkeeper_store::{Call, Cleanup, Error, Session, ZnodePath, spawn_detached};

pub(crate) type PendingDelete = Result<Result<(), Error>, Call<()>>;

pub(crate) fn remove(session: &Session, path: &ZnodePath) {
    match session.withdraw(path).now_or_never() {
        Ok(Ok(()) | Err(Error::NoNode { .. })) => {}
        first => {
            let (session, path) = (session.clone(), path.clone());
            spawn_detached(async move {
                let _ = until_gone(session, path, first, Session::withdraw).await;
            });
        }
    }
}

/// Deletes entries when the value that owns them is dropped. Waits until the deletes are [written](Session::flush),
/// because the process may exit right after the drop.
pub(crate) fn remove_all<'a>(session: &Session, nodes: impl IntoIterator<Item = &'a ZnodePath>) {
    nodes.into_iter().for_each(|node| remove(session, node));
    session.flush();
}

/// Deletes a znode of this session, and retries if the delete is refused or its reply is lost ([`Cleanup`]). A retry is
/// safe, because the name is unique. Returns true if the znode may have existed when the first delete was sent.
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
    // Declare `session` after `cleanup`, so that `session` is dropped first. The drop of the last client waits until no
    // clean-up is pending, and must then be the last owner of the session.
    let mut session = session;
    let mut may_be_done = false;
    let mut deleted = match first {
        Ok(answer) => answer,
        Err(call) => call.await,
    };
    loop {
        let error = match deleted {
            Ok(()) => return Ok(true),
            // If a reply was lost, the previous delete may have removed the znode.
            Err(Error::NoNode { .. }) => return Ok(may_be_done),
            Err(error) => error,
        };
        may_be_done |= error.is_ambiguous();
        session = cleanup.retry_after(session, error).await?;
        deleted = again(&session, &path).await;
    }
}
