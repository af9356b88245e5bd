//! The file `LOCK`, which lets only one process at a time open a data directory.
//!
//! The lock is a `flock`, so it ends with the process, even after a kill, and needs no cleanup. The pid in the file is
//! only for messages.

use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::disk::{failed, private};
use crate::model::error::Error;
use crate::runtime::platform::{device_and_inode, is_alive, read_at};

pub(crate) const NAME: &str = "LOCK";

#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    pub(crate) fn take(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(NAME);
        let failed = |error: io::Error| failed(path.clone(), "cannot be locked", &error);
        let mut options = private();
        options.create(true).truncate(false);
        let deadline = Instant::now() + ACQUIRE_TIMEOUT;
        let mut file = loop {
            let file = options.open(&path).map_err(failed)?;
            // If the file was removed or replaced after we opened it, other processes lock another file, so our lock
            // excludes none of them.
            if try_lock(&file).map_err(failed)? && is_at(&file, &path) {
                break file;
            }
            // Do not wait for a live owner, because a second start is usually a mistake. If we get a shared lock, no
            // store owns the file. Another process was only examining it with [`holder`], so we try again.
            let owner = pid_in(&file);
            let is_in_use = !is_unlocked(&file).map_err(failed)? && owner.is_some_and(is_alive);
            if is_in_use || Instant::now() >= deadline {
                let pid = owner.filter(|_| is_in_use);
                return Err(Error::StoreInUse {
                    path: folder.to_owned(),
                    pid: pid.or_else(|| pid_with_open(&path)),
                });
            }
            std::thread::sleep(RETRY_INTERVAL);
        };
        // If the pid cannot be written, only log the error, because the store must open even on a full disk.
        if let Err(error) = write_pid(&mut file) {
            tracing::debug!(%error, "lock file without a pid");
        }
        Ok(Self { file, path })
    }

    /// Checks that the path still names the file that we have locked. If not, another process may have opened the
    /// store.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if is_at(&self.file, &self.path) {
            return Ok(());
        }
        Err(Error::StoreFailed {
            path: self.path.parent().unwrap_or(&self.path).to_owned(),
            reason: format!(
                "its file {NAME} was removed or replaced while the store was open, so another process may have it"
            ),
        })
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(there)) => device_and_inode(&ours) == device_and_inode(&there),
        (_, Err(error)) => !matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
        ),
        (Err(_), _) => true,
    }
}

/// Time to wait for the file to be unlocked if the owner of the lock is dead or the lock is only shared. A dead owner's
/// forked child keeps the lock until the child calls `exec`.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(1);

const RETRY_INTERVAL: Duration = Duration::from_millis(1);

impl Drop for Lock {
    /// Unlocks explicitly, because closing the file does not release the lock while a forked child has the file open.
    fn drop(&mut self) {
        let released = self.file.set_len(0).and_then(|()| self.file.unlock());
        if let Err(error) = released {
            tracing::debug!(%error, "lock file not cleared");
        }
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn is_unlocked(file: &File) -> io::Result<bool> {
    match file.try_lock_shared() {
        Ok(()) => file.unlock().map(|()| true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes())
}

fn pid_in(file: &File) -> Option<u32> {
    let mut bytes = [0; 16];
    let read = read_at(file, &mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..read]).ok()?;
    text.trim().parse().ok()
}

/// Finds another process that has this file open, among the processes whose open files we may list.
fn pid_with_open(path: &Path) -> Option<u32> {
    let path = path.canonicalize().ok()?;
    let has_it_open = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd"));
        let mut links = files.into_iter().flatten().flatten();
        links.any(|link| fs::read_link(link.path()).is_ok_and(|file| file == path))
    };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != std::process::id())
        .find(has_it_open)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockOwner {
    Unlocked,
    /// `None` if the process has not written its pid yet.
    Process(Option<u32>),
}

pub(crate) fn holder(folder: &Path) -> io::Result<LockOwner> {
    let file = match File::open(folder.join(NAME)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(LockOwner::Unlocked),
        opened => opened?,
    };
    if is_unlocked(&file)? {
        return Ok(LockOwner::Unlocked);
    }
    Ok(LockOwner::Process(pid_in(&file)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;
    use crate::log::testing::TempFolder;

    #[test]
    fn a_second_owner_is_refused_and_told_the_first_ones_pid() {
        let folder = TempFolder::new();
        assert_eq!(holder(folder.path()).unwrap(), LockOwner::Unlocked);
        let me = Some(std::process::id());
        let lock = Lock::take(folder.path()).unwrap();
        assert_eq!(holder(folder.path()).unwrap(), LockOwner::Process(me));
        let refused = Lock::take(folder.path()).unwrap_err();
        assert_eq!(
            refused,
            Error::StoreInUse {
                path: folder.path().into(),
                pid: me
            }
        );
        assert!(
            refused
                .to_string()
                .contains(&format!("process {}", std::process::id()))
        );
        drop(lock);
        assert_eq!(holder(folder.path()).unwrap(), LockOwner::Unlocked);
        drop(Lock::take(folder.path()).unwrap());
    }

    #[test]
    fn an_inspection_refuses_no_store() {
        let folder = TempFolder::new();
        drop(Lock::take(folder.path()).unwrap());
        let looks = std::sync::atomic::AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while looks.load(std::sync::atomic::Ordering::Relaxed) {
                    holder(folder.path()).unwrap();
                }
            });
            for _ in 0..2_000 {
                drop(Lock::take(folder.path()).unwrap());
            }
            looks.store(false, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn a_lock_that_is_shared_for_long_is_in_use() {
        let folder = TempFolder::new();
        drop(Lock::take(folder.path()).unwrap());
        let shared = File::open(folder.path().join(NAME)).unwrap();
        shared.lock_shared().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let path = folder.path().to_owned();
        std::thread::spawn(move || tell.send(Lock::take(&path).map(drop)));
        let taken = told.recv_timeout(60 * ACQUIRE_TIMEOUT);
        let taken = taken.expect("the wait has a limit");
        assert!(matches!(taken, Err(Error::StoreInUse { .. })), "{taken:?}");
        drop(shared);
        drop(Lock::take(folder.path()).unwrap());
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = TempFolder::new();
        let missing = folder.path().join("missing");
        assert!(matches!(
            Lock::take(&missing),
            Err(Error::StoreFailed { .. })
        ));
    }

    /// Environment variable with the folder to lock. It is set for a child process that runs with a file size limit of
    /// 0.
    const FULL: &str = "LOCKKEEPER_TEST_FULL";

    #[test]
    fn a_full_disk_does_not_refuse_the_lock() {
        if let Some(folder) = std::env::var_os(FULL) {
            let lock = Lock::take(Path::new(&folder)).unwrap();
            assert_eq!(
                holder(Path::new(&folder)).unwrap(),
                LockOwner::Process(None)
            );
            return drop(lock);
        }
        let folder = TempFolder::new();
        let child = std::process::Command::new("sh")
            .args(["-c", r#"trap "" XFSZ; ulimit -f 0; exec "$0" "$@""#])
            .arg(std::env::current_exe().unwrap())
            .args([
                "log::lock::tests::a_full_disk_does_not_refuse_the_lock",
                "--exact",
            ])
            .env(FULL, folder.path())
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
    }

    #[test]
    fn children_of_other_threads_refuse_no_store() {
        let folder = TempFolder::new();
        let starts = std::sync::atomic::AtomicBool::new(true);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while starts.load(std::sync::atomic::Ordering::Relaxed) {
                        let mut command = std::process::Command::new("true");
                        command
                            .env("LOCKKEEPER_TEST", "1")
                            .uid(rustix::process::getuid().as_raw());
                        command.status().unwrap();
                    }
                });
            }
            let mut refused = None;
            for _ in 0..2_000 {
                if let Err(error) = Lock::take(folder.path()) {
                    refused = Some(error);
                    break;
                }
            }
            starts.store(false, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(refused, None);
        });
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_child_that_keeps_the_lock_of_a_killed_store_is_named() {
        let folder = TempFolder::new();
        drop(Lock::take(folder.path()).unwrap());
        let file = File::open(folder.path().join(NAME)).unwrap();
        file.try_lock().unwrap();
        let inherited = rustix::io::dup(&file).unwrap();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        drop((inherited, file));
        let refused = Lock::take(folder.path()).unwrap_err();
        let pid = Some(child.id());
        assert!(matches!(refused, Error::StoreInUse { pid: found, .. } if found == pid));
        drop(child.stdin.take());
        child.wait().unwrap();
        drop(Lock::take(folder.path()).unwrap());
    }
}
