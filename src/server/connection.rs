//! One connection, from its first byte to its last. This file shows how a request is served.
//!
//! A connection is one task on the server's runtime, [`serve`]:
//!
//! 1. The first bytes are either a four-letter word, which [`Admin`](super::admin::Admin) answers, or a handshake,
//!    which opens a session or reattaches to one ([`handshake`]).
//! 2. [`run_session`] gives the session the identities that the connection proves (address, user, certificate), and
//!    runs a [`ConnectionTask`] until the connection ends.
//! 3. Each *turn* of the task ([`ConnectionTask::poll_turn`]) repeats four steps ([`ConnectionTask::advance`]) until no
//!    step makes progress or the turn's share of work is used up. Then other connections run.
//!     - `poll_read` reads the bytes that have arrived, unless the protocol is still busy with earlier requests. In
//!       that case the bytes stay in the socket until it is full and the client must wait (backpressure).
//!     - `submit_requests` has [`ProtocolState`] parse whole frames into requests. The store executes all of them under
//!       one acquisition of its lock. If the requests fire events, the turn ends, so that the connections that wait for
//!       these events can send them before we send the answers.
//!     - `poll_encode` takes answers and events from the session's outbox in the store's order, and encodes them. Each
//!       answer or event waits until the log has the transaction that it reveals (invariants 2 and 13).
//!     - `poll_write` writes and flushes the encoded bytes.
//! 4. The task ends with a [`CloseReason`]. [`linger_close`] closes the connection so that the last bytes arrive. The
//!    session stays in the store, and its client may reattach until its timeout.
//!
//! No step blocks. A step that cannot continue registers the task's waker, so the next turn starts as soon as one of
//! the steps can continue.

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
use super::transport::{Transport, linger_close, run_until_closed};
use crate::engine::Connection;
use crate::model::identity::Identity;

/// Serves one connection until it closes. The client must complete the handshake by `deadline`. `identity` is the
/// identity that the client's certificate or Unix user proves, if any.
pub(super) async fn serve<S>(
    mut stream: S,
    guard: ConnectionGuard,
    shared: Arc<Shared>,
    deadline: Instant,
    identity: Option<Identity>,
) where
    S: Transport,
{
    // A verified certificate or a known Unix user is already a proof, so the client need not send a password.
    let is_proven = identity.as_ref().is_some_and(Identity::is_proof);
    // Box each step, so that it allocates its state only while it runs. The task of an idle connection stays small.
    let outcome = Box::pin(handshake(&mut stream, &guard, &shared, is_proven));
    // TLS and ZooKeeper handshake share one deadline, so TLS does not let a client stay half open for longer.
    let outcome = tokio::time::timeout_at(deadline, outcome);
    // The connection is half open during the handshake, so the connection table may evict it.
    let Some(outcome) = run_until_closed(guard.close_requested(), outcome).await else {
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
            Box::pin(run_until_closed(guard.close_requested(), answered)).await;
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
            // If the server was dropped, do not wait until the last bytes have arrived.
            if guard.close_request() != Some(CloseRequest::Now) {
                linger_close(&mut stream).await;
            }
        }
    }
}

pub(super) struct Client {
    pub(super) connection: Connection,
    pub(super) agreed: Agreed,
    pub(super) identity: Option<Identity>,
    pub(super) process: Option<Box<ProcessWatch>>,
}

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
        // This cannot fail, because two identities are within every limit, and the TLS handshake has refused names that
        // are too long.
        let _ = admission.add(&identity);
        connection.identify(identity);
    }
    // An admitted connection can no longer be evicted. A client that must still prove an identity stays half open.
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
