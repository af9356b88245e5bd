//! `/healthz` and `/readyz` from the server's start to its end.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::Stdio;

use rustix::process::{Signal, kill_process};
use testkit::ChildProcess;

use super::super::stops::{deaf, forbid_writing};
use super::*;

fn probe(at: &str, path: &str) -> (u16, String) {
    let page = request(at, "GET", path);
    (page.status, page.body)
}

fn ready(at: &str) -> (u16, String) {
    probe(at, "/readyz")
}

const READY: (u16, &str) = (200, "ready\n");

fn is_ready(at: &str) -> bool {
    let (status, text) = ready(at);
    (status, &*text) == READY
}

#[test]
fn it_is_ready_once_its_store_is_open() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    let former = Server::start(&mut serve_in(&dir));
    let mut command = serve_metrics(dir.to_str().unwrap());
    command.args(["--open-timeout=10m"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut next = ChildProcess::spawn(&mut command);
    let mut log = BufReader::new(next.stderr.take().unwrap()).lines();
    let line = log.find_map(|line| line.ok().filter(|line| line.contains("metrics and health")));
    let (_, at) = line.as_deref().unwrap().rsplit_once("address=").unwrap();
    let starting = "the server is starting: its store is being opened\n";
    assert_eq!(ready(at), (503, starting.into()));
    assert_eq!(probe(at, "/healthz"), (200, "alive\n".into()));
    // The metrics of the process exist before the server is ready.
    let samples = Samples::read(at);
    assert!(samples.get("process_open_fds").is_some());
    assert_eq!(samples.get("lockkeeper_ready"), None);
    ended_well(&former.end(Signal::TERM));
    let said = next.lines().next().unwrap();
    assert!(said.starts_with("lockkeeper ready "), "{said}");
    assert!(is_ready(at));
    assert_eq!(Samples::read(at).at("lockkeeper_ready"), 1.0);
}

#[test]
fn it_is_not_ready_while_it_drains() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    let server = Server::start(&mut serve_metrics(dir.to_str().unwrap()));
    let at = metrics_of(&server);
    assert!(is_ready(&at));
    // The server waits 5 s for this client at its end.
    let deaf = deaf(&server);
    kill_process(server.pid(), Signal::TERM).unwrap();
    server.logs("draining");
    // Wait, because the server writes the log line a moment before it stops being ready.
    while is_ready(&at) {}
    assert_eq!(ready(&at), (503, "the server is draining\n".into()));
    assert_eq!(probe(&at, "/healthz"), (200, "alive\n".into()));
    assert_eq!(Samples::read(&at).at("lockkeeper_ready"), 0.0);
    drop(deaf);
    ended_well(&server.ended());
    assert!(TcpStream::connect(&at).is_err(), "the port is closed");
}

#[test]
fn it_is_not_ready_in_the_pause_after_a_crash() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    // The pause after a crash lasts for 20 ticks plus one percent.
    let start = || {
        let mut command = serve_metrics(dir.to_str().unwrap());
        Server::start(command.args(["--durability=delayed-restart", "--tick=200ms"]))
    };
    let server = start();
    block_on(async { put(&server.connect().await, "/a", "kept").await });
    server.end(Signal::KILL);
    let server = start();
    let at = metrics_of(&server);
    let paused = "a pause: clients may still believe in sessions that a restart has ended\n";
    assert_eq!(ready(&at), (503, paused.into()));
    server.logs("the pause is over");
    assert!(is_ready(&at));
}

#[test]
fn a_failed_store_ends_the_process_and_its_port() {
    let folder = TempFolder::short();
    let server = Server::start(&mut serve_metrics(folder.at("data").to_str().unwrap()));
    let at = metrics_of(&server);
    assert!(is_ready(&at));
    block_on(async {
        let client = server.connect().await;
        forbid_writing(server.pid());
        let session = client.session().await.unwrap();
        let mode = lockkeeper_store::CreateMode::Persistent;
        session
            .create(&"/b".parse().unwrap(), "lost", mode)
            .await
            .unwrap_err();
    });
    assert_eq!(server.ended().status.code(), Some(1));
    assert!(TcpStream::connect(&at).is_err(), "the port is closed");
}
