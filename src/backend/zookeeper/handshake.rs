//! Frames of a connection that this module opens beside the crate's: the handshake, an auth packet, closeSession.
//!
//! The records are those of [`wire`](crate::wire), the only codec of the protocol here.

use std::io::{self, Read};
use std::time::Duration;

use crate::wire::{
    Auth, ConnectRequest, ConnectResponse, Jute, LENGTH_BYTES, Op, PASSWORD_BYTES, Reader,
    RequestHeader, put_frame, xid,
};

/// Limit of a server's first frame, in bytes: a `ConnectResponse` has 41. The frame is allocated by the length that the
/// peer sends, which may be no ZooKeeper.
const MAX_RESPONSE_BYTES: usize = 1024;

/// Returns the frame that asks for a new session.
pub(super) fn connect(timeout: Duration) -> Vec<u8> {
    frame(&ConnectRequest {
        protocol_version: 0,
        // A server that is behind the zxid given here refuses the session; this one reads nothing.
        last_zxid_seen: 0,
        timeout_ms: i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
        // A new session: with the id of an existing one the server would close that one's connection.
        session: 0,
        password: &[0; PASSWORD_BYTES],
        read_only: Some(false),
    })
}

/// Returns the frame that proves an identity.
pub(super) fn auth(scheme: &str, secret: &[u8]) -> Vec<u8> {
    let header = RequestHeader {
        xid: xid::AUTH,
        op: Op::Auth.number(),
    };
    let packet = Auth {
        kind: 0,
        scheme: scheme.into(),
        auth: secret,
    };
    let mut out = Vec::new();
    put_frame(&mut out, |to| {
        header.put(to);
        packet.put(to);
    });
    out
}

/// Returns the frame that closes the session.
pub(super) fn close_session() -> Vec<u8> {
    frame(&RequestHeader {
        xid: 1,
        op: Op::CloseSession.number(),
    })
}

/// Reads the server's `ConnectResponse`, and returns the session timeout that it gives.
///
/// # Errors
/// Those of the connection, and one for a server that refuses the session.
pub(super) fn read_timeout(from: &mut impl Read) -> io::Result<Duration> {
    let frame = read_frame(from)?;
    let response = Reader::new(&frame[LENGTH_BYTES..]).next::<ConnectResponse<'_>>();
    let timeout_ms = response
        .map(|response| response.timeout_ms)
        .unwrap_or_default();
    match u64::try_from(timeout_ms) {
        // A refused session has the timeout 0 (rule 13).
        Ok(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        _ => Err(io::Error::other("the server refuses the session")),
    }
}

/// Reads a frame of the handshake, and returns it with its length.
pub(super) fn read_frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; LENGTH_BYTES];
    from.read_exact(&mut length)?;
    let bytes = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if bytes > MAX_RESPONSE_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = vec![0; LENGTH_BYTES + bytes];
    frame[..LENGTH_BYTES].copy_from_slice(&length);
    from.read_exact(&mut frame[LENGTH_BYTES..])?;
    Ok(frame)
}

fn frame<'a>(record: &impl Jute<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, |to| record.put(to));
    out
}
