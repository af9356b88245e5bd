//! A served store: the real command in a separate process.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use lockkeeper_store::{Client, CreateMode, ZnodePath};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::support::*;

/// A server that listens. Dropping it kills it.
pub(crate) struct Server {
    child: Process,
    /// As it said.
    pub(crate) ready: String,
    stdout: BufReader<ChildStdout>,
    lines: Receiver<String>,
    log: JoinHandle<String>,
}

/// Killed when it is dropped, if it is still there.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// End of a server.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// The rest of stdout, behind the line that tells that it is ready.
    pub(crate) more: String,
    pub(crate) log: String,
}

/// `lockkeeper serve`, on a port that is free.
pub(crate) fn serve() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    command.env_remove("LOCKKEEPER_LOG");
    command.env_remove("NOTIFY_SOCKET");
    command
}

/// The same, of this directory.
pub(crate) fn serve_in(dir: &Path) -> Command {
    let mut command = serve();
    command.arg("--data").arg(dir);
    command
}

impl Server {
    /// Runs the command, and returns when it says that it listens.
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Process(command.spawn().unwrap());
        let mut stdout = BufReader::new(child.0.stdout.take().unwrap());
        let stderr = BufReader::new(child.0.stderr.take().unwrap());
        let (tell, lines) = channel();
        let log = std::thread::spawn(move || {
            let mut text = String::new();
            for line in stderr.lines().map_while(Result::ok) {
                text.push_str(&line);
                text.push('\n');
                let _ = tell.send(line);
            }
            text
        });
        let mut ready = String::new();
        stdout.read_line(&mut ready).unwrap();
        if ready.is_empty() {
            let status = child.0.wait().unwrap();
            panic!("it ended with {status}: {}", log.join().unwrap());
        }
        Self {
            child,
            ready: ready.trim_end().into(),
            stdout,
            lines,
            log,
        }
    }

    /// Returns its address, as `127.0.0.1:PORT`.
    pub(crate) fn address(&self) -> &str {
        let words: Vec<_> = self.ready.split(' ').collect();
        assert_eq!(words[..2], ["lockkeeper", "ready"], "{}", self.ready);
        words[2]
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child.0)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits until it logs a line with this text.
    pub(crate) fn logs(&self, text: &str) -> String {
        let mut seen = String::new();
        for line in &self.lines {
            if line.contains(text) {
                return line;
            }
            seen.push_str(&line);
            seen.push('\n');
        }
        panic!("it ended, and never logged {text:?}: {seen}");
    }

    /// Waits for its end.
    pub(crate) fn ended(mut self) -> Ended {
        let mut more = String::new();
        self.stdout.read_to_string(&mut more).unwrap();
        Ended {
            status: self.child.0.wait().unwrap(),
            more,
            log: self.log.join().unwrap(),
        }
    }

    /// Sends a signal, and waits for the end.
    pub(crate) fn end(self, signal: Signal) -> Ended {
        self.signal(signal);
        self.ended()
    }

    pub(crate) async fn connect(&self) -> Client {
        let url = format!("lockkeeper://{}", self.address());
        lockkeeper_store::connect(&url).await.unwrap()
    }
}

pub(crate) fn ended_well(ended: &Ended) {
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(ended.more, "", "{ended:?}");
    assert!(
        ended.log.contains("drained; the store is closed in order"),
        "{ended:?}"
    );
}

pub(crate) async fn put(client: &Client, path: &str, data: &'static str) {
    let path: ZnodePath = path.parse().unwrap();
    let session = client.session().await.unwrap();
    session
        .create(&path, data, CreateMode::Persistent)
        .await
        .unwrap();
}

pub(crate) async fn get(client: &Client, path: &str) -> String {
    let path: ZnodePath = path.parse().unwrap();
    let session = client.session().await.unwrap();
    let (data, _) = session.get_data(&path).await.unwrap();
    String::from_utf8(data.to_vec()).unwrap()
}

pub(crate) fn inspected(dir: &std::path::Path) -> Value {
    let output = lockkeeper(&[&"inspect", &dir, &"--json"]);
    serde_json::from_str(&success(&output)).unwrap()
}
