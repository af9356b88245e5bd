//! [`ServerMonitor`]: reports whether a server opens sessions.

use std::sync::{Arc, Weak};

use super::{Server, SessionInfo, Shared};
use crate::engine::NotAdmitting;
use crate::model::error::Error;
use crate::wire::admin::Word;

/// Reports whether a server is ready. A monitor can be used from any thread, even after the server's shutdown, and
/// keeps neither the server nor its store alive.
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

/// Reason why a server opens no sessions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// The server is draining ([`Server::drain`]), shuts down, or has ended.
    #[error("the server is draining")]
    Draining,
    /// The server pauses after a restart, because clients may still consider sessions alive that the restart has ended.
    #[error("a pause: clients may still believe in sessions that a restart has ended")]
    Paused,
    /// The disk is full, so the log has no room for a session.
    #[error("{0}")]
    DiskFull(Error),
    /// The store has stopped because its log failed.
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
    /// Checks that the server opens sessions now. Does not check limits, such as the limit of connections.
    ///
    /// # Errors
    /// The reason why the server opens no sessions. A failed store takes precedence over all other reasons.
    pub fn check_ready(&self) -> Result<(), NotReady> {
        let shared = self.0.upgrade().ok_or(NotReady::Draining)?;
        let admission = shared.store.check_admission();
        if let Err(NotAdmitting::Refused(error)) = &admission
            && !matches!(error, Error::DiskFull { .. })
        {
            return Err(NotReady::StoreFailed(error.clone()));
        }
        if shared.table.is_closed() || shared.drain.is_on() {
            return Err(NotReady::Draining);
        }
        admission.map_err(|reason| match reason {
            NotAdmitting::Pause => NotReady::Paused,
            NotAdmitting::Refused(error) => NotReady::DiskFull(error),
        })
    }
}

impl ServerMonitor {
    /// Lists the sessions, like [`Server::sessions`]. Empty once the server has ended.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        let shared = self.0.upgrade();
        shared.map_or_else(Vec::new, |shared| shared.list_sessions())
    }

    /// Returns the text of a four-letter word, even if clients may not send this word. Returns `None` if the word is
    /// unknown or the server has ended. May read files or much of the store, so call this from a thread that may block.
    pub fn four_letter_word(&self, word: &str) -> Option<String> {
        let letters = word.as_bytes().try_into().ok()?;
        let shared = self.0.upgrade()?;
        Some(shared.admin.text(Word::parse(letters)?, &shared.drain))
    }
}

impl std::fmt::Debug for ServerMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerMonitor")
    }
}
