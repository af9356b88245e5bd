//! [`read_synced`]: reads from a server that has caught up.

use std::future::Future;

use lockkeeper_store::{Error, Session, ZnodePath};

use crate::error::Result;

/// Reads with `look`. If `synced`, sends a sync first, so that the result shows a state after the start of this call.
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
            // A sync applies to the whole server, so the path need not exist.
            Ok(()) | Err(Error::NoNode { .. }) => {}
            Err(Error::ConnectionLoss) => continue,
            Err(error) => return Err(error.into()),
        }
        let seen = look().await?;
        // After a reconnection, the read may be from a server that has not caught up, so repeat both requests.
        if session.status().connection() == connection {
            return Ok(seen);
        }
    }
}
