//! Probe for the protocol that a server speaks, for example TLS or HTTP. It runs after a server has not opened a
//! session. The failed attempt does not reveal the protocol, because a server that does not understand our handshake
//! closes the connection silently or waits for more bytes.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::tls::TlsError;
use crate::wire::{LENGTH_BYTES, SPEAKS_TLS, foreign_protocol};

/// Time limit for connecting, and for each read or write.
const LIMIT: Duration = Duration::from_secs(1);

/// A ClientHello of TLS 1.2 without extensions. A TLS server answers with its own hello or an alert.
#[rustfmt::skip]
const CLIENT_HELLO: [u8; 60] = [
    // Header of a handshake record and of the message in it.
    0x16, 3, 1, 0, 55, 1, 0, 0, 51, 3, 3,
    // "Random" bytes, and no session id.
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    // Suites: ECDHE with AES-GCM, and RSA with AES-GCM. No compression.
    0, 12, 0xc0, 0x2b, 0xc0, 0x2f, 0xc0, 0x2c, 0xc0, 0x30, 0, 0x9c, 0, 0x9d, 1, 0,
];

#[derive(Clone, Debug)]
pub(super) enum WrongProtocol {
    Tls(TlsError),
    Other(&'static str),
}

pub(super) fn refusal(why: &str) -> String {
    format!("the server's answer is not of ZooKeeper's protocol ({why})")
}

/// Returns the protocol of a server that does not speak ours. `None` if the probe does not recognize the protocol.
/// Usually blocks for at most four times [`LIMIT`].
pub(super) fn wrong_protocol(host: &str, is_tls: bool) -> Option<WrongProtocol> {
    let answer = |question: &[u8]| answer(host, question);
    let address = || host.to_owned();
    if is_tls {
        // A server without TLS answers with its version, with a refusal of `srvr`, or with "This ZooKeeper instance is
        // not currently serving requests".
        let is_plain = matches!(&answer(b"srvr")?, b"Zook" | b"srvr" | b"This");
        return is_plain.then(|| WrongProtocol::Tls(TlsError::NotSpoken { host: address() }));
    }
    // Some servers answer only after a line break, which the HTTP request contains but the ClientHello does not.
    let questions: [&[u8]; 2] = [&CLIENT_HELLO, b"GET / HTTP/1.0\r\n\r\n"];
    let mut answers = questions.into_iter().filter_map(answer);
    Some(match answers.find_map(foreign_protocol)? {
        SPEAKS_TLS => WrongProtocol::Tls(TlsError::Required { host: address() }),
        why => WrongProtocol::Other(why),
    })
}

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
