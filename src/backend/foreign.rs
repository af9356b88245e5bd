//! The protocol that a server speaks instead of ZooKeeper's, for the error of a client that gets no session.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::wire::{LENGTH_BYTES, foreign_protocol};

/// Time for the server to answer.
pub(super) const LONGEST_ANSWER: Duration = Duration::from_millis(500);

/// Returns the protocol of the server at the other end. The request is one of HTTP, which a ZooKeeper server takes for a
/// frame that is too long, and then it closes the connection. Blocks.
pub(super) fn protocol_of(mut stream: TcpStream) -> Option<&'static str> {
    stream.set_read_timeout(Some(LONGEST_ANSWER)).ok()?;
    stream.set_write_timeout(Some(LONGEST_ANSWER)).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = [0; LENGTH_BYTES];
    stream.read_exact(&mut answer).ok()?;
    foreign_protocol(answer)
}

/// Returns the text of an error for an answer in another protocol.
pub(super) fn refusal(why: &str) -> String {
    format!("the server's answer is not of ZooKeeper's protocol ({why})")
}
