//! The search for a batch whose multi was never answered.

use lockkeeper_store::{Error, ReadOp, ReadReply, Session, ZnodePath};

use super::keys::Keys;
use crate::queue::remove;

/// Finds the nodes of a multi that was sent but not answered, by their common unique name: of each
/// queue the node, if there is one.
///
/// As with a single create ([`find_unanswered`](crate::queue::find_unanswered)): finding is proof,
/// here by one node for all, since a multi makes all or none; absence is proof only behind a write
/// that was committed on the same connection.
pub(super) async fn find_all(
    session: &Session,
    keys: &Keys,
    name: &str,
) -> Result<Vec<Option<ZnodePath>>, Error> {
    let unnumbered = keys.path(0).join(name)?;
    let lists: Vec<_> = keys.paths().cloned().map(ReadOp::GetChildren).collect();
    loop {
        let barrier = session.delete(&unnumbered, None);
        let lists = session.multi_read(lists.clone());
        match (barrier.await, lists.await) {
            (Err(Error::ConnectionLoss), _) | (_, Err(Error::ConnectionLoss)) => {}
            (Err(Error::NoNode { .. }), Ok(lists)) => {
                let lists = keys.paths().zip(lists);
                return lists.map(|(at, list)| mine(at, list, name)).collect();
            }
            (_, Err(error)) | (Err(error), _) => return Err(error),
            (Ok(()), Ok(_)) => {
                return Err(Error::Protocol(format!("{unnumbered} should never exist")));
            }
        }
    }
}

fn mine(parent: &ZnodePath, list: ReadReply, name: &str) -> Result<Option<ZnodePath>, Error> {
    match list {
        ReadReply::Children(names) => {
            let mine = names.iter().find(|child| child.starts_with(name));
            mine.map(|child| parent.join(child)).transpose()
        }
        ReadReply::Failed(Error::NoNode { .. }) => Ok(None),
        ReadReply::Failed(error) => Err(error),
        reply => Err(Error::Protocol(format!("a list was answered {reply:?}"))),
    }
}

/// Removes the nodes of a multi that was sent but not answered, one by one.
pub(super) async fn sweep_all(session: &Session, keys: &Keys, name: &str) {
    match find_all(session, keys, name).await {
        Ok(found) => found
            .iter()
            .flatten()
            .for_each(|path| remove(session, path)),
        Err(error) if error.is_session_end() => {}
        Err(error) => {
            tracing::warn!(first = %keys.path(0), name, %error, "could not look for an abandoned batch");
        }
    }
}
