//! `lockkeeper detach`: the step between a client and the server that it starts. A new session without the terminal, no
//! open file of the client's, an empty environment, and a parent that ends at once.

use std::ffi::OsString;
use std::fs;
use std::process::Command;

use crate::executable;
use crate::exit::Failure;

/// Environment variables that the server keeps; all others are the first client's affair, secrets among them.
const KEPT: [&str; 5] = [
    "LOCKKEEPER_LOG",
    "RUST_BACKTRACE",
    "TZ",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
];

/// Runs this program with these arguments in the background, on the present stdin, stdout and stderr.
pub(crate) fn detach(arguments: &[OsString]) -> Result<(), Failure> {
    // First, while this process has opened nothing of its own: otherwise the server would hold the caller's files open,
    // as the lock of a shell script, or a pipe whose reader waits for its end.
    close_inherited();
    // Neither a signal to the client's process group nor the end of its terminal reaches the server. Fails for the leader
    // of a group, which no client starts.
    let _ = rustix::process::setsid();
    let kept = KEPT.map(|name| Some((name, std::env::var_os(name)?)));
    let mut command = Command::new(executable::listed()?);
    command.args(arguments).current_dir("/");
    command.env_clear().envs(kept.into_iter().flatten());
    // Not waited for: this process ends, and the server becomes a child of init's, which no terminal can reach.
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
    // The folder itself was among them, and is closed by now.
    for file in files.into_iter().filter(|file| *file > 2) {
        let _ = nix::unistd::close(file);
    }
}
