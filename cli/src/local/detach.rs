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
    // Do this before we open any file. Otherwise the server would keep the caller's files open, such as the lock of a
    // shell script or a pipe whose reader waits for its end.
    close_inherited();
    // Detaches from the client's process group and terminal. Fails for a group leader, which no client starts.
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
