//! [`ServerMonitor`]: tells if a server opens sessions, to those who watch over it.

use std::sync::{Arc, Weak};

use super::{Server, Shared};
use crate::engine::NotAdmitting;
use crate::error::Error;

/// Watches over a server: a clone tells if it is ready, from any thread, also while it is shut down and after its end.
/// It keeps neither the server nor its store alive.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use lockkeeper_store::{NotReady, Server, ServerOptions, Store};
///
/// let options = ServerOptions::new().listen("127.0.0.1:0".parse()?);
/// let server = Server::bind(&Store::memory(), options).await?;
/// let monitor = server.monitor();
/// assert_eq!(monitor.check_ready(), Ok(()));
/// server.shutdown().await;
/// assert_eq!(monitor.check_ready(), Err(NotReady::Draining));
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct ServerMonitor(Weak<Shared>);

/// Reason for which a server opens no sessions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// The server shuts down, or has ended.
    #[error("the server is draining")]
    Draining,
    /// After a restart, clients may still believe in sessions that it has ended.
    #[error("a pause: clients may still believe in sessions that a restart has ended")]
    Paused,
    /// The disk is full: the log has no room for a session.
    #[error("{0}")]
    DiskFull(Error),
    /// The store has stopped: its log has failed.
    #[error("{0}")]
    StoreFailed(Error),
}

impl Server {
    /// Returns a monitor of this server.
    pub fn monitor(&self) -> ServerMonitor {
        ServerMonitor(Arc::downgrade(&self.shared))
    }
}

impl ServerMonitor {
    /// Checks that the server opens sessions now, limits aside.
    ///
    /// # Errors
    /// The reason for which it opens none. A store that has failed is reported before all other reasons.
    pub fn check_ready(&self) -> Result<(), NotReady> {
        let shared = self.0.upgrade().ok_or(NotReady::Draining)?;
        let admission = shared.store.check_admission();
        if let Err(NotAdmitting::Refused(error)) = &admission
            && !matches!(error, Error::DiskFull { .. })
        {
            return Err(NotReady::StoreFailed(error.clone()));
        }
        if shared.table.is_closed() {
            return Err(NotReady::Draining);
        }
        admission.map_err(|reason| match reason {
            NotAdmitting::Pause => NotReady::Paused,
            NotAdmitting::Refused(error) => NotReady::DiskFull(error),
        })
    }
}

impl std::fmt::Debug for ServerMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerMonitor")
    }
}
