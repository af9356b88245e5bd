//! The records of the handshake, and the headers of all frames after it.

use super::code::Code;
use super::jute::{Data, Jute, Malformed, Reader, Text, records};

/// Reserved xids, which are no numbers of requests.
pub(crate) mod xid {
    /// Of an event.
    pub(crate) const EVENT: i32 = -1;
    /// Of a ping, and of its answer.
    pub(crate) const PING: i32 = -2;
    /// Of an auth packet, and of its answer.
    pub(crate) const AUTH: i32 = -4;
    /// Of a setWatches, and of its answer.
    pub(crate) const SET_WATCHES: i32 = -8;
    /// Of the event of a predecessor's departure, where the [extension](super::EXTENSION) is spoken.
    pub(crate) const DEPARTURE: i32 = -16;
}

/// Version of the protocol in which a client and a server speak Lockkeeper's own operations: `LK`, and the newest number
/// of the extension (docs/protocol.md). Every other client asks for 0, but for ClickHouse's, which asks for 10.
pub(crate) const EXTENSION: i32 = 0x4c4b_0004;

/// The oldest version of the extension that this one still speaks.
pub(crate) const OLDEST_EXTENSION: i32 = 0x4c4b_0003;

/// Length of a session's password, in bytes.
pub(crate) const PASSWORD_BYTES: usize = 16;

records! {
    /// First frame of a client.
    ConnectRequest<'a> {
        /// The oldest version of the [extension](EXTENSION) that the client speaks; 0 of ZooKeeper's clients. The newest
        /// follows at the end of the frame, behind the statements, as an `i32`: if it is missing, it is the same.
        protocol_version: i32,
        /// The last zxid that the client has seen. If it is ahead of the server's, the server closes the connection.
        last_zxid_seen: i64,
        /// The timeout that the client asks for, in milliseconds.
        timeout_ms: i32,
        /// The session to take up again; 0 for a new one.
        session: i64,
        /// Its password; for a new session sixteen zeros, or nothing.
        password: Data<'a>,
        /// True if a read-only server, cut off from its ensemble, will do. `None` for a client older than 3.4, and for
        /// older releases of go-zookeeper: they neither send the field nor expect it in the response.
        read_only: Option<bool>,
    }

    /// First frame of a server. If the session has ended or the password is wrong, timeout, session and password are
    /// zeros, and the connection is closed after it.
    ConnectResponse<'a> {
        /// The [agreed version](Handshake::version); 0 also of every other server.
        protocol_version: i32,
        /// The negotiated timeout, in milliseconds.
        timeout_ms: i32,
        /// The session.
        session: i64,
        /// Its password.
        password: Data<'a>,
        /// True if the server is read-only; `None` for a client that did not send the field.
        read_only: Option<bool>,
    }
}

records! {
    /// Statement of a Unix socket's client about its process, behind its [`ConnectRequest`] in the same frame. A server
    /// that does not know it ignores it, as ZooKeeper does. Never sent over TCP.
    ProcessStatement<'a> {
        /// Id of the machine's start, as /proc/sys/kernel/random/boot_id has it.
        boot_id: Text<'a>,
        /// Inode of the pid namespace.
        pid_namespace: i64,
        pid: i32,
        /// Time of its start in clock ticks since the machine's start.
        start_time: i64,
    }
}

records! {
    /// Statement of a server about its limits, behind its [`ConnectResponse`] in the same frame. Only a client that has
    /// asked for the extension gets it, and older ones ignore it.
    ServerLimits {
        /// Limit of a client's frames, in bytes without their length. A longer one closes the connection.
        frame_bytes: i32,
    }
}

/// First frame of a client, with what follows its [`ConnectRequest`].
pub(crate) struct Handshake<'a> {
    pub(crate) request: ConnectRequest<'a>,
    pub(crate) process: Option<ProcessStatement<'a>>,
    /// The newest version of the extension that the client and this server speak; 0, ZooKeeper's, if there is none.
    pub(crate) version: i32,
}

impl<'a> Handshake<'a> {
    /// Reads a frame. Other bytes behind the request are ignored, as by ZooKeeper.
    pub(crate) fn read(frame: &'a [u8]) -> Result<Self, Malformed> {
        let mut frame = Reader::new(frame);
        let request: ConnectRequest<'_> = frame.next()?;
        let mut behind = frame.clone();
        let process = behind.next().ok();
        let mut rest = if process.is_some() { behind } else { frame };
        let oldest = request.protocol_version;
        let newest = rest.next().unwrap_or(oldest).min(EXTENSION);
        let is_spoken = (OLDEST_EXTENSION..=newest).contains(&oldest);
        Ok(Self {
            request,
            process,
            version: if is_spoken { newest } else { 0 },
        })
    }
}

impl ConnectResponse<'_> {
    /// Returns the refusal of a session.
    pub(crate) fn refused(read_only: Option<bool>) -> Self {
        Self {
            protocol_version: 0,
            timeout_ms: 0,
            session: 0,
            password: &[0; PASSWORD_BYTES],
            // This server is never read-only.
            read_only: read_only.map(|_| false),
        }
    }
}

/// A last field that older clients leave out. Told by the end of the frame: records have no version.
impl Jute<'_> for Option<bool> {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(from.next().ok())
    }

    fn put(&self, to: &mut Vec<u8>) {
        if let Some(flag) = self {
            flag.put(to);
        }
    }
}

records! {
    /// Header of every request.
    RequestHeader {
        /// Number of the request, repeated in its reply.
        xid: i32,
        /// Number of the operation. See [`Op`](super::Op).
        op: i32,
    }

    /// Header of every reply and every event.
    ReplyHeader {
        /// Number of the request, or one of [`xid`].
        xid: i32,
        /// The last zxid that the reply reflects.
        zxid: i64,
        /// A number of [`Code`].
        err: i32,
    }
}

impl ReplyHeader {
    /// Returns the header of a reply.
    pub(crate) fn new(xid: i32, zxid: i64, code: Code) -> Self {
        let err = code.number();
        Self { xid, zxid, err }
    }
}
