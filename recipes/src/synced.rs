//! [`read_synced`]: reads from a server that has caught up.

use std::future::Future;

use lockkeeper_store::{Error, Session, ZnodePath};

use crate::error::Result;

/// Reads with `look`, after a barrier if `synced`, so that the result is not staler than this call.
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
            // The sync concerns the whole server, so a missing path does not matter.
            Ok(()) | Err(Error::NoNode { .. }) => {}
            Err(Error::ConnectionLoss) => continue,
            Err(error) => return Err(error.into()),
        }
        let seen = look().await?;
        // After a reconnection another server, which had not caught up, may have answered the read.
        if session.status().connection() == connection {
            return Ok(seen);
        }
    }
}
