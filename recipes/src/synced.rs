//! [`read_synced`]: a read from a server that has caught up first.

use std::future::Future;

use lockkeeper_store::{Error, Session, ZnodePath};

use crate::error::Result;

/// Reads with `look`, behind a barrier if `synced`: the outcome is then no staler than this call.
pub(crate) async fn read_synced<T, F>(
    session: &Session,
    path: &ZnodePath,
    synced: bool,
    look: impl Fn() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    if !synced {
        return look().await;
    }
    loop {
        let connection = session.status().connection();
        match session.sync(path).await {
            // A server syncs as a whole, whether the path exists or not.
            Ok(()) | Err(Error::NoNode { .. }) => {}
            Err(Error::ConnectionLoss) => continue,
            Err(error) => return Err(error.into()),
        }
        let seen = look().await?;
        // After a reconnection the read may have been answered by another server, which had not caught up.
        if session.status().connection() == connection {
            return Ok(seen);
        }
    }
}
