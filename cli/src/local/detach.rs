//! `lockkeeper detach`: the short-lived process between a client and the server that it starts. It gives the server a
//! new session without a terminal, none of the client's open files, and an almost empty environment.

use std::ffi::OsString;
use std::fs;
use std::process::Command;

use crate::executable;
use crate::exit::Failure;

/// Environment variables that the server keeps. The others belong to the first client and may contain secrets.
const KEPT: [&str; 5] = [
    "LOCKKEEPER_LOG",
    "RUST_BACKTRACE",
    "TZ",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
];

/// Runs this program with these arguments in the background, with the current stdin, stdout and stderr.
pub(crate) fn detach(arguments: &[OsString]) -> Result<(), Failure> {
    // Close the files of the caller, which the server would otherwise keep open, such as the lock of a shell script or
    // a pipe whose reader waits for its end. Do this before we open any file of our own.
    close_inherited();
    // Detach from the client's process group and terminal. This fails only if we are a group leader, and no client
    // starts us as one.
    let _ = rustix::process::setsid();
    let kept = KEPT.map(|name| Some((name, std::env::var_os(name)?)));
    let mut command = Command::new(executable::listed()?);
    command.args(arguments).current_dir("/");
    command.env_clear().envs(kept.into_iter().flatten());
    // Do not wait. When this process ends, init adopts the server, and no terminal can reach it.
    command.spawn()?;
    Ok(())
}

fn close_inherited() {
    let folder = match cfg!(target_os = "linux") {
        true => "/proc/self/fd",
        false => "/dev/fd",
    };
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    let files: Vec<i32> = names.filter_map(|it| it.to_str()?.parse().ok()).collect();
    // This includes the directory itself, which is closed by now.
    for file in files.into_iter().filter(|file| *file > 2) {
        let _ = nix::unistd::close(file);
    }
}
