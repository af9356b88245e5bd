//! Child processes: this test binary, started again for one of its tests.

use std::env;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command};

/// The command that runs one test of the caller's module in a process of its own. `module` is the caller's
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

/// A child process that is killed (SIGKILL) when this is dropped.
pub(crate) struct ChildProcess(Child);

impl ChildProcess {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let child = command.spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Fails if it has ended by itself.
    pub(crate) fn assert_alive(&mut self) {
        let ended = self.0.try_wait().expect("the child is known");
        assert!(
            ended.is_none(),
            "it died by itself, see its stderr: {ended:?}"
        );
    }

    /// Kills it, and returns when it is dead.
    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("a child can be killed");
        self.0.wait().expect("a child can be waited for");
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
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Marks a process that runs one test alone.
const ALONE: &str = "LOCKKEEPER_TEST_ALONE";

/// Runs the test of this thread in a process of its own, and returns true there: for what all threads of a process
/// share.
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
