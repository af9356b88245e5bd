//! [`Gate`]: a shared resource in the form of a file, which detects a second holder and an old token.
//!
//! A holder has an advisory lock on the file while it believes that it holds. The lock is exclusive or shared, or for
//! a semaphore on as many files as it has permits. The system releases it when the process ends, which is before the
//! session ends. The locks are only tried, because meeting another holder is a conflict.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use lockkeeper::FencingToken;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Exclusive,
    Shared,
    /// This many permits, of this many.
    Permits(u32, u32),
}

/// A visit to a resource, as locked files. It ends when dropped.
#[derive(Debug, Default)]
pub struct CriticalSection(Vec<File>);

impl Drop for CriticalSection {
    /// Unlocks explicitly. Closing is not enough, because a concurrent listing of this process's descriptors (a
    /// sample of the soak) briefly holds a reference that keeps the lock.
    fn drop(&mut self) {
        for file in &self.0 {
            let _ = file.unlock();
        }
    }
}

/// Why a holder does not get in.
#[derive(Debug, PartialEq, Eq)]
pub enum Closed {
    /// Another holder is in.
    Conflict,
    /// A newer token has been used.
    Refused,
}

/// Resources in a folder, named after their locks.
#[derive(Clone, Debug)]
pub struct Gate(PathBuf);

impl Gate {
    pub fn open(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self(folder.to_owned()))
    }

    /// Enters a resource. The outer error is an I/O error. The inner one is a violation unless a lease has been lost.
    pub fn enter(
        &self,
        key: &str,
        part: Part,
        token: FencingToken,
    ) -> io::Result<Result<CriticalSection, Closed>> {
        match part {
            Part::Permits(count, of) => self.take_permits(key, count, of),
            _ => self.pass(key, part == Part::Exclusive, token),
        }
    }

    fn file(&self, name: &str) -> io::Result<File> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(self.0.join(name))
    }

    fn take_permits(
        &self,
        key: &str,
        count: u32,
        of: u32,
    ) -> io::Result<Result<CriticalSection, Closed>> {
        let mut taken = CriticalSection::default();
        for place in 0..of {
            if taken.0.len() == count as usize {
                break;
            }
            let file = self.file(&format!("{key}-{place}"))?;
            if is_locked(file.try_lock())? {
                taken.0.push(file);
            }
        }
        match taken.0.len() == count as usize {
            true => Ok(Ok(taken)),
            false => Ok(Err(Closed::Conflict)),
        }
    }

    fn pass(
        &self,
        key: &str,
        is_exclusive: bool,
        token: FencingToken,
    ) -> io::Result<Result<CriticalSection, Closed>> {
        let file = self.file(key)?;
        let tried = match is_exclusive {
            true => file.try_lock(),
            false => file.try_lock_shared(),
        };
        if !is_locked(tried)? {
            return Ok(Err(Closed::Conflict));
        }
        let stay = CriticalSection(vec![file]);
        let mut file = &stay.0[0];
        let mut newest = String::new();
        file.read_to_string(&mut newest)?;
        let token = token.as_i64();
        if newest.parse().is_ok_and(|newest: i64| token < newest) {
            return Ok(Err(Closed::Refused));
        }
        if is_exclusive {
            file.seek(SeekFrom::Start(0))?;
            // Fixed width, because a shorter number would leave digits of the last one.
            file.write_all(format!("{token:020}").as_bytes())?;
        }
        Ok(Ok(stay))
    }
}

fn is_locked(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: i64) -> FencingToken {
        FencingToken::from_i64(number).unwrap()
    }

    #[test]
    fn a_second_holder_and_an_old_token_are_noticed() {
        let name = format!("lockkeeper-gate-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let gate = Gate::open(&folder).unwrap();
        let enter = |part, number| gate.enter("a", part, token(number)).unwrap();

        let first = enter(Part::Exclusive, 5).unwrap();
        assert_eq!(enter(Part::Exclusive, 6).unwrap_err(), Closed::Conflict);
        assert_eq!(enter(Part::Shared, 6).unwrap_err(), Closed::Conflict);
        drop(first);
        assert_eq!(enter(Part::Exclusive, 4).unwrap_err(), Closed::Refused);
        assert_eq!(enter(Part::Shared, 4).unwrap_err(), Closed::Refused);

        let readers = [
            enter(Part::Shared, 5).unwrap(),
            enter(Part::Shared, 7).unwrap(),
        ];
        assert_eq!(enter(Part::Exclusive, 8).unwrap_err(), Closed::Conflict);
        drop(readers);
        drop(enter(Part::Exclusive, 8).unwrap());

        // Simulates a concurrent listing of this process's descriptors.
        let last = enter(Part::Exclusive, 9).unwrap();
        let reference = last.0[0].try_clone().unwrap();
        drop(last);
        drop(enter(Part::Exclusive, 10).unwrap());
        drop(reference);

        let permits = |count| gate.enter("s", Part::Permits(count, 3), token(1)).unwrap();
        let two = permits(2).unwrap();
        assert_eq!(permits(2).unwrap_err(), Closed::Conflict);
        let one = permits(1).unwrap();
        drop((one, two));
        assert!(permits(3).is_ok());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
