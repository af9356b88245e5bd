//! `lockkeeper detach`: the short-lived process between a client and the server that the client starts. The server gets
//! a new session without a terminal, none of the client's open files, and an almost empty environment.

use std::ffi::OsString;
use std::fs;
use std::process::Command;

use crate::executable;
use crate::exit::Failure;

/// Environment variables that the server keeps. All others belong to the first client and may contain secrets.
const KEPT: [&str; 5] = [
    "LOCKKEEPER_LOG",
    "RUST_BACKTRACE",
    "TZ",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
];

pub(crate) fn detach(arguments: &[OsString]) -> Result<(), Failure> {
    // Close the caller's files before we open any file of our own. Otherwise the server would keep them open, for
    // example the lock file of a shell script.
    close_inherited();
    // Leave the client's process group and terminal. `setsid` fails only in the leader of a process group, and no
    // client starts this process as a leader.
    let _ = rustix::process::setsid();
    let kept = KEPT.map(|name| Some((name, std::env::var_os(name)?)));
    let mut command = Command::new(executable::listed()?);
    command.args(arguments).current_dir("/");
    command.env_clear().envs(kept.into_iter().flatten());
    // Do not wait for the server. When this process ends, init adopts the server.
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
    // The list includes the directory's own descriptor, which is closed by now.
    for file in files.into_iter().filter(|file| *file > 2) {
        let _ = nix::unistd::close(file);
    }
}
