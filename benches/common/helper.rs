//! Helpers: this program, started again with another task. A helper ends with its parent process, whose end closes the
//! helper's standard input.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::Signal;
use testkit::ChildProcess;

/// Environment variables with a helper's task and its parameter.
const TASK: &str = "LOCKKEEPER_BENCH_TASK";
const PARAMETER: &str = "LOCKKEEPER_BENCH_PARAMETER";

/// Returns the task and its parameter, if this process is a helper.
pub(crate) fn task() -> Option<(String, String)> {
    let task = std::env::var(TASK).ok()?;
    Some((task, std::env::var(PARAMETER).unwrap_or_default()))
}

/// Prints a line for the parent process.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "{line}").and_then(|()| out.flush());
    if said.is_err() {
        std::process::exit(1);
    }
}

/// Ends this helper when its parent has ended.
pub(crate) fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}

/// A running helper. Dropping it kills it.
pub(crate) struct Helper {
    child: ChildProcess,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts a helper, through the command `through` unless it is empty.
    pub(crate) fn start(through: &[&str], task: &str, parameter: &str) -> std::io::Result<Self> {
        let this = std::env::current_exe()?;
        let mut command = match through {
            [] => Command::new(this),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(this);
                command
            }
        };
        command.env(TASK, task).env(PARAMETER, parameter);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = ChildProcess::spawn(&mut command);
        let asks = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Self {
            child,
            asks,
            answers,
        })
    }

    pub(crate) fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line)? {
            0 => Err(std::io::Error::other("the helper has ended")),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Sends it a line and waits for its answer.
    pub(crate) fn ask(&mut self, line: &str) -> std::io::Result<String> {
        writeln!(self.asks, "{line}")?;
        self.line()
    }

    pub(crate) fn kill(&mut self) {
        self.child.signal(Signal::KILL);
    }
}
