//! Child processes: this test binary, started again for one of its tests, and commands that end with this process.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Longer than a child takes for its next line on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a command, and kills it when its own stdin ends.
const UNTIL_STDIN_ENDS: &str = include_str!("../until-stdin-ends.sh");

/// The exit code of that script after it has killed its command.
const KILLED: i32 = 137;

/// Returns the command that runs one test of the caller's module in a new process. `module` is the caller's
/// `module_path!()`; an environment variable tells the child that it is one.
pub(crate) fn again(module: &str, test: &str) -> Command {
    let (_, module) = module.split_once("::").expect("tests stand in modules");
    again_at(&format!("{module}::{test}"))
}

/// The same for a test by its full name, as the harness prints it.
pub(crate) fn again_at(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the system knows the binary"));
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// The command that runs a program, which dies with this process however that ends. For
/// [`ChildProcess::spawn_until_stdin_ends`].
pub(crate) fn until_stdin_ends(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", UNTIL_STDIN_ENDS, "until-stdin-ends"])
        .arg(program);
    command
}

/// A child process that is killed (SIGKILL) when this is dropped.
pub(crate) struct ChildProcess {
    child: Child,
    /// It is a shell, which kills the process itself when its stdin ends.
    is_script: bool,
}

impl ChildProcess {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let child = command.spawn();
        Self {
            child: child.unwrap_or_else(|error| panic!("{command:?}: {error}")),
            is_script: false,
        }
    }

    /// Starts a command made by [`until_stdin_ends`].
    pub(crate) fn spawn_until_stdin_ends(command: &mut Command) -> Self {
        let mut process = Self::spawn(command.stdin(Stdio::piped()));
        process.is_script = true;
        process
    }

    /// Kills it, wherever it is, and returns when it is dead. Fails if it had ended by itself.
    pub(crate) fn kill(&mut self) {
        let ended = self.try_wait().expect("the child is known");
        assert!(
            ended.is_none(),
            "it died by itself, see its stderr: {ended:?}"
        );
        if !self.is_script {
            self.child.kill().expect("a child can be killed");
        }
        // `wait` closes the child's stdin first, which is what a script waits for.
        let status = self.wait().expect("a child can be waited for");
        if self.is_script {
            assert_eq!(status.code(), Some(KILLED), "it died by itself");
        }
    }

    /// Calls `hear` with each line of its stdout, and with `None` at the end, on a new thread. A kill may cut the
    /// last line off: a line without an end is left out.
    pub(crate) fn hear_lines(&mut self, mut hear: impl FnMut(Option<String>) + Send + 'static) {
        let mut output = BufReader::new(self.stdout.take().expect("its stdout is a pipe"));
        std::thread::spawn(move || {
            let mut line = String::new();
            while output.read_line(&mut line).is_ok_and(|read| read > 0) {
                match line.strip_suffix('\n') {
                    Some(whole) => hear(Some(whole.to_owned())),
                    None => break,
                }
                line.clear();
            }
            hear(None);
        });
    }

    /// The lines of its stdout.
    pub(crate) fn lines(&mut self) -> Lines {
        let (sender, lines) = channel();
        self.hear_lines(move |line| {
            if let Some(line) = line {
                // The receiver is dropped when the test is over.
                let _ = sender.send(line);
            }
        });
        Lines(lines)
    }
}

impl Deref for ChildProcess {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for ChildProcess {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if !self.is_script {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Lines of a child, in order; they end when its stdout does.
pub(crate) struct Lines(Receiver<String>);

impl Lines {
    /// Waits for a line. Fails if the child ends without it.
    pub(crate) fn wait_for(&mut self, wanted: &str) {
        assert!(self.any(|line| line == wanted), "it died before: {wanted}");
    }
}

impl Iterator for Lines {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        match self.0.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the child hangs"),
        }
    }
}

/// Marks a process that runs one test alone.
const ALONE: &str = "LOCKKEEPER_TEST_ALONE";

/// Runs the test of this thread in a separate process, and returns true there: for state that all threads of a
/// process share.
pub(crate) fn alone() -> bool {
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let thread = std::thread::current();
    let test = thread.name().expect("the harness names its threads");
    let output = again_at(test)
        .env(ALONE, "1")
        .output()
        .expect("a test binary can start itself");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let ran = String::from_utf8_lossy(&output.stdout);
    assert!(ran.contains("1 passed"), "{test} was not run: {ran}");
    false
}
