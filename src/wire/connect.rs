//! Records of the handshake, and the headers of all later frames.

use super::code::Code;
use super::jute::{Data, Jute, Malformed, Reader, Text, records};

/// Reserved xids, for frames that are not numbered requests. The answer to such a frame has the same xid.
pub(crate) mod xid {
    pub(crate) const EVENT: i32 = -1;
    pub(crate) const PING: i32 = -2;
    pub(crate) const AUTH: i32 = -4;
    pub(crate) const SET_WATCHES: i32 = -8;
    /// Event that a predecessor has left, on connections that speak the [extension](super::EXTENSION).
    pub(crate) const DEPARTURE: i32 = -16;
}

/// Protocol version that offers Lockkeeper's own operations: the letters `LK` and the newest version of the extension
/// (docs/protocol.md). Other clients send 0, except for ClickHouse's client, which sends 10.
pub(crate) const EXTENSION: i32 = 0x4c4b_0004;

pub(crate) const OLDEST_EXTENSION: i32 = 0x4c4b_0003;

pub(crate) const PASSWORD_BYTES: usize = 16;

records! {
    ConnectRequest<'a> {
        /// The oldest version of the [extension](EXTENSION) that the client speaks, or 0 from ZooKeeper's clients. A
        /// client that also speaks newer versions writes the newest one as an `i32` at the end of the frame.
        protocol_version: i32,
        /// The last zxid that the client has seen. A server with a lower zxid closes the connection.
        last_zxid_seen: i64,
        timeout_ms: i32,
        /// The session to resume, or 0 for a new session.
        session: i64,
        /// Sixteen zeros or nothing for a new session.
        password: Data<'a>,
        /// True if the client accepts a server that is cut off from its ensemble and therefore read-only. `None` if the
        /// client is older than 3.4 or an old release of go-zookeeper. Such clients neither send this field nor expect
        /// it in the response.
        read_only: Option<bool>,
    }

    /// First frame of a server. If the session has ended or the password is wrong, timeout, session and password are
    /// zero. The server then closes the connection.
    ConnectResponse<'a> {
        protocol_version: i32,
        timeout_ms: i32,
        session: i64,
        password: Data<'a>,
        read_only: Option<bool>,
    }
}

records! {
    /// A client's statement about its own process, sent only over Unix sockets. It follows the [`ConnectRequest`] in
    /// the same frame. Servers that do not know the statement ignore it.
    ProcessStatement<'a> {
        /// Id of the machine's boot, from /proc/sys/kernel/random/boot_id.
        boot_id: Text<'a>,
        /// Inode of the pid namespace.
        pid_namespace: i64,
        pid: i32,
        /// Start of the process, in clock ticks since boot.
        start_time: i64,
    }
}

records! {
    /// Limits of a server, sent only to clients that offered the extension. They follow the [`ConnectResponse`] in the
    /// same frame. Clients of an older version ignore them.
    ServerLimits {
        /// Largest frame that the server accepts, in bytes without the length. If a frame is larger, the server closes
        /// the connection.
        frame_bytes: i32,
    }
}

pub(crate) struct Handshake<'a> {
    pub(crate) request: ConnectRequest<'a>,
    pub(crate) process: Option<ProcessStatement<'a>>,
    /// The newest version of the extension that both sides speak, or 0 if there is none.
    pub(crate) version: i32,
}

impl<'a> Handshake<'a> {
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
    pub(crate) fn refused(read_only: Option<bool>) -> Self {
        Self {
            protocol_version: 0,
            timeout_ms: 0,
            session: 0,
            password: &[0; PASSWORD_BYTES],
            read_only: read_only.map(|_| false),
        }
    }
}

/// A field at the end of a record, which older clients leave out. If the frame ends before it, the field is missing.
impl Jute<'_> for Option<bool> {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(from.next().ok())
    }

    fn put(&self, to: &mut Vec<u8>) {
        if let Some(flag) = self {
            flag.put(to);
        }
    }

    fn bytes(&self) -> usize {
        usize::from(self.is_some())
    }
}

records! {
    RequestHeader {
        xid: i32,
        op: i32,
    }

    ReplyHeader {
        /// Number of the request, or a reserved number from [`xid`].
        xid: i32,
        zxid: i64,
        err: i32,
    }
}

impl ReplyHeader {
    pub(crate) fn new(xid: i32, zxid: i64, code: Code) -> Self {
        let err = code.number();
        Self { xid, zxid, err }
    }
}
