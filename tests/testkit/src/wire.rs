//! An independent client of ZooKeeper's protocol. It shares no code with the codec that it checks, and it can break
//! the protocol's rules.

#![allow(dead_code, reason = "each test binary takes what it needs")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

/// Time limit of a wait for the other side, because a server that hangs is a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// Operations.
pub mod op {
    pub const CREATE: i32 = 1;
    pub const DELETE: i32 = 2;
    pub const EXISTS: i32 = 3;
    pub const GET_DATA: i32 = 4;
    pub const SET_DATA: i32 = 5;
    pub const GET_ACL: i32 = 6;
    pub const GET_CHILDREN: i32 = 8;
    pub const PING: i32 = 11;
    pub const MULTI: i32 = 14;
    pub const MULTI_READ: i32 = 22;
    pub const AUTH: i32 = 100;
    pub const SET_WATCHES: i32 = 101;
    pub const EPHEMERALS: i32 = 103;
    pub const COUNT: i32 = 104;
    pub const ADD_WATCH: i32 = 106;
    pub const CLOSE: i32 = -11;
}

/// Codes of answers.
pub mod code {
    pub const SYSTEM_ERROR: i32 = -1;
    pub const UNIMPLEMENTED: i32 = -6;
    pub const NO_NODE: i32 = -101;
}

/// A record or frame under construction.
#[derive(Clone, Debug, Default)]
pub struct Out(pub Vec<u8>);

impl Out {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn bool(mut self, value: bool) -> Self {
        self.0.push(u8::from(value));
        self
    }

    pub fn int(mut self, value: i32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn long(mut self, value: i64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn and(mut self, other: &Self) -> Self {
        self.0.extend_from_slice(&other.0);
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self = self.int(bytes.len() as i32);
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    /// Returns the record with its length in front.
    pub fn framed(self) -> Vec<u8> {
        Self::new().bytes(&self.0).0
    }
}

/// Returns the frame of a request.
pub fn request(xid: i32, op: i32, record: &Out) -> Vec<u8> {
    let mut frame = Out::new().int(xid).int(op);
    frame.0.extend_from_slice(&record.0);
    frame.framed()
}

/// Returns the record of a getData, getChildren or exists.
pub fn read(path: &str, watch: bool) -> Out {
    Out::new().text(path).bool(watch)
}

/// Returns the record of a create with the open ACL.
pub fn create(path: &str, data: &[u8], flags: i32) -> Out {
    let record = Out::new().text(path).bytes(data);
    record
        .int(1)
        .int(31)
        .text("world")
        .text("anyone")
        .int(flags)
}

/// Flags of a create: the lifetime of a znode, and a sequential name.
pub const PERSISTENT: i32 = 0;
pub const EPHEMERAL: i32 = 1;
pub const EPHEMERAL_SEQUENTIAL: i32 = 3;

pub fn delete(path: &str) -> Out {
    Out::new().text(path).int(-1)
}

pub fn set_data(path: &str, data: &[u8]) -> Out {
    Out::new().text(path).bytes(data).int(-1)
}

/// A session as its server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub id: i64,
    pub password: Vec<u8>,
    pub timeout: Duration,
}

impl Session {
    /// The handshake of a client without a session.
    pub fn none(timeout: Duration) -> Self {
        let password = vec![0; 16];
        Self {
            id: 0,
            password,
            timeout,
        }
    }

    /// Returns the session in the answer to a handshake, with id 0 if it is refused.
    pub fn of_answer(frame: &[u8]) -> Self {
        Self {
            timeout: Duration::from_millis(u64::from(int(&frame[4..]).cast_unsigned())),
            id: long(&frame[8..]),
            password: frame[20..36].to_vec(),
        }
    }

    /// Returns the record of a client's first frame.
    pub fn connect_request(&self) -> Out {
        let record = Out::new()
            .int(0)
            .long(0)
            .int(self.timeout.as_millis() as i32);
        record.long(self.id).bytes(&self.password).bool(false)
    }

    pub fn handshake(&self) -> Vec<u8> {
        self.connect_request().framed()
    }
}

/// Reads a frame. Returns its content after the length.
pub fn read_frame(mut stream: impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

/// Sends a frame over any stream. Returns the next frame, which must be its answer.
pub fn ask(mut stream: impl Read + Write, frame: &[u8]) -> Vec<u8> {
    stream.write_all(frame).expect("the server listens");
    read_frame(stream).expect("the server answers")
}

/// The answer to a request, or an event.
#[derive(Clone, Debug)]
pub struct Answer {
    pub xid: i32,
    pub zxid: i64,
    pub err: i32,
    pub record: Vec<u8>,
}

pub const EVENT: i32 = -1;

#[derive(Debug)]
pub struct Conn {
    pub stream: TcpStream,
    next_xid: i32,
}

impl Conn {
    /// A connection that has sent nothing yet.
    pub fn bare(to: SocketAddr) -> io::Result<Self> {
        Self::from_address(Ipv4Addr::LOCALHOST, to)
    }

    /// Connects from another loopback address of this machine, which is any address that starts with 127.
    pub fn from_address(from: Ipv4Addr, to: SocketAddr) -> io::Result<Self> {
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        if from != Ipv4Addr::LOCALHOST {
            bind(&fd, &SocketAddrV4::new(from, 0))?;
        }
        connect(&fd, &to)?;
        let stream = TcpStream::from(fd);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let next_xid = 1;
        Ok(Self { stream, next_xid })
    }

    /// A connection with a new or resumed session.
    pub fn open(to: SocketAddr, session: &Session) -> io::Result<(Self, Session)> {
        let mut conn = Self::bare(to)?;
        let session = conn.enter(session)?;
        Ok((conn, session))
    }

    /// A connection with a new session, which the server must accept.
    pub fn new(to: SocketAddr) -> (Self, Session) {
        let session = Session::none(Duration::from_secs(10));
        Self::open(to, &session).expect("the server takes a client")
    }

    pub fn enter(&mut self, session: &Session) -> io::Result<Session> {
        self.stream.write_all(&session.handshake())?;
        let session = Session::of_answer(&read_frame(&mut self.stream)?);
        match session.id {
            0 => Err(io::Error::other("the session is refused")),
            _ => Ok(session),
        }
    }

    /// Sends a request. Returns its xid.
    pub fn send(&mut self, op: i32, record: &Out) -> io::Result<i32> {
        let xid = self.next_xid;
        self.next_xid += 1;
        self.stream.write_all(&request(xid, op, record))?;
        Ok(xid)
    }

    /// Sends a request this many times, in large writes. Returns the first xid.
    pub fn send_many(&mut self, count: i32, op: i32, record: &Out) -> io::Result<i32> {
        let first = self.next_xid;
        self.next_xid += count;
        let mut frames = Vec::new();
        for xid in first..self.next_xid {
            frames.extend_from_slice(&request(xid, op, record));
            if frames.len() > 1 << 16 || xid + 1 == self.next_xid {
                self.stream.write_all(&frames)?;
                frames.clear();
            }
        }
        Ok(first)
    }

    /// Returns the next answer or event.
    pub fn answer(&mut self) -> io::Result<Answer> {
        let mut frame = read_frame(&mut self.stream)?;
        let record = frame.split_off(16);
        Ok(Answer {
            xid: int(&frame),
            zxid: long(&frame[4..]),
            err: int(&frame[12..]),
            record,
        })
    }

    /// Sends a request and returns its answer. No other request may be pending and no event due.
    pub fn call(&mut self, op: i32, record: &Out) -> io::Result<Answer> {
        let xid = self.send(op, record)?;
        let answer = self.answer()?;
        assert_eq!(answer.xid, xid, "{answer:?}");
        Ok(answer)
    }

    /// Like `call`, and the request must succeed.
    pub fn must(&mut self, op: i32, record: &Out) -> Answer {
        let answer = self.call(op, record).expect("the server answers");
        assert_eq!(answer.err, 0, "{answer:?}");
        answer
    }

    /// Waits until the server has closed the connection, and returns the bytes before that.
    pub fn rest(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        if let Err(error) = self.stream.read_to_end(&mut rest) {
            assert!(is_closed(&error), "the connection is not closed: {error}");
        }
        rest
    }

    /// Returns `true` if the server has closed the connection without a response. Does not wait.
    pub fn is_closed(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        match peeked {
            Ok(count) => count == 0,
            Err(error) => is_closed(&error),
        }
    }
}

/// Returns `true` for an error that means that the other side has closed the connection.
pub fn is_closed(error: &io::Error) -> bool {
    use ErrorKind::*;
    matches!(
        error.kind(),
        ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof
    )
}

fn int(bytes: &[u8]) -> i32 {
    i32::from_be_bytes(bytes[..4].try_into().unwrap())
}

fn long(bytes: &[u8]) -> i64 {
    i64::from_be_bytes(bytes[..8].try_into().unwrap())
}

/// Returns a multiRead that repeats one operation on one path.
pub fn multi_read(operation: i32, path: &str, times: usize) -> Out {
    let mut record = Out::new();
    for _ in 0..times {
        record = record.int(operation).bool(false).int(-1);
        record = record.text(path).bool(false);
    }
    record.int(-1).bool(true).int(-1)
}
