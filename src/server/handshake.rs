//! The first frame of a connection: a four-letter word, or a handshake that opens a session or reattaches to one.
//!
//! Until the handshake is done, the client has proved nothing. So the server gives it memory for only one small frame,
//! and may evict its connection in favor of newer connections (invariant 14).

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};

use super::connection_entry::{HANDSHAKE, LastResponse, LatencyStats, TrafficDelta};
use super::connection_table::{ConnectionGuard, Count};
use super::peer::PeerAddress;
use super::process_watch::{NotWatched, ProcessWatch};
use super::protocol::Agreed;
use super::transport::{Transport, linger_close, run_until_closed};
use super::{AuditEvent, Shared};
use crate::core::ReattachError;
use crate::engine::Connection;
use crate::model::error::Error;
use crate::model::types::{SessionId, Zxid};
use crate::runtime::clock::BootInstant;
use crate::runtime::process::ProcessIdentity;
use crate::wire::admin::Word;
use crate::wire::{
    ConnectResponse, Frames, Handshake, Jute, LENGTH_BYTES, ServerLimits, put_frame,
};

pub(super) enum HandshakeOutcome {
    Word(Word),
    Session(Connection, Agreed, Option<Box<ProcessWatch>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("the client has disconnected")]
    Disconnected,
    #[error("the first frame is no handshake")]
    ProtocolViolation,
    #[error("the client speaks HTTP")]
    Http,
    /// The client was connected to another store, or to this store before a restore.
    #[error("the client has seen a later zxid than this store has")]
    AheadOfStore,
    #[error("the session has ended, or has another password")]
    NoSession,
    #[error("the store has no room for another session")]
    Full,
    #[error("the server drains")]
    Draining,
}

const READ_BYTES: usize = 1024;

/// Maximum length of a handshake, in bytes. Clients send 44 or 45 bytes, or more with Lockkeeper's extension.
pub(super) const MAX_HANDSHAKE_BYTES: usize = 1024;

/// `is_proven` is true if the client's certificate or Unix user proves an identity.
pub(super) async fn handshake<S>(
    stream: &mut S,
    guard: &ConnectionGuard,
    shared: &Shared,
    is_proven: bool,
) -> Result<HandshakeOutcome, HandshakeError>
where
    S: Transport,
{
    let mut frames = Frames::new(MAX_HANDSHAKE_BYTES);
    let request = loop {
        // Check for a four-letter word first. Read as the length of a frame, its letters would exceed any limit.
        let first = frames.word();
        if let Some(word) = first.and_then(Word::parse) {
            return Ok(HandshakeOutcome::Word(word));
        }
        if first.is_some_and(is_http) {
            return Err(HandshakeError::Http);
        }
        match frames.next() {
            Ok(Some(frame)) => break SessionRequest::read(frame)?,
            Ok(None) => {}
            Err(_) => return Err(HandshakeError::ProtocolViolation),
        }
        let mut bytes = [0; READ_BYTES];
        match stream.read(&mut bytes).await {
            Ok(0) | Err(_) => return Err(HandshakeError::Disconnected),
            Ok(count) => frames.push(&bytes[..count]),
        }
    };
    frames.set_limit(shared.limits.frame_bytes);
    let since = shared.clock().now();
    let answer = unless_disconnected(
        stream,
        &mut frames,
        open_session(&request, guard.address(), shared, is_proven),
    )
    .await;
    let mut out = Vec::new();
    put_frame(&mut out, |to| match &answer {
        Ok(connection) => {
            request.response(connection, &connection.password()).put(to);
            // Only a client that sent the field `readOnly` accepts more fields at the end of the response.
            if request.version != 0 && request.read_only.is_some() {
                let frame_bytes = i32::try_from(shared.limits.frame_bytes).unwrap_or(i32::MAX);
                ServerLimits { frame_bytes }.put(to);
            }
        }
        Err(_) => ConnectResponse::refused(request.read_only).put(to),
    });
    match answer {
        Ok(connection) => {
            let process = watch_process(stream, shared, &connection, &request, guard.address())?;
            let recorded = connection.end_with(process.as_ref().map(|watch| watch.process()));
            recorded.await.map_err(|error| refuse(&error, shared))?;
            // Record the session before sending the response, so that a client that has the response finds its session
            // in `cons`.
            guard.record_traffic(&traffic_of(&request, out.len(), since, shared));
            guard.session_opened(connection.id(), connection.timeout());
            let sent = stream.write_all(&out).await;
            sent.map_err(|_| HandshakeError::Disconnected)?;
            stream
                .flush()
                .await
                .map_err(|_| HandshakeError::Disconnected)?;
            let is_extended = request.version != 0;
            Ok(HandshakeOutcome::Session(
                connection,
                Agreed {
                    is_extended,
                    frames,
                },
                process,
            ))
        }
        Err(HandshakeError::NoSession) => {
            // Without this answer the client would not learn that its session has expired, and would retry forever.
            if stream.write_all(&out).await.is_ok() {
                linger_close(stream).await;
            }
            Err(HandshakeError::NoSession)
        }
        // Send no answer. The session may exist, so the client should try again, here or at another server.
        Err(error) => Err(error),
    }
}

fn is_http(first: [u8; LENGTH_BYTES]) -> bool {
    const METHODS: [&[u8; LENGTH_BYTES]; 9] = [
        b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"PATC", b"OPTI", b"CONN", b"TRAC",
    ];
    METHODS.contains(&&first)
}

fn traffic_of(
    request: &SessionRequest,
    sent: usize,
    since: BootInstant,
    shared: &Shared,
) -> TrafficDelta {
    let now = shared.clock().now();
    let took = now.since(since);
    let mut latency = LatencyStats::default();
    latency.add(1, took);
    TrafficDelta {
        received: 1,
        received_bytes: (LENGTH_BYTES + request.bytes) as u64,
        answered: 1,
        events: 0,
        sent_bytes: sent as u64,
        last: Some(LastResponse {
            op: HANDSHAKE,
            xid: 0,
            zxid: shared.remote.last_zxid(),
            at: now,
            took,
        }),
        latency,
        has_failed_proof: false,
    }
}

/// Waits for the session, or returns an error if the client disconnects first.
///
/// For a while after a restart, the store may neither open nor reattach sessions. If the client reconnects in the
/// meantime, this old handshake must not take the session away from the new connection.
async fn unless_disconnected(
    stream: &mut impl Transport,
    frames: &mut Frames,
    entering: impl Future<Output = Result<Connection, HandshakeError>>,
) -> Result<Connection, HandshakeError> {
    let mut entering = pin!(entering);
    poll_fn(|context| {
        // Poll the socket first, because a client that has disconnected must not get a session. Keep the bytes that
        // follow the handshake, up to a limit.
        while frames.waiting_bytes() < READ_BYTES {
            let mut bytes = [0; READ_BYTES];
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => frames.push(buffer.filled()),
                Poll::Ready(_) => return Poll::Ready(Err(HandshakeError::Disconnected)),
                // The socket has bytes or is closed, but the runtime has not polled it yet. Poll again.
                Poll::Pending if stream.is_readable() => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Pending => break,
            }
        }
        entering.as_mut().poll(context)
    })
    .await
}

struct SessionRequest {
    bytes: usize,
    seen: Zxid,
    timeout: Duration,
    session: SessionId,
    password: Option<[u8; 16]>,
    read_only: Option<bool>,
    /// Version of Lockkeeper's protocol extension that the client speaks. 0 for other clients, which accept only a
    /// response with version 0.
    version: i32,
    process: Option<ProcessIdentity>,
}

impl SessionRequest {
    fn read(frame: &[u8]) -> Result<Self, HandshakeError> {
        let bytes = frame.len();
        let handshake = Handshake::read(frame);
        let Handshake {
            request,
            process,
            version,
        } = handshake.map_err(|_| HandshakeError::ProtocolViolation)?;
        Ok(Self {
            bytes,
            seen: Zxid(request.last_zxid_seen),
            timeout: Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0)),
            session: SessionId(request.session),
            password: request.password.try_into().ok(),
            read_only: request.read_only,
            version,
            process: process.map(|stated| ProcessIdentity {
                boot_id: stated.boot_id.into(),
                pid_namespace: stated.pid_namespace.cast_unsigned(),
                pid: stated.pid,
                start_time: stated.start_time.cast_unsigned(),
            }),
        })
    }

    fn response<'a>(&self, connection: &Connection, password: &'a [u8]) -> ConnectResponse<'a> {
        ConnectResponse {
            protocol_version: self.version,
            timeout_ms: i32::try_from(connection.timeout().as_millis()).unwrap_or(i32::MAX),
            session: connection.id().0,
            password,
            read_only: self.read_only.map(|_| false),
        }
    }
}

async fn open_session(
    request: &SessionRequest,
    address: PeerAddress,
    shared: &Shared,
    is_proven: bool,
) -> Result<Connection, HandshakeError> {
    let limit = shared.limits.outgoing_bytes;
    // Refuse a client that has seen a later zxid than the store has. The client would read older data than before, and
    // its watches would miss changes.
    if request.seen > shared.remote.last_zxid() {
        return Err(HandshakeError::AheadOfStore);
    }
    let full = |error| refuse(&error, shared);
    if request.session == SessionId(0) {
        let needs_proof = shared.access.policy().requires_auth && !is_proven;
        let remote = shared.remote.clone().requiring_proof(needs_proof);
        // `run_until_closed` checks for a drain first, because a session opened after the drain started could keep the
        // server from ending.
        let opened = remote.open(request.timeout, limit);
        return match run_until_closed(shared.drain.begun(), opened).await {
            Some(opened) => opened.map_err(full),
            None => {
                shared.table.count(Count::SessionDraining);
                Err(HandshakeError::Draining)
            }
        };
    }
    // A password of another length is wrong. Replace it with zeros, which no session has as its password.
    let password = request.password.unwrap_or_default();
    let found = shared
        .remote
        .reattach(request.session, password, request.timeout, limit)
        .await;
    let found = found.map_err(full)?;
    if found.as_ref().err() == Some(&ReattachError::WrongPassword) {
        report_wrong_password(request.session, address, shared);
        // Delay only the answer to a wrong password. The client of an expired session gets its answer immediately, so
        // that it can open a new session.
        shared.penalty(address).await;
    }
    found.map_err(|_| HandshakeError::NoSession)
}

fn refuse(error: &Error, shared: &Shared) -> HandshakeError {
    shared.table.count(match error {
        Error::LimitReached { .. } => Count::SessionOverLimit,
        Error::DiskFull { .. } => Count::SessionDiskFull,
        _ => Count::SessionFailed,
    });
    let now = shared.clock().now();
    if let Some(suppressed) = shared.table.log_throttle.session_refused.allow(now) {
        tracing::warn!(%error, suppressed, "session refused");
    }
    HandshakeError::Full
}

/// If the client's process has exited, ends the session and returns an error.
fn watch_process(
    stream: &impl Transport,
    shared: &Shared,
    connection: &Connection,
    request: &SessionRequest,
    address: PeerAddress,
) -> Result<Option<Box<ProcessWatch>>, HandshakeError> {
    let permits = shared.process_watches.as_ref();
    let (Some(socket), Some(stated), Some(permits)) =
        (stream.unix_socket(), &request.process, permits)
    else {
        return Ok(None);
    };
    match ProcessWatch::new(socket, address, stated, permits) {
        Ok(watch) => Ok(Some(Box::new(watch))),
        Err(NotWatched::Exited) => {
            connection.end_exited();
            Err(HandshakeError::Disconnected)
        }
        Err(reason) => {
            let session = connection.id();
            tracing::debug!(%address, %session, %reason, "process not watched: the timeout counts");
            Ok(None)
        }
    }
}

/// Call this before delaying the answer, because the client may disconnect during the delay.
fn report_wrong_password(session: SessionId, address: PeerAddress, shared: &Shared) {
    shared.table.count(Count::WrongPassword);
    shared
        .audit
        .failure(AuditEvent::TakeUpSession, address, |record| {
            record.session = Some(session);
        });
    let now = shared.clock().now();
    if let Some(suppressed) = shared.table.log_throttle.wrong_password.allow(now) {
        tracing::warn!(%address, %session, suppressed, "wrong session password");
    }
}
