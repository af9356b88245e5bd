//! `lockkeeper serve`: how it ends, and the state at the next start.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper::{LockOptions, Mutex};
use lockkeeper_store::CreateMode;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use super::server::*;
use super::stores::StoreAt;
use super::support::*;

#[test]
fn both_signals_leave_a_clean_log_and_the_next_start_has_everything() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    for (round, signal) in [Signal::TERM, Signal::INT].into_iter().enumerate() {
        let server = Server::start(&mut serve_in(&dir));
        // The client is still connected when the signal arrives. The server does not wait for this client.
        let client = block_on(async {
            let client = server.connect().await;
            put(&client, &format!("/n{round}"), "kept").await;
            client
        });
        ended_well(&server.end(signal));
        drop(client);
        assert_eq!(inspected(&dir)["closed_in_order"], true);
    }
    let server = Server::start(&mut serve_in(&dir));
    block_on(async {
        let client = server.connect().await;
        assert_eq!(get(&client, "/n0").await, "kept");
        assert_eq!(get(&client, "/n1").await, "kept");
    });
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let folder = TempFolder::short();
    let server = Server::start(&mut serve_in(&folder.at("data")));
    // The server waits 5 s for this client at its end.
    let deaf = deaf(&server);
    server.signal(Signal::TERM);
    server.logs("draining");
    let ended = server.end(Signal::INT);
    drop(deaf);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(
        ended.log.contains("stopped before the drain was complete"),
        "{ended:?}"
    );
}

#[test]
fn a_closed_terminal_does_not_end_it() {
    let server = Server::start(serve().args(["--data", "memory"]));
    server.signal(Signal::HUP);
    server.logs("SIGHUP: reloaded: nothing has changed");
    block_on(async { put(&server.connect().await, "/a", "after").await });
    ended_well(&server.end(Signal::TERM));
}

/// Opens a connection with a session. The client requests more data than it reads, and the server has started to
/// answer.
pub(crate) fn deaf(server: &Server) -> TcpStream {
    let path = "/large";
    let large = "0123456789".repeat(50_000).leak();
    block_on(async { put(&server.connect().await, path, large).await });
    let mut stream = TcpStream::connect(server.address()).unwrap();
    set_socket_recv_buffer_size(&stream, 4_096).unwrap();
    let frame = |parts: &[&[u8]]| {
        let body = parts.concat();
        [&(body.len() as u32).to_be_bytes()[..], &body].concat()
    };
    // The fields of the handshake are version, last zxid, timeout in ms, session, password and read-only.
    let (timeout, length) = (10_000_u32.to_be_bytes(), 16_u32.to_be_bytes());
    let mut asked = frame(&[&[0; 12], &timeout, &[0; 8], &length, &[0; 16], &[0]]);
    let length = (path.len() as u32).to_be_bytes();
    for xid in 1..=25_u32 {
        let get_data = 4_u32.to_be_bytes();
        let parts = [
            &xid.to_be_bytes()[..],
            &get_data,
            &length,
            path.as_bytes(),
            &[0],
        ];
        asked.extend(frame(&parts));
    }
    stream.write_all(&asked).unwrap();
    // The requests have arrived together. When the first answers arrive, the server has therefore received all
    // requests.
    stream.read_exact(&mut [0; 1_000]).unwrap();
    stream
}

#[test]
fn a_client_that_does_not_read_does_not_keep_it_from_ending() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    let server = Server::start(&mut serve_in(&dir));
    let deaf = deaf(&server);
    ended_well(&server.end(Signal::TERM));
    assert_eq!(inspected(&dir)["closed_in_order"], true);
    drop(deaf);
}

#[test]
fn after_kill_9_everything_acknowledged_is_there() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    for round in 0..3 {
        let server = Server::start(&mut serve_in(&dir));
        block_on(async {
            let client = server.connect().await;
            for before in 0..round {
                assert_eq!(get(&client, &format!("/n{before}")).await, "kept");
            }
            put(&client, &format!("/n{round}"), "kept").await;
        });
        let ended = server.end(Signal::KILL);
        assert_eq!(ended.status.code(), None, "{ended:?}");
        assert_eq!(inspected(&dir)["closed_in_order"], false);
    }
}

#[test]
fn after_kill_9_without_durable_sessions_the_log_has_the_length_of_the_pause() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    let options = ["--durability=delayed-restart", "--tick=100ms"];
    let server = Server::start(serve_in(&dir).args(options));
    block_on(async { put(&server.connect().await, "/a", "kept").await });
    server.end(Signal::KILL);
    // If the server stops during the pause, the next start pauses again.
    let server = Server::start(serve_in(&dir).args(options));
    server.logs("a pause");
    ended_well(&server.end(Signal::TERM));
    assert_eq!(inspected(&dir)["closed_in_order"], false);

    let server = Server::start(serve_in(&dir).args(options));
    // The pause is the longest granted timeout (20 ticks) plus one percent.
    assert!(server.logs("a pause").contains("seconds=2.02"));
    block_on(async { assert_eq!(get(&server.connect().await, "/a").await, "kept") });
    server.logs("the pause is over");
    ended_well(&server.end(Signal::TERM));
    assert_eq!(inspected(&dir)["closed_in_order"], true);
}

#[test]
fn a_store_in_memory_leaves_nothing() {
    let folder = TempFolder::short();
    let server = Server::start(
        serve()
            .args(["--data", "memory"])
            .current_dir(folder.path()),
    );
    block_on(async { put(&server.connect().await, "/a", "gone").await });
    ended_well(&server.end(Signal::TERM));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Simulates a failing disk with the system's limit on the size of a file. With a limit of 0, the server cannot write
/// to its log, although the log already has its full size.
#[test]
fn a_disk_that_fails_ends_it_with_the_reason() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    let server = Server::start(&mut serve_in(&dir));
    let ended = block_on(async {
        let client = server.connect().await;
        put(&client, "/a", "kept").await;
        forbid_writing(server.pid());
        let session = client.session().await.unwrap();
        let lost = session
            .create(&"/b".parse().unwrap(), "lost", CreateMode::Persistent)
            .await;
        assert!(lost.is_err(), "{lost:?}");
        server.ended()
    });
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert_eq!(ended.more, "");
    let last = ended.log.lines().last().unwrap();
    assert!(
        last.starts_with("lockkeeper: the store at ") && last.contains("has failed"),
        "{ended:?}"
    );
    let server = Server::start(&mut serve_in(&dir));
    block_on(async { assert_eq!(get(&server.connect().await, "/a").await, "kept") });
}

pub(crate) fn forbid_writing(pid: Pid) {
    let limit = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    prlimit(Some(pid), Resource::Fsize, limit).unwrap();
}

#[test]
fn a_full_disk_under_stdout_ends_no_command_that_serves() {
    let store = StoreAt::served();
    let overdue = LockOptions::new().expected_hold(Duration::from_millis(1));
    let _held = block_on(async {
        let client = store.connect().await;
        let mutex = Mutex::new(&client, "/locks/a").unwrap();
        (mutex.lock_with(overdue).await.unwrap(), client)
    });
    for arguments in [
        &["serve", "--data", "memory", "--listen", "127.0.0.1:0"][..],
        &["dashboard", "--listen", "127.0.0.1:0"],
        &["warden"],
    ] {
        let mut command = store.command(arguments);
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let log = lines_of(child.stderr.take().unwrap());
        let mut said = Vec::new();
        let is_noted = |line: String| {
            let is_last = line.contains("stdout cannot be written");
            said.push(line);
            is_last
        };
        assert!(log.iter().any(is_noted), "it ended: {said:?}");
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{arguments:?}");
    }
    // A stderr that cannot be written does not change the status of wrong usage, either.
    let mut command = store.command(&["serve", "--tls-cert", "no-such-file"]);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(command.stderr(full).status().unwrap().code(), Some(2));
}
