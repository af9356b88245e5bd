//! Finds out which protocol a server speaks that gives no session: TLS to a client that does not, or the reverse, or
//! another one, for example HTTP.
//!
//! The connection that has failed does not show it: such ports close it without a word, or wait for more.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::tls::TlsError;
use crate::wire::{LENGTH_BYTES, SPEAKS_TLS, foreign_protocol};

/// Time limit for the server to take the connection, and again for its answer.
const LIMIT: Duration = Duration::from_secs(1);

/// A ClientHello of TLS 1.2 without extensions. A server that speaks TLS answers it with its own, or with an alert.
#[rustfmt::skip]
const CLIENT_HELLO: [u8; 60] = [
    // A record of the handshake, and in it the message.
    0x16, 3, 1, 0, 55, 1, 0, 0, 51, 3, 3,
    // "Random" bytes, and no session.
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    // Suites: ECDHE with AES-GCM, and RSA with it. No compression.
    0, 12, 0xc0, 0x2b, 0xc0, 0x2f, 0xc0, 0x2c, 0xc0, 0x30, 0, 0x9c, 0, 0x9d, 1, 0,
];

/// A protocol that is not the one of the client.
#[derive(Clone, Debug)]
pub(super) enum WrongProtocol {
    /// One side speaks TLS, and the other does not.
    Tls(TlsError),
    /// With what shows it.
    Other(&'static str),
}

/// Returns the text of an error for an answer that is not of the protocol.
pub(super) fn refusal(why: &str) -> String {
    format!("the server's answer is not of ZooKeeper's protocol ({why})")
}

/// Returns the protocol of a server that does not speak the client's; `None` if it is unknown.
///
/// It blocks for as long as a lookup of the host takes, and then for four times [`LIMIT`] at most.
pub(super) fn wrong_protocol(host: &str, is_tls: bool) -> Option<WrongProtocol> {
    let answer = |question: &[u8]| answer(host, question);
    let address = || host.to_owned();
    if is_tls {
        // A word that is not allowed is answered, too, with its name.
        let is_plain = matches!(&answer(b"srvr")?, b"Zook" | b"srvr" | b"This");
        return is_plain.then(|| WrongProtocol::Tls(TlsError::NotSpoken { host: address() }));
    }
    // Some servers wait for the end of a line, which the first question does not have.
    let questions: [&[u8]; 2] = [&CLIENT_HELLO, b"GET / HTTP/1.0\r\n\r\n"];
    let mut answers = questions.into_iter().filter_map(answer);
    Some(match answers.find_map(foreign_protocol)? {
        SPEAKS_TLS => WrongProtocol::Tls(TlsError::Required { host: address() }),
        why => WrongProtocol::Other(why),
    })
}

/// Returns the first bytes that the server sends to a connection of its own.
fn answer(host: &str, question: &[u8]) -> Option<[u8; LENGTH_BYTES]> {
    let mut addresses = host.to_socket_addrs().ok()?;
    let mut server = addresses.find_map(|at| TcpStream::connect_timeout(&at, LIMIT).ok())?;
    server.set_read_timeout(Some(LIMIT)).ok()?;
    server.set_write_timeout(Some(LIMIT)).ok()?;
    server.write_all(question).ok()?;
    let mut answer = [0; LENGTH_BYTES];
    server.read_exact(&mut answer).ok()?;
    Some(answer)
}
