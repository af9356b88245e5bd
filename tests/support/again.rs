//! Child processes: this test binary, started again for one of its tests.

use std::env;
use std::process::Command;

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
