//! The search for a batch whose multi was never answered.

use lockkeeper_store::{Cleanup, Error, Session, ZnodePath};

use super::keys::Keys;
use crate::queue::{find_unanswered, remove};
use crate::together::Together;

/// Finds the nodes of a multi that was sent but not answered, by their common unique name and their
/// owner: of each queue the node, if there is one. All queues are searched at the same time, each as
/// for a [single create](find_unanswered).
pub(super) async fn find_all(
    session: &Session,
    keys: &Keys,
    name: &str,
) -> Result<Vec<Option<ZnodePath>>, Error> {
    let searches = keys
        .paths()
        .map(|parent| find_unanswered(session, parent, name));
    let mut searches = Together::new(searches);
    let mut found = vec![None; keys.len()];
    while let Some((key, node)) = searches.next().await {
        found[key] = node?.map(|(path, _)| path);
    }
    Ok(found)
}

/// Removes the nodes of a multi that was sent but not answered, one by one.
pub(super) async fn sweep_all(session: Session, keys: Keys, name: String) {
    let mut cleanup = Cleanup::new(&session, keys.path(0));
    let mut session = session;
    loop {
        let error = match find_all(&session, &keys, &name).await {
            Ok(found) => {
                let nodes = found.iter().flatten();
                return nodes.for_each(|path| remove(&session, path));
            }
            Err(error) => error,
        };
        // Given up only for good, and logged where that is decided.
        match cleanup.retry_after(session, error).await {
            Ok(again) => session = again,
            Err(_) => return,
        }
    }
}
