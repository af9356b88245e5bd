//! `lockkeeper serve --listen unix:PATH`: the file of the socket, and the clients of the socket.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use super::server::*;
use super::support::*;

/// Returns the command `lockkeeper serve` with a store in memory, which listens only on this socket.
fn serve_unix(path: &Path) -> Command {
    let mut command = bare();
    command.args(["--data", "memory", "--four-letter-words", "*"]);
    command.arg(format!("--listen=unix:{}", path.display()));
    command
}

fn refusal(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn word(path: &Path, word: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(word.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_unix_socket_is_served_and_goes_with_its_server() {
    let folder = TempFolder::short();
    let path = folder.at("lockkeeper.sock");
    let server = Server::start(serve_unix(&path).args(["--unix-mode", "660"]));
    let ready = format!("lockkeeper ready unix:{}", path.display());
    assert_eq!(
        server.ready, ready,
        "a port is opened only where one is asked for"
    );
    let mode = path.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    assert_eq!(word(&path, "ruok"), "imok");
    let url = format!("lockkeeper+unix://{}", path.display());
    block_on(async {
        let client = lockkeeper_store::connect(&url).await.unwrap();
        put(&client, "/a", "first").await;
        assert_eq!(get(&client, "/a").await, "first");
        let connections = word(&path, "cons");
        let own = format!("/unix:uid={},pid={}[1]", uid(), std::process::id());
        assert!(connections.contains(&own), "{connections}");
        client.close().await.unwrap();
    });
    ended_well(&server.end(Signal::TERM));
    assert!(!path.exists());
}

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

#[test]
fn tcp_and_a_unix_socket_lead_to_the_same_store() {
    let folder = TempFolder::short();
    let path = folder.at("s");
    let server = Server::start(serve_unix(&path).args(["--listen", "127.0.0.1:0"]));
    assert!(
        server.ready.ends_with(&format!(" unix:{}", path.display())),
        "{}",
        server.ready
    );
    block_on(async {
        put(&server.connect().await, "/a", "first").await;
        let url = format!("lockkeeper+unix://{}", path.display());
        let local = lockkeeper_store::connect(&url).await.unwrap();
        assert_eq!(get(&local, "/a").await, "first");
    });
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn a_killed_server_leaves_a_socket_that_the_next_one_replaces() {
    let folder = TempFolder::short();
    let path = folder.at("s");
    let server = Server::start(&mut serve_unix(&path));
    let _ = server.end(Signal::KILL);
    assert!(path.exists());
    let server = Server::start(&mut serve_unix(&path));
    assert_eq!(word(&path, "ruok"), "imok");
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn a_socket_in_use_is_named_and_what_to_do() {
    let folder = TempFolder::short();
    let path = folder.at("s");
    let server = Server::start(&mut serve_unix(&path));
    let said = refusal(serve_unix(&path).arg("--log-level=error"));
    let expected =
        "is in use, another server listens there: choose another path with --listen unix:PATH";
    assert_eq!(said, format!("lockkeeper: {} {expected}\n", path.display()));
    assert_eq!(word(&path, "ruok"), "imok");
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn one_of_each_kind_is_listened_on() {
    let folder = TempFolder::short();
    let mut command = serve_unix(&folder.at("a"));
    let output = command.args(["--listen", "unix:/b"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("--listen takes one address and one Unix socket"),
        "{said}"
    );
}

#[test]
fn a_checked_configuration_with_a_socket_is_one_itself() {
    let folder = TempFolder::short();
    let mut command = serve_unix(&folder.at("s"));
    command.args(["--listen", "127.0.0.1:7", "--check-config"]);
    let checked = success(&command.output().unwrap());
    let about = format!("# on unix:{}, with mode 600", folder.at("s").display());
    assert!(checked.contains(&about), "{checked}");
    let file = folder.at("lockkeeper.toml");
    std::fs::write(&file, &checked).unwrap();
    let again = success(&lockkeeper(&[
        &"serve",
        &"--config",
        &file,
        &"--check-config",
    ]));
    let listen = |text: &str| {
        let mut lines = text.lines().filter(|line| line.starts_with("listen = "));
        lines
            .next()
            .unwrap()
            .split(" # ")
            .next()
            .unwrap()
            .trim_end()
            .to_owned()
    };
    assert_eq!(listen(&again), listen(&checked));
}
