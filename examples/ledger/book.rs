//! The ledger, which is a file. Each write replaces the whole file. The ledger refuses writes of former holders.
//!
//! A worker writes a draft and then renames the draft to the ledger. So a worker that dies before the rename changes
//! nothing. The token check and the rename are one step under an operating system lock on `LEDGER.lock`, which covers
//! only this step. The Lockkeeper lock keeps other workers out from a worker's read to its write.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use lockkeeper::{FencingGate, FencingToken, StaleToken};
use serde::{Deserialize, Serialize};

use crate::input::{Balances, Transfer};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Book {
    /// Newest token that the ledger has seen. It is stored in the same file as the data, so one rename replaces both.
    pub(crate) gate: FencingGate,
    pub(crate) grants: u64,
    pub(crate) writes: u64,
    pub(crate) balances: Balances,
    /// Ids of the transfers, in posting order.
    pub(crate) posted: Vec<i64>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LedgerError {
    #[error("the ledger's file: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Stale(#[from] StaleToken),
    #[error("transfer {id} was posted before")]
    PostedBefore { id: i64 },
}

#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    draft: PathBuf,
    lock: File,
}

/// A write that is complete in the worker's draft but not yet visible.
#[derive(Debug)]
pub(crate) struct Write {
    writes_before: u64,
}

impl Ledger {
    pub(crate) fn open(path: &Path, worker: &str) -> Result<Self, LedgerError> {
        // Programs that share a ledger have different process ids, so their drafts have different names.
        let draft = path.with_added_extension(format!("{}-{worker}", std::process::id()));
        let lock = File::create(path.with_added_extension("lock"))?;
        let path = path.to_owned();
        Ok(Self { path, draft, lock })
    }

    /// Reads the ledger. If there is no ledger, creates it with these balances.
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

    pub(crate) fn read(&self) -> Result<Book, LedgerError> {
        self.in_one_step(|| self.load())
    }

    /// Records the token of a new holder and then reads the ledger. From here on no earlier holder can write.
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

    /// Checks the token (`None` only without a lock) and makes the write visible, in one step. Returns true if another
    /// worker has written since this worker's read. The write of the other worker is then lost.
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
        // Sync the file before the rename, because a power cut must not leave an empty ledger.
        Ok(file.sync_data()?)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // The draft only exists after a refused or unfinished write.
        let _ = fs::remove_file(&self.draft);
    }
}
