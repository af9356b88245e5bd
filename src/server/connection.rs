//! One connection, from its first byte to its last: this file is how a request is served.
//!
//! A connection is one task on the server's runtime, [`serve`]:
//!
//! 1. The client's first bytes are a four-letter word, which [`Admin`](super::admin::Admin) answers, or a handshake,
//!    which opens a session or reattaches to one ([`handshake`]).
//! 2. [`run_session`] gives the session the identities that the connection itself proves (address, user, certificate), and
//!    runs a [`ConnectionTask`] until the connection ends.
//! 3. The task's *turn* ([`ConnectionTask::poll_turn`]) repeats four steps ([`ConnectionTask::advance`]) until none of
//!    them makes progress, or the turn's share of work is used up and the other connections get theirs:
//!     - `poll_read` reads the bytes that have arrived, unless the protocol is still busy with earlier ones
//!       (backpressure: unread bytes fill the client's own socket);
//!     - `submit_requests` has [`ProtocolState`] parse whole frames into requests, and the store execute all of them
//!       under one acquisition of its lock (where they have fired events, the turn ends here, and the connections that
//!       it has woken send those first);
//!     - `poll_encode` takes answers and events from the session's outbox, in the store's order, each only once the log
//!       has the transaction that it reveals (invariants 2 and 13), and encodes them;
//!     - `poll_write` writes and flushes them.
//! 4. The task ends with a [`CloseReason`]. It is logged, and the connection is closed so that the last bytes arrive
//!    ([`linger_close`]). The session stays in the store, and its client may come back to it until its timeout.
//!
//! No step waits: each registers the task's waker where it stops, so the next turn begins when one of the four can go
//! on.

mod close;
mod task;

use std::sync::Arc;

use tokio::time::Instant;

pub(super) use self::close::CloseReason;
use self::close::{log_close, log_handshake_error};
use self::task::ConnectionTask;
use super::Shared;
use super::auth::Admission;
use super::connection_entry::CloseRequest;
use super::connection_table::{ConnectionGuard, Count};
use super::handshake::{HandshakeOutcome, handshake};
use super::peer::PeerAddress;
use super::process_watch::ProcessWatch;
use super::protocol::{Agreed, ProtocolState};
use super::transport::{Transport, linger_close, unless_closed};
use crate::engine::Connection;
use crate::model::identity::Identity;

/// Serves one connection, from its first byte to its last.
///
/// The handshake must be done by `deadline`. `identity` is the one that the client has proved with its certificate, or
/// that of its user over a Unix socket.
pub(super) async fn serve<S>(
    mut stream: S,
    guard: ConnectionGuard,
    shared: Arc<Shared>,
    deadline: Instant,
    identity: Option<Identity>,
) where
    S: Transport,
{
    // A client with a verified certificate, or of a known user, needs no further proof, so its session is part of the
    // store from the start.
    let is_proven = identity.as_ref().is_some_and(Identity::is_proof);
    // Boxed, as what follows: this task is small while it waits, and each step takes its memory when it comes.
    let outcome = Box::pin(handshake(&mut stream, &guard, &shared, is_proven));
    // The deadline is the listener's, so the TLS handshake before this one and this one share it: a client cannot hold
    // a half-open connection for longer by speaking TLS.
    let outcome = tokio::time::timeout_at(deadline, outcome);
    // A half-open connection is the first to go when others arrive, in its handshake, too.
    let Some(outcome) = unless_closed(guard.close_requested(), outcome).await else {
        return;
    };
    match outcome {
        Err(_) => {
            shared.table.count(Count::HandshakeTimedOut);
            tracing::debug!(address = %guard.address(), "handshake timed out");
        }
        Ok(Err(error)) => {
            shared.table.count(Count::HandshakeFailed);
            log_handshake_error(error, guard.address(), &shared);
        }
        Ok(Ok(HandshakeOutcome::Word(word))) => {
            let answered = shared.admin.serve_word(word, &mut stream, &guard, &shared);
            let answered = tokio::time::timeout(shared.limits.handshake, answered);
            // A client that does not read the answer is cut off after the same time.
            Box::pin(unless_closed(guard.close_requested(), answered)).await;
        }
        Ok(Ok(HandshakeOutcome::Session(connection, agreed, process))) => {
            let session = connection.id();
            let connection = match shared.audit.is_on() {
                true => connection.audited(),
                false => connection,
            };
            let client = Client {
                connection,
                agreed,
                identity,
                process,
            };
            let reason = Box::pin(run_session(&mut stream, &shared, &guard, client)).await;
            log_close(reason, &guard, session, &shared);
            // A server that is dropped closes at once, and lingers for no client.
            if guard.close_request() != Some(CloseRequest::Now) {
                linger_close(&mut stream).await;
            }
        }
    }
}

/// The client of a connection, after its handshake.
pub(super) struct Client {
    pub(super) connection: Connection,
    pub(super) agreed: Agreed,
    /// Identity proved by the connection, beside its address.
    pub(super) identity: Option<Identity>,
    pub(super) process: Option<Box<ProcessWatch>>,
}

/// Serves a session over its connection, until the connection ends.
pub(super) async fn run_session<S>(
    stream: S,
    shared: &Shared,
    guard: &ConnectionGuard,
    client: Client,
) -> CloseReason
where
    S: Transport,
{
    let Client {
        connection,
        agreed,
        identity,
        process,
    } = client;
    let mut admission = Admission::new(shared.access.policy());
    let by_address = match guard.address() {
        PeerAddress::Tcp(address) => Some(Identity::ip(address.ip())),
        PeerAddress::Unix(_) => None,
    };
    for identity in by_address.into_iter().chain(identity) {
        // Cannot fail: two identities are within every limit, and the TLS handshake has refused names that are too
        // long.
        let _ = admission.add(&identity);
        connection.identify(identity);
    }
    // From here on the connection is safe from eviction. One that still owes a proof stays half open.
    if admission.is_admitted() {
        guard.admit();
    }
    let protocol = ProtocolState::new(
        shared.limits,
        admission,
        agreed,
        guard.table().requests.clone(),
    );
    let mut task = ConnectionTask::new(stream, shared, guard, connection, protocol);
    task.process = process;
    task.await
}
