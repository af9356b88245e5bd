//! [`Process`]: a child that ends with this process, however that ends.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, getrlimit, kill_process, prlimit,
    set_parent_process_death_signal,
};

/// A running child. Dropping it kills it.
pub(crate) struct Process(Child);

/// Returns a path of this program that holds even if a new build has replaced its file.
pub(crate) fn own_program() -> String {
    format!("/proc/{}/exe", std::process::id())
}

/// Returns the command that runs a program by way of [`launch`], in a process group of its own.
pub(crate) fn command(program: impl Into<OsString>) -> Command {
    let mut command = Command::new(own_program());
    command
        .arg("launch")
        .arg(std::process::id().to_string())
        .arg(program.into());
    command.process_group(0);
    command
}

/// Becomes a program that is killed with its parent.
///
/// A limit of a file's size is an error for it, and no signal: a full disk is simulated so where nothing can be mounted.
pub(crate) fn launch(parent: i32, program: &[OsString]) -> io::Result<Infallible> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(parent) {
        return Err(io::Error::other("its parent has ended"));
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$@\"", "launch"]);
    Err(shell.args(program).exec())
}

impl Process {
    /// Starts it. Call it on a thread that lives as long as the program: the system takes its end for the parent's.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }

    pub(crate) fn stdin(&mut self) -> ChildStdin {
        self.0.stdin.take().expect("it is piped")
    }

    pub(crate) fn stdout(&mut self) -> ChildStdout {
        self.0.stdout.take().expect("it is piped")
    }

    /// Returns its process id.
    pub(crate) fn number(&self) -> i32 {
        self.pid().as_raw_nonzero().get()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Sends a signal. One that has ended gets none.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid(), signal);
    }

    /// Kills it, and returns once it has ended.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Returns the status of one that has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Waits until it has ended by itself. Returns false if it has not.
    pub(crate) fn has_ended_within(&mut self, limit: Duration) -> bool {
        let began = Instant::now();
        while self.ended().is_none() {
            if began.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Limits the size of the files that it writes; `None` ends the limit.
    pub(crate) fn limit_files(&self, bytes: Option<u64>) {
        let limits = Rlimit {
            current: bytes,
            maximum: getrlimit(Resource::Fsize).maximum,
        };
        let _ = prlimit(Some(self.pid()), Resource::Fsize, limits);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
