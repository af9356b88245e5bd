//! Finds out which protocol a server speaks that does not open a session: TLS or not, or for example HTTP. A failed
//! connection does not show it, because such servers close it silently or wait for more bytes.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::tls::TlsError;
use crate::wire::{LENGTH_BYTES, SPEAKS_TLS, foreign_protocol};

/// For connecting, and for each read or write.
const LIMIT: Duration = Duration::from_secs(1);

/// A ClientHello of TLS 1.2 without extensions. A TLS server answers with its own hello or an alert.
#[rustfmt::skip]
const CLIENT_HELLO: [u8; 60] = [
    // Header of a handshake record and of the message in it.
    0x16, 3, 1, 0, 55, 1, 0, 0, 51, 3, 3,
    // "Random" bytes, and no session id.
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    // Suites: ECDHE with AES-GCM, and RSA with it. No compression.
    0, 12, 0xc0, 0x2b, 0xc0, 0x2f, 0xc0, 0x2c, 0xc0, 0x30, 0, 0x9c, 0, 0x9d, 1, 0,
];

#[derive(Clone, Debug)]
pub(super) enum WrongProtocol {
    Tls(TlsError),
    /// What the answer showed.
    Other(&'static str),
}

pub(super) fn refusal(why: &str) -> String {
    format!("the server's answer is not of ZooKeeper's protocol ({why})")
}

/// Returns `None` if the protocol is unknown. Blocks while the host is looked up, and then for at most four times
/// [`LIMIT`].
pub(super) fn wrong_protocol(host: &str, is_tls: bool) -> Option<WrongProtocol> {
    let answer = |question: &[u8]| answer(host, question);
    let address = || host.to_owned();
    if is_tls {
        // A command that is not allowed is answered with its name.
        let is_plain = matches!(&answer(b"srvr")?, b"Zook" | b"srvr" | b"This");
        return is_plain.then(|| WrongProtocol::Tls(TlsError::NotSpoken { host: address() }));
    }
    // Some servers wait for the end of a line, which the ClientHello does not have.
    let questions: [&[u8]; 2] = [&CLIENT_HELLO, b"GET / HTTP/1.0\r\n\r\n"];
    let mut answers = questions.into_iter().filter_map(answer);
    Some(match answers.find_map(foreign_protocol)? {
        SPEAKS_TLS => WrongProtocol::Tls(TlsError::Required { host: address() }),
        why => WrongProtocol::Other(why),
    })
}

/// Asks on a separate connection, and returns the first bytes of the answer.
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
