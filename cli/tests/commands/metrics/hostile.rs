//! Misbehaving clients of the metrics port.

use std::io::{Read, Write};
use std::net::TcpStream;

use lockkeeper::Mutex;
use rustix::process::Signal;

use super::*;

#[test]
fn silent_clients_keep_out_neither_a_scraper_nor_a_lock() {
    let server = Server::start(&mut serve_metrics("memory"));
    let at = metrics_of(&server);
    // Open more connections than any limit allows, each with an incomplete head.
    let silent: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(&at).unwrap();
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: ");
            stream
        })
        .collect();
    assert_eq!(
        Samples::read(&at).at("lockkeeper_connections{transport=\"tcp\"}"),
        0.0
    );
    block_on(async {
        let client = server.connect().await;
        let mutex = Mutex::new(&client, "/lock").unwrap();
        mutex.lock().await.unwrap().release().await.unwrap();
        assert_eq!(
            Samples::read(&at).at("lockkeeper_connections{transport=\"tcp\"}"),
            1.0
        );
    });
    // The server keeps only a few of these connections, and closes them when their time limit is reached.
    for mut stream in silent {
        let mut rest = Vec::new();
        // A connection may be closed or reset, but must never be answered.
        let _ = stream.read_to_end(&mut rest);
        let text = String::from_utf8_lossy(&rest);
        assert!(!text.starts_with("HTTP/1.1 200"), "{text}");
    }
    ended_well(&server.end(Signal::TERM));
}

/// Sends bytes, and returns the status of the answer. Returns `None` if the connection is closed without an answer.
fn status(at: &str, sent: &[u8]) -> Option<u16> {
    let mut stream = TcpStream::connect(at).unwrap();
    // Ignore an error, because the server may close the connection before it has read everything.
    let _ = stream.write_all(sent);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer);
    text.split(' ').nth(1).map(|status| status.parse().unwrap())
}

#[test]
fn bytes_that_are_no_request_are_refused_and_the_next_client_is_served() {
    let server = Server::start(&mut serve_metrics("memory"));
    let at = metrics_of(&server);
    let long = format!(
        "GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X: 1\r\n".repeat(500));
    let path = format!("GET /{} HTTP/1.1\r\n\r\n", "p".repeat(1 << 20));
    let body = b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\nxxxx";
    let chunked =
        b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n";
    let handshake = [0; 48];
    for (sent, expected) in [
        (long.as_bytes(), &[431, 400][..]),
        (many.as_bytes(), &[431, 400]),
        (path.as_bytes(), &[414, 431, 400]),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", &[400]),
        (b"GET / HTTP/9.9\r\n\r\n", &[400, 505]),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[400, 505]),
        (body, &[405]),
        (chunked, &[200, 400]),
        (&handshake, &[400]),
        (
            b"GET http://127.0.0.1/../../etc/passwd HTTP/1.1\r\n\r\n",
            &[404],
        ),
    ] {
        let status = status(&at, sent);
        let told = String::from_utf8_lossy(&sent[..sent.len().min(40)]);
        // A client that still sends while the server closes the connection may lose the answer.
        assert!(
            status.is_none_or(|it| expected.contains(&it)),
            "{told}: {status:?}"
        );
        assert_eq!(request(&at, "GET", "/healthz").status, 200, "after {told}");
    }
    // The second of two pipelined requests is not answered.
    let mut stream = TcpStream::connect(&at).unwrap();
    let ask = b"GET /healthz HTTP/1.1\r\n\r\n";
    stream.write_all(&[&ask[..], ask].concat()).unwrap();
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    assert_eq!(text.matches("alive").count(), 1, "{text}");
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn a_client_that_does_not_read_does_not_keep_the_server_from_ending() {
    let server = Server::start(&mut serve_metrics("memory"));
    let at = metrics_of(&server);
    let deaf: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = TcpStream::connect(&at).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream
        })
        .collect();
    assert_eq!(request(&at, "GET", "/healthz").status, 200);
    ended_well(&server.end(Signal::TERM));
    drop(deaf);
}
