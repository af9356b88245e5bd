//! `lockkeeper serve`: start, readiness, and error messages.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::Value;

use super::server::*;
use super::support::*;

/// Returns the error of a server that does not start. The server must end with this exit code.
fn refused(command: &mut Command, code: i32) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(code), "{said}");
    assert!(stdout.is_empty(), "{stdout:?}");
    said
}

#[test]
fn it_says_in_one_line_where_it_listens_and_nothing_else_on_stdout() {
    let server = Server::start(serve().args(["--data", "memory"]));
    let port = server.address().strip_prefix("127.0.0.1:").unwrap();
    assert_ne!(port.parse::<u16>().unwrap(), 0);
    assert_eq!(server.ready, format!("lockkeeper ready 127.0.0.1:{port}"));
    block_on(async {
        let client = server.connect().await;
        put(&client, "/a", "first").await;
        assert_eq!(get(&client, "/a").await, "first");
        client.close().await.unwrap();
    });
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn alone_it_makes_a_folder_where_it_is_started() {
    let folder = TempFolder::short();
    let server = Server::start(serve().current_dir(folder.path()));
    block_on(async { put(&server.connect().await, "/a", "first").await });
    ended_well(&server.end(Signal::TERM));
    let seen = inspected(&folder.at("lockkeeper-data"));
    assert_eq!(seen["closed_in_order"], true);
}

#[test]
fn an_occupied_port_is_named_and_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = TempFolder::short();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(["serve", "--log-level=warn", "--listen", &address]);
    let said = refused(command.current_dir(folder.path()), 1);
    let expected = "is in use by another program: choose another address with --listen";
    assert_eq!(said, format!("lockkeeper: {address} {expected}\n"));
    // The store was closed in order.
    let seen = inspected(&folder.at("lockkeeper-data"));
    assert_eq!(seen["closed_in_order"], true);
}

#[test]
fn an_address_of_another_machine_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args([
        "serve",
        "--insecure",
        "--data=memory",
        "--listen=192.0.2.1:0",
    ]);
    let said = refused(&mut command, 1);
    assert!(said.contains("cannot listen on 192.0.2.1:0: "), "{said}");
}

#[test]
fn an_exposed_address_without_authentication_is_refused() {
    let folder = TempFolder::short();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command
        .args(["serve", "--listen=0.0.0.0:0"])
        .current_dir(folder.path());
    let said = refused(&mut command, 2);
    for way in ["--require-auth", "--tls-client-ca", "--insecure"] {
        assert!(said.contains(way), "{said}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_directory_in_use_is_refused_and_the_process_named() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    let server = Server::start(&mut serve_in(&dir));
    let said = refused(&mut serve_in(&dir), 1);
    let pid = server.pid().as_raw_nonzero();
    assert!(
        said.contains(&format!("is in use by process {pid}")),
        "{said}"
    );
    // The store can be inspected and backed up while the server runs.
    assert_eq!(inspected(&dir)["pid"], pid.get());
    success(&lockkeeper(&[&"backup", &dir, &folder.at("backup")]));
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn the_log_may_be_json_each_line_an_object() {
    let folder = TempFolder::short();
    let mut command = serve_in(&folder.at("data"));
    let server = Server::start(command.args(["--log-format", "json", "--require-auth"]));
    let ready = server.ready.clone();
    let ended = server.end(Signal::TERM);
    ended_well(&ended);
    let lines = ended
        .log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lines: Vec<_> = lines.collect();
    let find = |message: &str| {
        let found = lines.iter().find(|line| line["message"] == message);
        found.unwrap_or_else(|| panic!("no {message:?}: {}", ended.log))
    };
    let serving = find("ready");
    assert_eq!(serving["level"], "INFO");
    let address = serving["address"].as_str().unwrap();
    assert_eq!(ready, format!("lockkeeper ready {address}"));
    assert!(
        lines.iter().any(|line| line["level"] == "WARN"),
        "{}",
        ended.log
    );
}

#[test]
fn a_store_in_memory_has_no_durability_in_the_log() {
    let folder = TempFolder::short();
    let ready = |command: &mut Command| {
        let ended = Server::start(command).end(Signal::TERM);
        ended_well(&ended);
        let line = ended.log.lines().find(|line| line.contains(" ready "));
        line.expect(&ended.log).to_owned()
    };
    let in_memory = ready(serve().args(["--data", "memory"]));
    assert!(
        !in_memory.to_lowercase().contains("durability"),
        "{in_memory}"
    );
    let in_a_folder = ready(&mut serve_in(&folder.at("data")));
    assert!(in_a_folder.contains("durability=fsync"), "{in_a_folder}");
}

#[test]
fn an_http_request_is_refused_in_words() {
    let server = Server::start(serve().args(["--data", "memory"]));
    for method in [
        "GET", "POST", "HEAD", "PUT", "OPTIONS", "DELETE", "PATCH", "CONNECT",
    ] {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        write!(stream, "{method} /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        // The server closes the connection immediately. This may be a reset, so ignore an error.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "nothing is answered: {answer:?}");
    }
    let ended = server.end(Signal::TERM);
    ended_well(&ended);
    let told: Vec<_> = ended
        .log
        .lines()
        .filter(|line| line.contains("HTTP"))
        .collect();
    assert_eq!(
        told.len(),
        1,
        "once, and counted from then on: {}",
        ended.log
    );
    assert!(told[0].contains("address=127.0.0.1:"), "{}", told[0]);
    assert!(told[0].contains("ZooKeeper's protocol"), "{}", told[0]);
    assert!(!ended.log.contains("handshake refused"), "{}", ended.log);
}

#[test]
fn the_level_is_obeyed_and_a_pipe_gets_no_colours() {
    let server = Server::start(serve().args(["--data", "memory", "--log-level", "error"]));
    let ended = server.end(Signal::TERM);
    assert_eq!((ended.status.code(), &*ended.log), (Some(0), ""));
    let server = Server::start(
        serve()
            .args(["--data", "memory"])
            .env("LOCKKEEPER_LOG", "info"),
    );
    let ended = server.end(Signal::TERM);
    ended_well(&ended);
    assert!(!ended.log.contains('\x1b'), "{ended:?}");
}

#[test]
fn the_options_of_a_file_are_served() {
    let folder = TempFolder::short();
    let dir = folder.at("data");
    let config = folder.at("config.toml");
    fs::write(&config, format!("data = {dir:?}\nlog-format = \"json\"\n")).unwrap();
    let server = Server::start(serve().arg("--config").arg(&config));
    let ended = server.end(Signal::TERM);
    ended_well(&ended);
    assert!(ended.log.starts_with('{'), "{ended:?}");
    assert!(dir.exists());
}

/// Returns the command `serve` with a store in memory. `limits` are shell commands that set limits of its process.
fn serve_under(limits: &str) -> Command {
    let mut command = Command::new("sh");
    let script = format!(r#"{limits}; exec "$0" "$@""#);
    command.args(["-c", &script, env!("CARGO_BIN_EXE_lockkeeper"), "serve"]);
    command.args(["--listen=127.0.0.1:0", "--data=memory"]);
    command
}

/// Starts a server under these limits, and ends it. Returns its limit of open files, and the end.
fn open_files(limits: &str) -> (u64, Ended) {
    let mut command = serve_under(limits);
    command.arg("--max-connections=200");
    let server = Server::start(&mut command);
    let status = fs::read_to_string(format!("/proc/{}/limits", server.pid().as_raw_nonzero()));
    let status = status.unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let soft = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    (soft, server.end(Signal::TERM))
}

#[test]
fn as_many_files_may_be_open_as_connections_need() {
    let (files, ended) = open_files("ulimit -Sn 64");
    assert!((200..1_000).contains(&files), "{files}");
    assert!(!ended.log.contains("LimitNOFILE"), "{ended:?}");
    ended_well(&ended);
    let (files, ended) = open_files("ulimit -n 150");
    assert_eq!(files, 150);
    assert!(ended.log.contains("LimitNOFILE"), "{ended:?}");
    ended_well(&ended);
}

/// With a Unix socket, the server needs a second file descriptor for each client, to watch the client's process.
#[test]
fn by_default_there_are_as_many_connections_as_files_allow() {
    let folder = TempFolder::short();
    let socket = format!("--listen=unix:{}", folder.at("socket").display());
    for (options, connections) in [(&[][..], "872"), (&[socket.as_str()], "436")] {
        let limited = || {
            let mut command = serve_under("ulimit -n 1000");
            command.args(options);
            command
        };
        let checked = limited().arg("--check-config").output().unwrap();
        let checked = String::from_utf8(checked.stdout).unwrap();
        let expected = format!("; {connections} connections\n");
        assert!(checked.contains(&expected), "{checked}");
        let ended = Server::start(&mut limited()).end(Signal::TERM);
        assert!(!ended.log.contains("LimitNOFILE"), "{ended:?}");
        ended_well(&ended);
    }
}

/// At the limit of open files, the system refuses each new connection immediately, until another connection ends.
#[test]
fn a_lack_of_open_files_is_logged_now_and_then() {
    let mut command = serve_under("ulimit -n 40");
    let server = Server::start(command.arg("--max-connections=60"));
    let connect = |_| std::net::TcpStream::connect(server.address()).unwrap();
    let connections: Vec<_> = (0..60).map(connect).collect();
    server.logs("accept failed");
    // Sleep long enough for ten more attempts.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let ended = server.end(Signal::TERM);
    assert_eq!(ended.log.matches("accept failed").count(), 1, "{ended:?}");
    drop(connections);
}

#[test]
fn a_supervisor_hears_when_it_is_ready_and_when_it_stops() {
    let folder = TempFolder::short();
    let socket = UnixDatagram::bind(folder.at("notify")).unwrap();
    let hears = |word: &str| {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        assert_eq!(str::from_utf8(&buffer[..length]), Ok(word));
    };
    let mut command = serve();
    command
        .args(["--data", "memory"])
        .env("NOTIFY_SOCKET", folder.at("notify"));
    let server = Server::start(&mut command);
    hears("READY=1");
    server.signal(Signal::TERM);
    hears("STOPPING=1");
    ended_well(&server.ended());
}
