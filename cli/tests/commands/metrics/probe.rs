//! `lockkeeper health`, as used in a container's health check.

use std::io::{Read, Write};
use std::net::TcpListener;

use rustix::process::Signal;

use super::*;

fn health(address: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(["health", "--http", address]).args(more);
    command.output().unwrap()
}

#[test]
fn a_server_that_serves_is_alive_and_ready() {
    let server = Server::start(&mut serve_metrics("memory"));
    let at = metrics_of(&server);
    assert_eq!(success(&health(&at, &[])), "alive\n");
    assert_eq!(success(&health(&at, &["--ready"])), "ready\n");
    let (_, port) = at.rsplit_once(':').unwrap();
    assert_eq!(
        success(&health(&format!("localhost:{port}"), &[])),
        "alive\n"
    );
    ended_well(&server.end(Signal::TERM));
    let said = failure(&health(&at, &[]));
    assert!(said.contains("no answer to http://127.0.0.1:"), "{said}");
}

#[test]
fn in_a_pause_it_is_alive_and_not_ready() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    let serve = || {
        let mut command = serve_metrics(dir.to_str().unwrap());
        command.arg("--durability=delayed-restart");
        Server::start(&mut command)
    };
    let server = serve();
    block_on(async { put(&server.connect().await, "/a", "kept").await });
    server.end(Signal::KILL);
    let server = serve();
    let at = metrics_of(&server);
    assert_eq!(success(&health(&at, &[])), "alive\n");
    let said = failure(&health(&at, &["--ready"]));
    let reason = "a pause: clients may still believe in sessions that a restart has ended";
    assert_eq!(said, format!("lockkeeper: {reason}\n"));
}

#[test]
fn a_server_that_is_stopped_is_not_alive() {
    let server = Server::start(&mut serve_metrics("memory"));
    server.signal(Signal::STOP);
    let said = failure(&health(&metrics_of(&server), &["--timeout=200ms"]));
    assert!(said.contains("timed out"), "{said}");
}

#[test]
fn an_answer_that_never_ends_or_is_no_http_is_no_health() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let answers = std::thread::spawn(move || {
        let (mut slow, _) = listener.accept().unwrap();
        while slow.write_all(b"H").is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let (mut strange, _) = listener.accept().unwrap();
        // Read the request. If it stayed unread, the connection would end with a reset.
        let mut request = [0; 1_024];
        assert!(strange.read(&mut request).unwrap() > 0);
        strange
            .write_all(b"SSH-2.0-OpenSSH 200\r\n\r\nalive\n")
            .unwrap();
    });
    let said = failure(&health(&at, &["--timeout=300ms"]));
    assert!(said.contains("timed out"), "{said}");
    let said = failure(&health(&at, &[]));
    assert!(said.contains("does not speak HTTP"), "{said}");
    answers.join().unwrap();
}
