//! Commands that run under a lock, and processes that they leave behind.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdout, Command, Output, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use testkit::ChildProcess;

use super::stores::StoreAt;
use super::support::*;

/// The shortest session timeout that the server grants in these tests.
const TIMEOUT: &str = "4s";

impl StoreAt {
    pub(crate) fn under_lock(&self, arguments: &[&str]) -> Command {
        self.subcommand("run", arguments)
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.under_lock(arguments).output().unwrap()
    }

    pub(crate) fn status(&self, arguments: &[&str]) -> Option<i32> {
        self.output(arguments).status.code()
    }

    pub(crate) fn subcommand(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = self.command(&[name, "--session-timeout", TIMEOUT]);
        command.args(arguments);
        command
    }

    /// Returns a command for a script of `sh`. In the script, `$0` is the command `lockkeeper`.
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_lockkeeper")]);
        command.env("LOCKKEEPER_URL", &self.url);
        command.current_dir(self.folder.path());
        command
    }

    /// Starts a script of `sh` under a lock. Returns when the script has printed a line.
    pub(crate) fn start_script(&self, options: &[&str], script: &str) -> Running {
        let mut arguments = options.to_vec();
        arguments.extend(["--", "sh", "-c", script]);
        let mut running = Running::spawn(&mut self.under_lock(&arguments));
        running.first = running.line();
        running
    }

    pub(crate) fn revoke(&self) {
        self.remove(0);
    }

    pub(crate) fn remove(&self, at: usize) {
        block_on(async {
            let client = self.connect().await;
            let queue = lockkeeper::queue(&client, "/locks/a").await.unwrap();
            let entry = &queue[at];
            let session = client.session().await.unwrap();
            session.delete(&entry.path, None).await.unwrap();
        });
    }

    pub(crate) fn queue_has(&self, entries: usize) {
        block_on(async {
            let client = self.connect().await;
            let mut queues = lockkeeper::observe(&client, "/locks/a").unwrap();
            while queues.next().await.unwrap().unwrap().len() != entries {}
        });
    }
}

/// A running `lockkeeper run`. Dropping this kills the front, and the guardian then ends the other processes.
pub(crate) struct Running {
    child: ChildProcess,
    stdout: BufReader<ChildStdout>,
    pub(crate) first: String,
}

impl Running {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = ChildProcess::spawn(command);
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            stdout,
            first: String::new(),
        }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn front(&self) -> Pid {
        self.child.pid()
    }

    pub(crate) fn guardian(&self) -> Process {
        Process::child_of(self.front())
    }

    pub(crate) fn reaper(&self) -> Process {
        Process::child_of(self.guardian().pid)
    }

    pub(crate) fn command(&self) -> Process {
        Process::child_of(self.reaper().pid)
    }

    pub(crate) fn write(&mut self, text: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.front(), signal).unwrap();
    }

    /// Waits for the end. Returns the status, the rest of stdout, and stderr.
    pub(crate) fn end(mut self) -> (Option<i32>, String, String) {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.stdout.read_to_string(&mut stdout).unwrap();
        let mut from = self.child.stderr.take().unwrap();
        from.read_to_string(&mut stderr).unwrap();
        (self.child.wait().unwrap().code(), stdout, stderr)
    }
}

/// A background process, and a chain of processes in separate sessions. Each process of the chain starts the next one
/// and ends. All of them hold a lock on the file that the argument names.
const DAEMONS: &str = r#"
import fcntl, os, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
if not os.fork():
    os.setsid()
    if not os.fork():
        time.sleep(20)
    os._exit(0)
if not os.fork():
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        os.setsid()"#;

/// Runs commands that start the processes of [`DAEMONS`]. Fails if one of these processes outlives `lockkeeper run`.
pub(crate) fn daemons_end_before_the_release(
    folder: &TempFolder,
    run: impl Fn(&[&str]) -> Command,
) {
    for round in 0..20 {
        let path = folder.at(&format!("daemons-{round}"));
        let locked = path.to_str().unwrap();
        let arguments = [
            "--grace", "50ms", "a", "--", "python3", "-c", DAEMONS, locked,
        ];
        let output = run(&arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        let left = fs::File::open(&path).unwrap().try_lock();
        assert!(left.is_ok(), "round {round}: a process is left");
    }
}

/// A process that this test process has not started.
pub(crate) struct Process {
    pub(crate) pid: Pid,
    exit: std::os::fd::OwnedFd,
}

impl Process {
    pub(crate) fn new(pid: &str) -> Self {
        let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        let exit = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        Self { pid, exit }
    }

    pub(crate) fn child_of(parent: Pid) -> Self {
        let parent = parent.as_raw_pid().to_string();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut children = processes.filter_map(|entry| {
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let (pid, _) = stat.split_once(' ')?;
            let (_, rest) = stat.rsplit_once(") ")?;
            (rest.split(' ').nth(1)? == parent).then(|| pid.to_owned())
        });
        Self::new(&children.next().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    pub(crate) fn ended(&self) {
        let mut watched = [PollFd::new(&self.exit, PollFlags::IN)];
        let patience = rustix::event::Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut watched, Some(&patience)).unwrap(), 1, "it lives");
    }

    pub(crate) fn has_ended(&self) -> bool {
        let mut watched = [PollFd::new(&self.exit, PollFlags::IN)];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut watched, Some(&now)).unwrap() == 1
    }
}
