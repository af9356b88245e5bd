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
