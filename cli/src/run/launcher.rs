//! The launcher: waits until it may become the command.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use super::channel::{inherited, receive_files};
use crate::output::print_error;

const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Executes the command when the reaper has sent the command's files. If the reaper ends first, the command is never
/// executed.
pub(crate) fn launcher(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // If the reaper is killed, the kernel sends SIGTERM to this process, which becomes the command's first process. The
    // kernel drops this setting if the process changes its user.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    let reaper = arguments.next();
    let files = inherited().and_then(|socket| receive_files(&socket));
    let is_child = reaper == Some(std::os::unix::process::parent_id().to_string().into());
    let ([stdin, stdout, stderr], program) = match (files, arguments.next().filter(|_| is_child)) {
        (Ok(Some(files)), Some(program)) => (files, program),
        (Ok(_), _) => return ExitCode::FAILURE,
        (Err(error), _) => {
            print_error(&error);
            return ExitCode::FAILURE;
        }
    };
    let mut own_stderr = stderr.try_clone().map(File::from);
    let mut command = Command::new(&program);
    command.args(arguments);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    let error = command.exec();
    if let Ok(stderr) = &mut own_stderr {
        let program = program.to_string_lossy();
        let _ = writeln!(stderr, "lockkeeper: {program} cannot be executed: {error}");
    }
    ExitCode::from(match error.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    })
}
