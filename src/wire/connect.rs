//! The handshake, and the headers of all that follows it.

use super::code::Code;
use super::jute::{Data, Jute, Malformed, Reader, records};

/// The xids that are no request's own number.
pub(crate) mod xid {
    /// Of an event.
    pub(crate) const EVENT: i32 = -1;
    /// Of a ping, and of its answer.
    pub(crate) const PING: i32 = -2;
    /// Of an auth packet, and of its answer.
    pub(crate) const AUTH: i32 = -4;
    /// Of a setWatches, and of its answer.
    pub(crate) const SET_WATCHES: i32 = -8;
}

/// The bytes of a session's password.
pub(crate) const PASSWORD_BYTES: usize = 16;

/// The first frame of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectRequest<'a> {
    /// 0, of every client.
    pub(crate) protocol_version: i32,
    /// The last zxid that the client has seen; where it is ahead of the server's, the connection is closed.
    pub(crate) last_zxid_seen: i64,
    /// The timeout that the client asks for, in milliseconds.
    pub(crate) timeout_ms: i32,
    /// The session to go on with; 0 for a new one.
    pub(crate) session: i64,
    /// Its password; of a new one sixteen zeros, or nothing.
    pub(crate) password: Data<'a>,
    /// Whether a server that is cut off from its ensemble will do; `None` of a client of before 3.4,
    /// which does not say, and does not expect it of the answer.
    pub(crate) read_only: Option<bool>,
}

/// The first frame of a server. Where the session is over or the password wrong, timeout, session and
/// password are zeros, and the connection is closed after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectResponse<'a> {
    /// 0.
    pub(crate) protocol_version: i32,
    /// The timeout that holds, in milliseconds.
    pub(crate) timeout_ms: i32,
    /// The session.
    pub(crate) session: i64,
    /// Its password.
    pub(crate) password: Data<'a>,
    /// Whether the server is cut off; `None` to a client that did not say.
    pub(crate) read_only: Option<bool>,
}

impl ConnectResponse<'_> {
    /// The refusal of a session.
    pub(crate) fn refused(read_only: Option<bool>) -> Self {
        Self {
            protocol_version: 0,
            timeout_ms: 0,
            session: 0,
            password: &[0; PASSWORD_BYTES],
            // Not cut off, whatever was asked.
            read_only: read_only.map(|_| false),
        }
    }
}

impl<'a> Jute<'a> for ConnectRequest<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Self {
            protocol_version: from.next()?,
            last_zxid_seen: from.next()?,
            timeout_ms: from.next()?,
            session: from.next()?,
            password: from.next()?,
            read_only: from.next().ok(),
        })
    }

    fn put(&self, to: &mut Vec<u8>) {
        self.protocol_version.put(to);
        self.last_zxid_seen.put(to);
        self.timeout_ms.put(to);
        self.session.put(to);
        self.password.put(to);
        if let Some(read_only) = self.read_only {
            read_only.put(to);
        }
    }
}

impl<'a> Jute<'a> for ConnectResponse<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Self {
            protocol_version: from.next()?,
            timeout_ms: from.next()?,
            session: from.next()?,
            password: from.next()?,
            read_only: from.next().ok(),
        })
    }

    fn put(&self, to: &mut Vec<u8>) {
        self.protocol_version.put(to);
        self.timeout_ms.put(to);
        self.session.put(to);
        self.password.put(to);
        if let Some(read_only) = self.read_only {
            read_only.put(to);
        }
    }
}

records! {
    /// Before every request.
    RequestHeader {
        /// The request's number; its reply has the same.
        xid: i32,
        /// The operation's number. See [`Op`](super::Op).
        op: i32,
    }

    /// Before every reply and every event.
    ReplyHeader {
        /// The request's number, or one of [`xid`].
        xid: i32,
        /// The last zxid that the reply reflects.
        zxid: i64,
        /// A number of [`Code`].
        err: i32,
    }
}

impl ReplyHeader {
    /// The header of a reply.
    pub(crate) fn new(xid: i32, zxid: i64, code: Code) -> Self {
        let err = code.number();
        Self { xid, zxid, err }
    }
}
