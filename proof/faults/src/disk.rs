//! [`Disk`]: a server's folder on a disk that can be filled.
//!
//! It is a small tmpfs in a private mount namespace, so nothing remains mounted. If the system does not permit one, a
//! limit of the file size simulates a full disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use testkit::ChildProcess;

/// Set if this program already has a namespace.
const NAMESPACE: &str = "LOCKKEEPER_FAULTS_NAMESPACE";

/// Enters a private mount namespace by re-executing this program. Returns if that is impossible or already done.
pub(crate) fn enter_namespace() {
    if may_mount() {
        return;
    }
    let as_root = rustix::process::geteuid().is_root();
    let options: &[&str] = match as_root {
        true => &["--mount"],
        false => &["--user", "--map-root-user", "--mount"],
    };
    let mut probe = Command::new("unshare");
    probe.args(options).arg("true").stderr(Stdio::null());
    let is_granted = probe.status().is_ok_and(|status| status.success());
    if let (true, Ok(program)) = (is_granted, std::env::current_exe()) {
        let mut again = Command::new("unshare");
        again.args(options).arg("--").arg(program);
        let error = again
            .args(std::env::args_os().skip(1))
            .env(NAMESPACE, "1")
            .exec();
        println!("no namespace of mounts: {error}");
    }
}

/// Returns `true` in a private mount namespace.
pub(crate) fn may_mount() -> bool {
    std::env::var_os(NAMESPACE).is_some()
}

pub(crate) struct Disk {
    path: PathBuf,
    kind: Kind,
}

enum Kind {
    Tmpfs,
    /// The size of files is limited.
    Limited,
}

impl Disk {
    pub(crate) fn new(path: &Path, mebibytes: u64) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        let size = format!("size={mebibytes}m,mode=700");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(path);
        mount.stderr(Stdio::null());
        let is_mounted = may_mount() && mount.status().is_ok_and(|status| status.success());
        Ok(Self {
            path: path.to_owned(),
            kind: match is_mounted {
                true => Kind::Tmpfs,
                false => Kind::Limited,
            },
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` if it behaves like a real full disk: a server with enough room for its next writes continues.
    pub(crate) fn is_real(&self) -> bool {
        matches!(self.kind, Kind::Tmpfs)
    }

    pub(crate) fn describe(&self) -> &'static str {
        match self.kind {
            Kind::Tmpfs => "a tmpfs that is filled",
            Kind::Limited => "a limit of files' sizes, for lack of the right to mount",
        }
    }

    pub(crate) fn fill(&self, server: &ChildProcess) -> io::Result<()> {
        match self.kind {
            Kind::Limited => {
                limit_files(server, Some(4096));
                Ok(())
            }
            Kind::Tmpfs => {
                let mut ballast = File::create(self.ballast())?;
                for size in [1 << 20, 4096, 1] {
                    let piece = vec![0; size];
                    while write_all_or_nothing(&mut ballast, &piece)? {}
                }
                Ok(())
            }
        }
    }

    pub(crate) fn free(&self, server: &ChildProcess) {
        match self.kind {
            Kind::Limited => limit_files(server, None),
            Kind::Tmpfs => {
                let _ = fs::remove_file(self.ballast());
            }
        }
    }

    fn ballast(&self) -> PathBuf {
        self.path.join("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if matches!(self.kind, Kind::Tmpfs) {
            let _ = Command::new("umount")
                .arg("--lazy")
                .arg(&self.path)
                .status();
        }
    }
}

/// Returns `false` once the disk is full.
fn write_all_or_nothing(file: &mut File, bytes: &[u8]) -> io::Result<bool> {
    match file.write_all(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(false),
        Err(error) => Err(error),
    }
}

/// Limits the size of the files that a process writes, or removes the limit.
fn limit_files(server: &ChildProcess, bytes: Option<u64>) {
    let limits = Rlimit {
        current: bytes,
        maximum: getrlimit(Resource::Fsize).maximum,
    };
    let _ = prlimit(Some(server.pid()), Resource::Fsize, limits);
}
