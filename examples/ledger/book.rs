//! The ledger: a file that each write replaces as a whole, and that refuses a former holder's writes.
//!
//! A write is prepared in a draft, which is then renamed over the ledger, so a worker that dies before the
//! rename has changed nothing. Checking the token and renaming are one step, under an operating system's
//! lock on `LEDGER.lock`. That lock is held for one step only; the lock of Lockkeeper is what keeps a
//! worker's reading and writing together.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use lockkeeper::{FencingGate, FencingToken, StaleToken};
use serde::{Deserialize, Serialize};

use crate::input::{Balances, Transfer};

/// Content of the ledger.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Book {
    /// Newest token seen. It is stored with the data, and replaced with them in one rename.
    pub(crate) gate: FencingGate,
    /// Number of holders that have recorded their token.
    pub(crate) grants: u64,
    /// Number of writes of the file.
    pub(crate) writes: u64,
    pub(crate) balances: Balances,
    /// Ids of the transfers, in the order in which they were posted.
    pub(crate) posted: Vec<i64>,
}

/// Failure of an access to the ledger.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LedgerError {
    #[error("the ledger's file: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Stale(#[from] StaleToken),
    #[error("transfer {id} was posted before")]
    PostedBefore { id: i64 },
}

/// One worker's access to the ledger.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    draft: PathBuf,
    lock: File,
}

/// A write that is complete in the worker's draft, and not yet visible.
#[derive(Debug)]
pub(crate) struct Write {
    /// The ledger's number of writes when it was read.
    writes_before: u64,
}

impl Ledger {
    /// Opens the ledger at `path` for the worker of this name.
    pub(crate) fn open(path: &Path, worker: &str) -> Result<Self, LedgerError> {
        // The process's id tells apart the drafts of two programs that share one ledger.
        let draft = path.with_added_extension(format!("{}-{worker}", std::process::id()));
        let lock = File::create(path.with_added_extension("lock"))?;
        let path = path.to_owned();
        Ok(Self { path, draft, lock })
    }

    /// Reads the ledger; creates it with these balances if it does not exist.
    pub(crate) fn open_book(&self, balances: Balances) -> Result<Book, LedgerError> {
        self.in_one_step(|| {
            if !self.path.exists() {
                self.replace(&Book {
                    balances,
                    ..Book::default()
                })?;
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
            self.replace(&book)?;
            Ok(book)
        })
    }

    /// Prepares a write that posts the transfer to this book.
    pub(crate) fn prepare(&self, mut book: Book, posting: &Transfer) -> Result<Write, LedgerError> {
        let writes_before = book.writes;
        if book.posted.contains(&posting.id) {
            return Err(LedgerError::PostedBefore { id: posting.id });
        }
        posting.apply(&mut book.balances);
        book.posted.push(posting.id);
        book.writes += 1;
        self.write_draft(&book)?;
        Ok(Write { writes_before })
    }

    /// Checks the token (`None` only without a lock) and makes the write visible, in one step. Returns true
    /// if another worker has written since the ledger was read: that write is lost now.
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
            fs::rename(&self.draft, &self.path)?;
            Ok(book.writes != write.writes_before)
        })
    }

    fn in_one_step<T>(
        &self,
        step: impl FnOnce() -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        self.lock.lock()?;
        let done = step();
        self.lock.unlock()?;
        done
    }

    fn load(&self) -> Result<Book, LedgerError> {
        let bytes = fs::read(&self.path)?;
        Ok(serde_json::from_slice(&bytes).map_err(io::Error::from)?)
    }

    fn replace(&self, book: &Book) -> Result<(), LedgerError> {
        self.write_draft(book)?;
        Ok(fs::rename(&self.draft, &self.path)?)
    }

    fn write_draft(&self, book: &Book) -> Result<(), LedgerError> {
        let bytes = serde_json::to_vec(book).map_err(io::Error::from)?;
        let mut file = File::create(&self.draft)?;
        file.write_all(&bytes)?;
        // Before the rename: a power cut must not leave the ledger's name on an empty file.
        Ok(file.sync_data()?)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // A draft is left only by a write that was refused or not finished.
        let _ = fs::remove_file(&self.draft);
    }
}
