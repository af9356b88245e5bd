//! Child processes: this test binary, started again for one of its tests, and programs that end with this process.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than a child takes for its next line on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the command that runs one test of the caller's module in a new process. `module` is the caller's
/// `module_path!()`. Set an environment variable so that the child knows its role.
pub fn again(module: &str, test: &str) -> Command {
    let (_, module) = module.split_once("::").expect("tests stand in modules");
    again_at(&format!("{module}::{test}"))
}

/// Like `again`, for a test by its full name as the harness prints it.
pub fn again_at(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the system knows the binary"));
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// Returns the command that runs a program in its own process group. Linux kills the program when this process ends
/// for whatever reason. Use it with [`ChildProcess::spawn`].
pub fn with_death_signal(program: impl AsRef<OsStr>) -> Command {
    if !cfg!(target_os = "linux") {
        return Command::new(program);
    }
    let parent = std::process::id().to_string();
    // This process may have ended before the signal was requested.
    let script = r#"[ "$PPID" = "$0" ] && exec "$@""#;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "sh", "-c", script, &parent]);
    command.arg(program).process_group(0);
    command
}

/// A child process that is killed (SIGKILL) on drop.
pub struct ChildProcess(Child);

impl ChildProcess {
    pub fn spawn(command: &mut Command) -> Self {
        let child = spawn_for_life(command);
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Sends a signal. Does nothing if the child has ended.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid(), signal);
    }

    /// Kills it, and returns when it is dead. Fails if it has already ended on its own.
    pub fn kill(&mut self) {
        let ended = self.try_wait().expect("the child is known");
        assert!(
            ended.is_none(),
            "it died by itself, see its stderr: {ended:?}"
        );
        self.end();
    }

    /// Kills it if it still runs, and returns when it is dead.
    pub fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Waits until it has ended. Returns `false` at the time limit.
    pub fn has_ended_within(&mut self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.try_wait().is_ok_and(|status| status.is_none()) {
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Calls `hear` on a new thread with each line of its stdout, and with `None` at the end. Leaves out an incomplete
    /// last line, which a kill may have cut.
    pub fn hear_lines(&mut self, mut hear: impl FnMut(Option<String>) + Send + 'static) {
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

    pub fn lines(&mut self) -> Lines {
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
        &self.0
    }
}

impl DerefMut for ChildProcess {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a command on a thread that lives as long as this process, because Linux sends the death signal when the
/// thread that started the child ends.
fn spawn_for_life(command: &mut Command) -> io::Result<Child> {
    type Reply = (Command, io::Result<Child>);
    static ORDERS: OnceLock<Sender<(Command, Sender<Reply>)>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (sender, orders) = channel::<(Command, Sender<Reply>)>();
        std::thread::spawn(move || {
            for (mut command, reply) in orders {
                let spawned = command.spawn();
                reply.send((command, spawned)).expect("the caller waits");
            }
        });
        sender
    });
    let (reply, spawned) = channel();
    let order = std::mem::replace(command, Command::new(""));
    orders.send((order, reply)).expect("the thread lives");
    let (order, spawned) = spawned.recv().expect("the thread answers");
    *command = order;
    spawned
}

/// Lines of a child's stdout, until it ends.
pub struct Lines(Receiver<String>);

impl Lines {
    /// Waits for a line. Fails if the child ends without it.
    pub fn wait_for(&mut self, wanted: &str) {
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

/// Marks a process that runs a single test.
const ALONE: &str = "LOCKKEEPER_TEST_ALONE";

/// Runs the current test in a separate process, and returns `true` there. Use it for state that all threads of a
/// process share.
pub fn alone() -> bool {
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
