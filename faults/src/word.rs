//! Reports of a server about itself: four-letter words, and its log.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// Asks a server by a four-letter word.
pub(crate) fn ask(address: SocketAddr, word: &str) -> io::Result<String> {
    let limit = Duration::from_millis(500);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns the last lines of a log.
pub(crate) fn end_of(log: &Path) -> String {
    const LINES: usize = 15;
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<_> = text.lines().rev().take(LINES).collect();
    lines.reverse();
    lines.join("\n")
}
