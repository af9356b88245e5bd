//! The service as a program, and SIGTERM.

use std::net::SocketAddr;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::http::Request;

/// A running service. Dropping it kills the process.
struct Program {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(arguments: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_axum-service"))
            .args(arguments)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    async fn line(&mut self) -> String {
        self.lines.next_line().await.unwrap().expect("it lives")
    }

    async fn address(&mut self) -> SocketAddr {
        let line = self.line().await;
        line.strip_prefix("listening on ").unwrap().parse().unwrap()
    }

    fn terminate(&self) {
        let pid = self.process.id().and_then(|id| Pid::from_raw(id as i32));
        kill_process(pid.unwrap(), Signal::TERM).unwrap();
    }
}

#[tokio::test]
async fn sigterm_lets_a_request_under_way_end_and_then_closes_the_session() {
    let mut program = Program::start(&["--work-ms", "20"]);
    let address = program.address().await;
    let body = r#"{"cents": 7}"#;
    let expect = "expect: 100-continue\r\n";
    let mut request = Request::open(address, "POST", "/accounts/a", body.len(), expect).await;
    // The handler is running, because it has requested the body.
    request.until_wanted().await;

    program.terminate();
    assert_eq!(program.line().await, "draining");
    crate::http::until_refused(address).await;
    // The service still has to acquire the lock, post, and release the lock.
    request.send(body).await;
    let answer = request.answer().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["balance"], 7);
    assert_eq!(program.line().await, "closed");
    assert!(program.process.wait().await.unwrap().success());
}

#[tokio::test]
async fn a_program_that_does_nothing_ends_at_once() {
    let mut program = Program::start(&[]);
    program.address().await;
    program.terminate();
    assert_eq!(program.line().await, "draining");
    assert_eq!(program.line().await, "closed");
    assert!(program.process.wait().await.unwrap().success());
}

#[tokio::test]
async fn a_command_line_that_cannot_be_meant_is_refused() {
    for arguments in [
        ["--url", "redis://127.0.0.1"],
        ["--listen", "nowhere"],
        ["--port", "1"],
    ] {
        let mut program = Program::start(&arguments);
        assert_eq!(program.process.wait().await.unwrap().code(), Some(2));
    }
}
