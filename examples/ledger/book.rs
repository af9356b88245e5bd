//! The ledger: a file that every write replaces as a whole, and that refuses the writes of those
//! who no longer hold the lock.
//!
//! A write is made ready in a file of its own, which then takes the ledger's name. Whoever dies
//! before that has changed nothing. The token is checked in the same step in which the name is
//! taken: both happen under an operating system's lock on `LEDGER.lock`, so that nobody comes
//! between. That lock is held for one step only; what keeps a worker's reading and writing
//! together is the lock of Lockkeeper.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use lockkeeper::{FencingGate, FencingToken, StaleToken};
use serde::{Deserialize, Serialize};

use crate::input::{Balances, Transfer};

/// Content of the ledger.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Book {
    /// Refuses old tokens.
    pub(crate) gate: FencingGate,
    /// Number of holders that have recorded their token here.
    pub(crate) grants: u64,
    /// Number of writes of the file.
    pub(crate) writes: u64,
    pub(crate) balances: Balances,
    /// The ids of the transfers, in the order in which they were posted.
    pub(crate) posted: Vec<u64>,
}

impl Book {
    /// Posts a transfer, once.
    pub(crate) fn post(&mut self, transfer: &Transfer) -> Result<(), LedgerError> {
        if self.posted.contains(&transfer.id) {
            return Err(LedgerError::PostedBefore { id: transfer.id });
        }
        transfer.apply(&mut self.balances);
        self.posted.push(transfer.id);
        Ok(())
    }
}

/// Why the ledger did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LedgerError {
    #[error("the ledger {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the ledger {} is none: {source}", path.display())]
    NoLedger {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(transparent)]
    Stale(#[from] StaleToken),
    #[error("transfer {id} was posted before")]
    PostedBefore { id: u64 },
}

/// A write that is ready: it stands in a file of its own and lacks only the ledger's name.
#[derive(Debug)]
pub(crate) struct Write {
    file: PathBuf,
    /// The ledger's number of writes when it was read.
    writes_before: u64,
}

/// One worker's way to the ledger.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    draft: PathBuf,
    lock: File,
}

impl Ledger {
    /// The ledger at `path`, for the worker of this name.
    pub(crate) fn open(path: &Path, worker: &str) -> Result<Self, LedgerError> {
        let suffixed = |suffix: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        let lock = suffixed(".lock");
        let lock = File::create(&lock).map_err(|source| LedgerError::Io { path: lock, source })?;
        Ok(Self {
            path: path.to_owned(),
            draft: suffixed(&format!(".{}-{worker}", std::process::id())),
            lock,
        })
    }

    /// Reads the ledger, after making it with these balances if there is none.
    pub(crate) fn open_book(&self, opening: &Balances) -> Result<Book, LedgerError> {
        self.in_one_step(|| {
            if !self.path.exists() {
                let book = Book {
                    balances: opening.clone(),
                    ..Book::default()
                };
                self.write_draft(&book)?;
                self.take_name(&self.draft)?;
            }
            self.load()
        })
    }

    /// Reads the ledger.
    pub(crate) fn read(&self) -> Result<Book, LedgerError> {
        self.in_one_step(|| self.load())
    }

    /// Records a new holder's token, then reads: from here on no earlier holder can write.
    pub(crate) fn enter(&self, token: FencingToken) -> Result<Book, LedgerError> {
        self.in_one_step(|| {
            let mut book = self.load()?;
            book.gate.admit(token)?;
            book.grants += 1;
            book.writes += 1;
            self.write_draft(&book)?;
            self.take_name(&self.draft)?;
            Ok(book)
        })
    }

    /// Makes a write ready.
    pub(crate) fn prepare(&self, mut book: Book) -> Result<Write, LedgerError> {
        let writes_before = book.writes;
        book.writes += 1;
        self.write_draft(&book)?;
        Ok(Write {
            file: self.draft.clone(),
            writes_before,
        })
    }

    /// Checks the token and writes, in one step. Answers whether somebody else has written since
    /// the ledger was read, so that his write is lost now.
    ///
    /// `token` is `None` only for those who work without a lock.
    pub(crate) fn commit(
        &self,
        write: Write,
        token: Option<FencingToken>,
    ) -> Result<bool, LedgerError> {
        self.in_one_step(|| {
            let mut book = self.load()?;
            if let Some(token) = token {
                book.gate.admit(token)?;
            }
            self.take_name(&write.file)?;
            Ok(book.writes != write.writes_before)
        })
    }

    fn in_one_step<T>(
        &self,
        step: impl FnOnce() -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        self.lock.lock().map_err(|source| self.io(source))?;
        let done = step();
        self.lock.unlock().map_err(|source| self.io(source))?;
        done
    }

    fn load(&self) -> Result<Book, LedgerError> {
        let bytes = fs::read(&self.path).map_err(|source| self.io(source))?;
        serde_json::from_slice(&bytes).map_err(|source| LedgerError::NoLedger {
            path: self.path.clone(),
            source,
        })
    }

    fn write_draft(&self, book: &Book) -> Result<(), LedgerError> {
        let write = || {
            let mut file = File::create(&self.draft)?;
            file.write_all(&serde_json::to_vec(book)?)?;
            // A name must never lead to a file whose content a power cut has taken.
            file.sync_data()
        };
        write().map_err(|source| self.io(source))
    }

    fn take_name(&self, file: &Path) -> Result<(), LedgerError> {
        fs::rename(file, &self.path).map_err(|source| self.io(source))
    }

    fn io(&self, source: io::Error) -> LedgerError {
        LedgerError::Io {
            path: self.path.clone(),
            source,
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // Only a write that was refused, or never came to pass, has left its draft behind.
        let _ = fs::remove_file(&self.draft);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_write_is_refused_and_changes_nothing() {
        let folder = std::env::temp_dir().join(format!("lockkeeper-book-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("ledger.json");
        let [old, new]: [FencingToken; 2] = ["1", "2"].map(|token| token.parse().unwrap());
        let opening = Balances::from([("a".into(), 10)]);
        let (dead, next) = (
            Ledger::open(&path, "dead").unwrap(),
            Ledger::open(&path, "next").unwrap(),
        );
        dead.open_book(&opening).unwrap();

        let late = dead.prepare(dead.enter(old).unwrap()).unwrap();
        let write = next.prepare(next.enter(new).unwrap()).unwrap();
        let refused = dead.commit(late, Some(old));
        assert!(matches!(refused, Err(LedgerError::Stale(_))), "{refused:?}");
        // Nobody has written since the new holder read.
        assert!(!next.commit(write, Some(new)).unwrap());

        // Without the check it overwrites what it never saw, which is noticed.
        let late = dead.prepare(Book::default()).unwrap();
        assert!(dead.commit(late, None).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }
}
