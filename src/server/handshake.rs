//! The handshake: a four-letter word, or a session that is opened or taken up again.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::connection_entry::{Answered, Batch, HANDSHAKE, LatencyStats};
use super::connection_table::Count;
use super::listener::{Shared, part};
use crate::clock::BootInstant;
use crate::core::ReattachError;
use crate::engine::Connection;
use crate::types::{SessionId, Zxid};
use crate::wire::admin::Word;
use crate::wire::{ConnectRequest, ConnectResponse, Frames, Jute, LENGTH_BYTES, Reader, put_frame};

/// What the beginning of a connection was.
pub(super) enum Greeting {
    Word(Word),
    /// A session, what came behind the handshake, and what the handshake counts for.
    Session(Connection, Frames, Box<Batch>),
}

/// Why there was no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeError {
    /// The client has gone.
    Gone,
    /// What it sent is no handshake.
    ProtocolViolation,
    /// It speaks HTTP.
    Http,
    /// It has seen more than this store has done: it was at another.
    Predecessor,
    /// It wanted a session that is over, or that is not its own.
    NoSession,
    /// The store takes no more.
    Full,
}

const READ_BYTES: usize = 1024;

/// A handshake has 45 bytes. Who has no session yet can have no more than this kept for him.
const LARGEST_HANDSHAKE_BYTES: usize = 1024;

/// Hears what the client wants, and answers it if that is a session. `is_proven`: the client has proved an identity by
/// its certificate.
pub(super) async fn greet<S>(
    stream: &mut S,
    address: SocketAddr,
    shared: &Shared,
    is_proven: bool,
) -> Result<Greeting, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut frames = Frames::new(LARGEST_HANDSHAKE_BYTES);
    let asked = loop {
        let first = frames.word();
        if let Some(word) = first.and_then(Word::parse) {
            return Ok(Greeting::Word(word));
        }
        if first.is_some_and(is_http) {
            return Err(HandshakeError::Http);
        }
        match frames.next() {
            Ok(Some(frame)) => break Asked::read(frame)?,
            Ok(None) => {}
            Err(_) => return Err(HandshakeError::ProtocolViolation),
        }
        let mut bytes = [0; READ_BYTES];
        match stream.read(&mut bytes).await {
            Ok(0) | Err(_) => return Err(HandshakeError::Gone),
            Ok(count) => frames.push(&bytes[..count]),
        }
    };
    frames.set_limit(shared.limits.frame_bytes);
    let since = shared.clock().now();
    let answer = while_there(
        stream,
        &mut frames,
        enter(&asked, address, shared, is_proven),
    )
    .await;
    let mut out = Vec::new();
    put_frame(&mut out, |to| match &answer {
        Ok(connection) => asked.welcome(connection, &connection.password()).put(to),
        Err(_) => ConnectResponse::refused(asked.read_only).put(to),
    });
    match answer {
        Ok(connection) => {
            let sent = stream.write_all(&out).await;
            sent.map_err(|_| HandshakeError::Gone)?;
            stream.flush().await.map_err(|_| HandshakeError::Gone)?;
            let batch = counted(&asked, out.len(), since, shared);
            Ok(Greeting::Session(connection, frames, Box::new(batch)))
        }
        Err(HandshakeError::NoSession) => {
            // It hears why, if it is still there.
            if stream.write_all(&out).await.is_ok() {
                part(stream).await;
            }
            Err(HandshakeError::NoSession)
        }
        Err(unwelcome) => Err(unwelcome),
    }
}

/// Returns true for the beginning of an HTTP request. As a frame's length it is above any handshake's.
fn is_http(first: [u8; LENGTH_BYTES]) -> bool {
    const METHODS: [&[u8; LENGTH_BYTES]; 9] = [
        b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"PATC", b"OPTI", b"CONN", b"TRAC",
    ];
    METHODS.contains(&&first)
}

/// What a handshake counts for: a request and its answer.
fn counted(asked: &Asked, sent: usize, since: BootInstant, shared: &Shared) -> Batch {
    let now = shared.clock().now();
    let took = now.since(since);
    let mut latency = LatencyStats::default();
    latency.add(1, took);
    Batch {
        received: 1,
        received_bytes: (LENGTH_BYTES + asked.bytes) as u64,
        answered: 1,
        events: 0,
        sent_bytes: sent as u64,
        last: Some(Answered {
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

/// The outcome, unless the client goes before it is there. A store that has come back may let nobody
/// enter for long; who gave up meanwhile would otherwise take its session from its own next connection.
async fn while_there<S: AsyncRead + Unpin>(
    stream: &mut S,
    frames: &mut Frames,
    entering: impl Future<Output = Result<Connection, HandshakeError>>,
) -> Result<Connection, HandshakeError> {
    let mut entering = pin!(entering);
    poll_fn(|context| {
        // First: both may have happened.
        while frames.waiting_bytes() < READ_BYTES {
            let mut bytes = [0; READ_BYTES];
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => frames.push(buffer.filled()),
                Poll::Ready(_) => return Poll::Ready(Err(HandshakeError::Gone)),
                Poll::Pending => break,
            }
        }
        entering.as_mut().poll(context)
    })
    .await
}

/// What a client asks for.
struct Asked {
    /// The frame's.
    bytes: usize,
    seen: Zxid,
    timeout: Duration,
    session: SessionId,
    password: Option<[u8; 16]>,
    read_only: Option<bool>,
}

impl Asked {
    fn read(frame: &[u8]) -> Result<Self, HandshakeError> {
        let asked = Reader::new(frame).next::<ConnectRequest<'_>>();
        let asked = asked.map_err(|_| HandshakeError::ProtocolViolation)?;
        Ok(Self {
            bytes: frame.len(),
            seen: Zxid(asked.last_zxid_seen),
            timeout: Duration::from_millis(u64::try_from(asked.timeout_ms).unwrap_or(0)),
            session: SessionId(asked.session),
            password: asked.password.try_into().ok(),
            read_only: asked.read_only,
        })
    }

    fn welcome<'a>(&self, connection: &Connection, password: &'a [u8]) -> ConnectResponse<'a> {
        ConnectResponse {
            protocol_version: 0,
            timeout_ms: i32::try_from(connection.timeout().as_millis()).unwrap_or(i32::MAX),
            session: connection.id().0,
            password,
            read_only: self.read_only.map(|_| false),
        }
    }
}

async fn enter(
    asked: &Asked,
    address: SocketAddr,
    shared: &Shared,
    is_proven: bool,
) -> Result<Connection, HandshakeError> {
    let limit = shared.limits.outgoing_bytes;
    if asked.seen > shared.remote.last_zxid() {
        return Err(HandshakeError::Predecessor);
    }
    let full = |error| {
        if let Some(untold) = shared.table.told.full.tell(shared.clock().now()) {
            tracing::warn!(%error, untold, "no session could be opened");
        }
        HandshakeError::Full
    };
    if asked.session == SessionId(0) {
        let needs_proof = shared.policy.requires_auth && !is_proven;
        let remote = shared.remote.clone().requiring_proof(needs_proof);
        let opened = remote.open(asked.timeout, limit).await;
        return opened.map_err(full);
    }
    // A password of another length is as wrong as any.
    let password = asked.password.unwrap_or_default();
    let found = shared
        .remote
        .reattach(asked.session, password, asked.timeout, limit)
        .await;
    let found = found.map_err(full)?;
    if found.as_ref().err() == Some(&ReattachError::WrongPassword) {
        note_wrong_password(asked.session, address, shared);
        // That tells that there is such a session, as its ephemeral znodes do: ids are no secret. A client that comes too
        // late for its session is told at once.
        shared.penalty(address).await;
    }
    found.map_err(|_| HandshakeError::NoSession)
}

/// Counted at once, and not with the connection's end, which a client can put off or have come early.
fn note_wrong_password(session: SessionId, address: SocketAddr, shared: &Shared) {
    shared.table.count(Count::WrongPassword);
    let now = shared.clock().now();
    if let Some(untold) = shared.table.told.wrong_password.tell(now) {
        tracing::warn!(%address, %session, untold, "a wrong password for a session: it is left to its owner");
    }
}
