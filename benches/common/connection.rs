//! [`Connection`]: a plain connection with a session.

use std::time::Duration;

use testkit::wire::{Out, Session, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::socket::{Address, Stream};

/// Session timeout that every connection requests.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the path of a contender in a queue, with a fixed UUID.
pub(crate) fn entry(queue: &str) -> String {
    format!("{queue}/_c_6f1d2c9a-3b7e-4c58-9a43-0d5e8f7a1b26-lock-")
}

pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    taken: usize,
}

/// An answer or an event, without its length prefix.
pub(crate) struct Reply<'a> {
    pub(crate) xid: i32,
    /// 0 or an error code.
    pub(crate) error: i32,
    pub(crate) body: &'a [u8],
}

impl Reply<'_> {
    /// The text at the start of the body.
    pub(crate) fn text(&self) -> &str {
        let length = int_at(self.body, 0) as usize;
        std::str::from_utf8(&self.body[4..4 + length]).expect("a path is text")
    }
}

impl Connection {
    pub(crate) async fn open(address: &Address) -> Self {
        let stream = address.connect().await;
        let mut connection = Self {
            stream: stream.expect("the server listens"),
            outgoing: Session::none(TIMEOUT).handshake(),
            incoming: Vec::new(),
            taken: 0,
        };
        connection.flush().await;
        let answer = connection.frame().await;
        let granted = int_at(answer, 4);
        assert_eq!(granted, TIMEOUT.as_millis() as i32, "the session's timeout");
        connection
    }

    /// Returns the bare connection. No request may be in flight.
    pub(crate) fn into_stream(self) -> Box<dyn Stream> {
        self.stream
    }

    pub(crate) fn put(&mut self, xid: i32, op: i32, record: &Out) {
        self.outgoing.extend_from_slice(&request(xid, op, record));
    }

    pub(crate) async fn flush(&mut self) {
        let sent = self.stream.write_all(&self.outgoing).await;
        sent.expect("the server reads");
        self.outgoing.clear();
    }

    pub(crate) async fn next(&mut self) -> Reply<'_> {
        let frame = self.frame().await;
        read(frame)
    }

    /// The next one, if it has arrived.
    pub(crate) fn arrived(&mut self) -> Option<Reply<'_>> {
        let length = self.whole()?;
        Some(read(self.take(length)))
    }

    /// Waits for more bytes. Cancel safe.
    pub(crate) async fn read(&mut self) {
        self.incoming.drain(..self.taken);
        self.taken = 0;
        if self.incoming.is_empty() && self.incoming.capacity() == 0 {
            self.incoming.reserve(FIRST_ROOM);
        }
        let read = self.stream.read_buf(&mut self.incoming).await;
        assert_ne!(read.expect("the server writes"), 0, "the server hung up");
    }

    async fn frame(&mut self) -> &[u8] {
        loop {
            if let Some(length) = self.whole() {
                return self.take(length);
            }
            self.read().await;
        }
    }

    /// The length of the next frame, if it has arrived completely.
    fn whole(&self) -> Option<usize> {
        let waiting = &self.incoming[self.taken..];
        let length = int_at(waiting.get(..4)?, 0) as usize;
        (waiting.len() >= 4 + length).then_some(length)
    }

    fn take(&mut self, length: usize) -> &[u8] {
        let start = self.taken + 4;
        self.taken = start + length;
        &self.incoming[start..start + length]
    }
}

/// Initial buffer size, affordable for ten thousand connections.
const FIRST_ROOM: usize = 512;

fn read(frame: &[u8]) -> Reply<'_> {
    Reply {
        xid: int_at(frame, 0),
        error: int_at(frame, 12),
        body: &frame[16..],
    }
}

pub(crate) fn address_of(url: &str) -> Address {
    Address::of(url).expect("the URL names an address and a port, or a socket")
}

fn int_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}
