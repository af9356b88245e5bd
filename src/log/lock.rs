//! The file `LOCK`: one process at a time has a data directory open.
//!
//! The lock is the operating system's (`flock`), so it goes with the process however that ends. In
//! the file stands the process's id, for messages alone.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use crate::error::Error;

pub(crate) const NAME: &str = "LOCK";

/// A data directory that no other process opens while this lives.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock of the data directory at `folder`.
    pub(crate) fn take(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(NAME);
        let failed = |error: io::Error| Error::StoreFailed {
            path: path.clone(),
            reason: error.to_string(),
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(failed)?;
        if !is_taken(&file).map_err(failed)? {
            return Err(Error::StoreInUse {
                path: folder.to_owned(),
                pid: pid_in(&file),
            });
        }
        write_pid(&mut file).map_err(failed)?;
        Ok(Self { file })
    }
}

impl Drop for Lock {
    /// The pid of a process that is gone would only mislead. Closing the file lets go of the lock.
    fn drop(&mut self) {
        if let Err(error) = self.file.set_len(0) {
            tracing::debug!(%error, "the lock file keeps a pid");
        }
    }
}

/// Takes the lock; false when another store has it.
///
/// Who only looks ([`holder`]) shares the lock for an instant. That must not refuse a store: where
/// the lock can be shared, no store has it, and it is free in a moment.
fn is_taken(file: &File) -> io::Result<bool> {
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) => {}
        }
        if !is_shared(file)? {
            return Ok(false);
        }
        std::thread::yield_now();
    }
}

/// Whether no store has the lock.
fn is_shared(file: &File) -> io::Result<bool> {
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
    let mut text = String::new();
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Who has a data directory open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Nobody,
    /// A process; `None` where it has not written its id yet.
    Process(Option<u32>),
}

/// Looks who has the data directory at `folder` open, without writing anything.
pub(crate) fn holder(folder: &Path) -> io::Result<Holder> {
    let file = match File::open(folder.join(NAME)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Holder::Nobody),
        opened => opened?,
    };
    if is_shared(&file)? {
        return Ok(Holder::Nobody);
    }
    Ok(Holder::Process(pid_in(&file)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;
    use crate::log::testing::TempFolder;

    #[test]
    fn a_second_owner_is_refused_and_told_the_first_ones_pid() {
        let folder = TempFolder::new();
        assert_eq!(holder(folder.path()).unwrap(), Holder::Nobody);
        let me = Some(std::process::id());
        let lock = Lock::take(folder.path()).unwrap();
        assert_eq!(holder(folder.path()).unwrap(), Holder::Process(me));
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
        assert_eq!(holder(folder.path()).unwrap(), Holder::Nobody);
        drop(Lock::take(folder.path()).unwrap());
    }

    #[test]
    fn who_only_looks_refuses_nobody() {
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
    fn a_folder_that_is_not_there_is_an_error() {
        let folder = TempFolder::new();
        let missing = folder.path().join("missing");
        assert!(matches!(
            Lock::take(&missing),
            Err(Error::StoreFailed { .. })
        ));
    }

    /// A child that another thread starts has, between its fork and its exec, whatever the process had open.
    #[test]
    fn children_of_other_threads_refuse_nobody() {
        let folder = TempFolder::new();
        let starts = std::sync::atomic::AtomicBool::new(true);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while starts.load(std::sync::atomic::Ordering::Relaxed) {
                        let mut command = std::process::Command::new("true");
                        // An environment of its own makes the standard library fork and exec.
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
}
