//! [`Cgroup`]: a control group (version 2) for the processes of one command.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// A cgroup below this process's own cgroup. Dropping it removes the directory if the cgroup is empty.
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup and moves a process into it. Children that the process starts later are in the same cgroup.
    /// Fails on a kernel that cannot kill a cgroup (before 5.14).
    pub(super) fn create(process: Pid) -> io::Result<Self> {
        let created = Self::empty(process)?;
        let number = process.as_raw_pid().to_string();
        fs::write(created.0.join("cgroup.procs"), number)?;
        Ok(created)
    }

    pub(super) fn empty(process: Pid) -> io::Result<Self> {
        let own = own_directory().ok_or(io::ErrorKind::NotFound)?;
        let number = process.as_raw_pid();
        let created = Self(own.join(format!("lockkeeper-{number}")));
        // Remove a cgroup that was left behind by a killed process with the same pid.
        let _ = fs::remove_dir(&created.0);
        fs::create_dir(&created.0)?;
        if !created.0.join("cgroup.kill").exists() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(created)
    }

    pub(super) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn kill(&self) {
        // Ignore an error, because the caller also kills the processes that it sees.
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn own_directory() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    directory(&mounts, &own)
}

fn directory(mounts: &str, own: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then_some(())?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // A container may mount only a part of the hierarchy, so find the path below the mounted part.
        let below = Path::new(path).strip_prefix(root).ok()?;
        Some(Path::new(point).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_found_among_all_mounts() {
        let mounts = "22 1 0:20 / /proc rw - proc proc rw\n\
                      30 1 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      31 1 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let found = |own: &str| directory(mounts, own).map(|path| path.display().to_string());
        let expected = "/sys/fs/cgroup/user.slice/a";
        assert_eq!(found("1:cpu:/b\n0::/user.slice/a\n").unwrap(), expected);
        assert_eq!(found("1:cpu:/b\n"), None);
        let part = "31 1 0:27 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found = |own: &str| directory(part, own);
        assert_eq!(found("0::/docker/x/y"), Some("/sys/fs/cgroup/y".into()));
        assert_eq!(found("0::/elsewhere"), None);
    }
}
