//! [`ServerProcess`]: `lockkeeper serve` or another server in a separate process.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use lockkeeper_store::Client;
use rustix::process::{Pid, Signal};

use crate::process::{ChildProcess, Lines, with_death_signal};

/// Returns the command `lockkeeper serve`. `program` is the path of `lockkeeper`.
pub fn serve(program: impl AsRef<OsStr>) -> Command {
    let mut command = with_death_signal(program);
    command.arg("serve").env_remove("LOCKKEEPER_LOG");
    command.env_remove("NOTIFY_SOCKET");
    command
}

/// A server that has printed its ready line. Dropping it kills it, and prints the end of its log if the test has
/// failed.
pub struct ServerProcess {
    child: ChildProcess,
    /// The ready line.
    pub ready: String,
    stdout: Lines,
    lines: Receiver<String>,
    log: Option<JoinHandle<String>>,
}

#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    /// The lines of stdout after the ready line.
    pub more: String,
    pub log: String,
}

impl ServerProcess {
    /// Runs the command, and waits for its ready line.
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = ChildProcess::spawn(command);
        let mut stdout = child.lines();
        let stderr = BufReader::new(child.stderr.take().expect("it is a pipe"));
        let (sender, lines) = channel();
        let log = std::thread::spawn(move || {
            let mut text = String::new();
            for line in stderr.lines().map_while(Result::ok) {
                text.push_str(&line);
                text.push('\n');
                // The receiver is dropped with the server.
                let _ = sender.send(line);
            }
            text
        });
        let Some(ready) = stdout.next() else {
            let status = child.wait().expect("a child can be waited for");
            panic!("it ended with {status}: {}", log.join().unwrap());
        };
        Self {
            child,
            ready,
            stdout,
            lines,
            log: Some(log),
        }
    }

    /// Returns the address of `lockkeeper serve`, as `127.0.0.1:PORT`.
    pub fn address(&self) -> &str {
        let words: Vec<_> = self.ready.split(' ').collect();
        assert_eq!(words[..2], ["lockkeeper", "ready"], "{}", self.ready);
        words[2]
    }

    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    pub fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    /// Waits for a log line that contains this text.
    pub fn logs(&self, text: &str) -> String {
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

    pub fn ended(mut self) -> Ended {
        Ended {
            more: self.stdout.by_ref().map(|line| line + "\n").collect(),
            status: self.child.wait().expect("a child can be waited for"),
            log: self.log.take().expect("it is running").join().unwrap(),
        }
    }

    /// Sends a signal, and waits for the end.
    pub fn end(self, signal: Signal) -> Ended {
        self.signal(signal);
        self.ended()
    }

    pub async fn connect(&self) -> Client {
        let url = format!("lockkeeper://{}", self.address());
        let client = lockkeeper_store::connect(&url).await;
        client.expect("the server answers")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.child.end();
        let log = self.log.take().filter(|_| std::thread::panicking());
        if let Some(Ok(log)) = log.map(JoinHandle::join) {
            eprintln!("the server's log ends with:\n{}", last_lines(&log));
        }
    }
}

pub fn last_lines(log: &str) -> String {
    const LINES: usize = 20;
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
