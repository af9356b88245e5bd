//! Operators' access to the sessions of a server: list, kick and disconnect.

use std::collections::HashMap;
use std::time::Duration;

use super::connection_entry::CloseRequest;
use super::{Server, Shared};
use crate::core::Kicked;
use crate::model::error::{Error, Result};
use crate::model::types::SessionId;

/// A session of a store, as its server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The session's id.
    pub session: SessionId,
    /// Address of the client, such as `127.0.0.1:4711` or `unix:uid=1000,pid=4711`. `None` while the session has no
    /// connection.
    pub peer: Option<String>,
    /// Age of the session's connection, or `None` while it has none.
    pub connected: Option<Duration>,
    /// The session's timeout, or `None` if the session never expires.
    pub timeout: Option<Duration>,
    /// Identities of the connection: the client's address (`ip:10.0.0.7`) and every identity that the client has proved
    /// (`digest:jane`).
    pub identities: Vec<String>,
    /// Number of the session's ephemeral znodes, including locks that it holds or waits for.
    pub ephemerals: usize,
    /// Number of the session's watches.
    pub watches: usize,
    /// True for a session of the server's own process.
    pub is_local: bool,
}

/// Outcome of [`Server::kick`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KickOutcome {
    /// The session has ended, and its locks pass to the next waiters.
    Ended,
    /// The session could not end immediately, because it has many watches or the disk is full. It ends soon, and until
    /// then none of its requests is executed.
    Ending,
}

impl Server {
    /// Lists all sessions of the store, sorted by id. Listing a million sessions takes a while, so call this from a
    /// thread that may block. The store continues to serve clients.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.shared.list_sessions()
    }

    /// Ends a session as if it had expired. Its locks pass to the next waiters, and its client learns that it has lost
    /// them. Unless the outcome is [`KickOutcome::Ending`], the log contains the end of the session when this returns.
    ///
    /// # Errors
    /// [`Error::SessionExpired`](crate::Error::SessionExpired) if the session does not exist (any more),
    /// [`Error::BadArguments`](crate::Error::BadArguments) if it belongs to this process,
    /// [`Error::StoreFailed`](crate::Error::StoreFailed).
    pub async fn kick(&self, session: SessionId) -> Result<KickOutcome> {
        match self.shared.remote.kick(session).await? {
            Kicked::Ended => Ok(KickOutcome::Ended),
            Kicked::Ending => Ok(KickOutcome::Ending),
            Kicked::NoSession => Err(Error::SessionExpired { session }),
            Kicked::Local => Err(Error::BadArguments(
                "the session is one of the server's own process".into(),
            )),
        }
    }

    /// Closes the connection of a session. The session stays, and its client may reattach. Returns false if the session
    /// has no connection.
    pub fn disconnect(&self, session: SessionId) -> bool {
        let connections = self.shared.table.each();
        let of_session = connections
            .iter()
            .filter(|it| it.session().is_some_and(|(id, _)| id == session));
        // Take the newest connection, because older ones may not have ended yet.
        let newest = of_session.max_by_key(|it| it.arrival);
        newest
            .inspect(|connection| connection.request_close(CloseRequest::Disconnected))
            .is_some()
    }
}

impl Shared {
    pub(super) fn list_sessions(&self) -> Vec<SessionInfo> {
        let mut connections = HashMap::new();
        for connection in self.table.each() {
            if let Some((id, _)) = connection.session() {
                let newest = connections.entry(id).or_insert_with(|| connection.clone());
                if newest.arrival < connection.arrival {
                    *newest = connection;
                }
            }
        }
        let now_ms = self.clock().unix_ms();
        let mut sessions: Vec<_> = self.store.sessions();
        sessions.sort_unstable_by_key(|session| session.id);
        let info = sessions.into_iter().map(|session| {
            let connection = connections.get(&session.id);
            SessionInfo {
                session: session.id,
                peer: connection.map(|it| it.address().to_string()),
                connected: connection.map(|it| {
                    let ms = now_ms.saturating_sub(it.established_ms());
                    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
                }),
                timeout: session.timeout,
                identities: session.identities,
                ephemerals: session.ephemerals,
                watches: session.watches,
                is_local: session.is_local,
            }
        });
        info.collect()
    }
}
