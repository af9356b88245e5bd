//! Workers. Each has its own session and opens the ledger itself, like a separate program.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{
    Client, ConnectOptions, Error, FencingToken, Guard, LockError, LockEvent, LockOptions,
    LockPath, Mutex, Target, connect_with,
};
use serde::Serialize;
use testkit::Mortal;
use tokio::sync::{mpsc, watch};

use crate::book::{Ledger, LedgerError, Write};
use crate::input::Transfer;
use crate::printer::Printer;

/// Session timeout that we request for doomed workers. After the death of such a worker, the others wait this long. A
/// store may grant only a longer timeout.
const DOOMED_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause between reading and writing without a lock.
const THINKING: Duration = Duration::from_millis(1);

pub(crate) struct Run {
    pub(crate) url: Target,
    pub(crate) lock: LockPath,
    pub(crate) ledger: PathBuf,
    pub(crate) printer: Arc<Printer>,
    /// Transfers to post. The channel ends when it is empty and no doomed worker can put a transfer back.
    pub(crate) jobs: tokio::sync::Mutex<mpsc::UnboundedReceiver<Transfer>>,
    /// Number of workers that are between their read and their write. It shows overlaps without relying on the lock.
    pub(crate) inside: AtomicUsize,
    pub(crate) newest_token: watch::Sender<Option<FencingToken>>,
    pub(crate) tally: parking_lot::Mutex<Tally>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Tally {
    #[serde(skip)]
    pub(crate) posted: usize,
    #[serde(skip)]
    pub(crate) grants: Vec<Grant>,
    /// Number of times that two workers were at the ledger at the same time, plus the number of writes that were
    /// overwritten unread.
    pub(crate) overlaps: usize,
    pub(crate) crashed: usize,
    pub(crate) late_writes_refused: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// Number of the grant, counted by the ledger.
    pub(crate) number: u64,
    pub(crate) token: FencingToken,
    pub(crate) waited: Duration,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("{0}; a ledger stays with one store, whose tokens it compares")]
    OtherStore(LedgerError),
    #[error("a dead worker's late write came through")]
    LateWrite,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error.into())
    }
}

pub(crate) enum Task {
    Post,
    /// Posts transfers without a lock until none are left, to show what goes wrong.
    PostWithoutLock,
    /// Dies while posting this transfer, which is returned to the others.
    Die(Transfer, mpsc::UnboundedSender<Transfer>),
}

pub(crate) async fn run(run: &Run, number: usize, task: Task) -> Result<(), Failure> {
    let ledger = Ledger::open(&run.ledger, &format!("w{number}"))?;
    if let Task::PostWithoutLock = task {
        return post_without_lock(run, &ledger).await;
    }
    let options = ConnectOptions::new().create_chroot();
    let client = connect_with(run.url.clone(), options.clone()).await?;
    match task {
        Task::Die(transfer, put_back) => {
            let mortal = Mortal::open(&client, options.session_timeout(DOOMED_TIMEOUT)).await?;
            let worker = Worker::new(run, number, mortal.client(), ledger)?;
            worker.die_posting(transfer, &mortal, put_back).await?;
        }
        _ => {
            let worker = Worker::new(run, number, &client, ledger)?;
            while let Some(transfer) = run.next_job().await {
                worker.post(&transfer).await?;
            }
        }
    }
    Ok(client.close().await?)
}

async fn post_without_lock(run: &Run, ledger: &Ledger) -> Result<(), Failure> {
    while let Some(transfer) = run.next_job().await {
        let _presence = Presence::enter(run);
        let write = ledger.prepare(ledger.read()?, &transfer)?;
        tokio::time::sleep(THINKING).await;
        run.wrote(ledger.commit(write, None)?);
    }
    Ok(())
}

impl Run {
    async fn next_job(&self) -> Option<Transfer> {
        self.jobs.lock().await.recv().await
    }

    fn wrote(&self, overwrote: bool) {
        let mut tally = self.tally.lock();
        tally.posted += 1;
        tally.overlaps += usize::from(overwrote);
    }
}

struct Worker<'a> {
    run: &'a Run,
    number: usize,
    mutex: Mutex,
    options: LockOptions,
    ledger: Ledger,
}

/// A held lock, and a write that is ready to be committed.
struct Holding<'a> {
    presence: Presence<'a>,
    guard: Guard,
    write: Write,
}

impl<'a> Worker<'a> {
    fn new(run: &'a Run, number: usize, client: &Client, ledger: Ledger) -> Result<Self, Failure> {
        let options = LockOptions::new().label(format!("ledger worker {number}"));
        Ok(Self {
            run,
            number,
            mutex: Mutex::new(client, &run.lock)?,
            options: options.events(run.printer.sink(number)),
            ledger,
        })
    }

    /// Posts a transfer. If the lock is lost before the write, starts again.
    async fn post(&self, transfer: &Transfer) -> Result<(), Failure> {
        let guard = loop {
            let held = self.hold(transfer).await?;
            let token = held.guard.fencing_token();
            match self.ledger.commit(held.write, Some(token)) {
                Ok(overwrote) => self.run.wrote(overwrote),
                Err(failure) => {
                    self.recover(failure.into())?;
                    continue;
                }
            }
            break held.guard;
        };
        // Print this event before the release, because the next grant may be printed right after the release.
        self.run.printer.event(self.number, &LockEvent::Released);
        // If the lock is lost now, the write remains, because the ledger has already accepted its token.
        if let Err(error) = guard.release().await {
            self.run.printer.remark(self.number, error);
        }
        Ok(())
    }

    /// Plays a worker that is cut off while it holds the lock. Its write arrives when another worker is the holder.
    async fn die_posting(
        &self,
        transfer: Transfer,
        mortal: &Mortal,
        put_back: mpsc::UnboundedSender<Transfer>,
    ) -> Result<(), Failure> {
        let held = self.hold(&transfer).await?;
        let token = held.guard.fencing_token();
        let timeout = held.guard.session().timeout().unwrap_or_default();
        // The guard is dropped after the cut, so the store receives neither a release nor a closeSession.
        mortal.cut();
        drop((held.presence, held.guard));
        self.run.tally.lock().crashed += 1;
        let id = transfer.id;
        let text = format!(
            "DIES while it holds the lock, in the middle of writing transfer {id}; no closeSession is sent, \
             so the lock is free when {timeout:?} have passed"
        );
        self.run.printer.remark(self.number, text);
        // Another worker posts this transfer. (The receiver lives as long as `run`.)
        let _ = put_back.send(transfer);
        drop(put_back);

        // The late write arrives after the next holder has recorded its token.
        let mut newest = self.run.newest_token.subscribe();
        let _ = newest.wait_for(|newest| *newest > Some(token)).await;
        match self.ledger.commit(held.write, Some(token)) {
            Err(LedgerError::Stale(stale)) => {
                self.run.tally.lock().late_writes_refused += 1;
                let text = format!("(dead) its late write arrives and is refused: {stale}");
                self.run.printer.remark(self.number, text);
                Ok(())
            }
            Err(error) => Err(error.into()),
            Ok(_) => Err(Failure::LateWrite),
        }
    }

    /// Acquires the lock and prepares the write. If the lock is lost, starts again.
    async fn hold(&self, transfer: &Transfer) -> Result<Holding<'a>, Failure> {
        loop {
            match self.try_hold(transfer).await {
                Err(failure) => self.recover(failure)?,
                held => return held,
            }
        }
    }

    async fn try_hold(&self, transfer: &Transfer) -> Result<Holding<'a>, Failure> {
        let began = Instant::now();
        let guard = self.mutex.lock_with(self.options.clone()).await?;
        let waited = began.elapsed();
        let presence = Presence::enter(self.run);
        let token = guard.fencing_token();
        let book = match self.ledger.enter(token) {
            // The token of a current holder is never older than the ledger's newest token, unless the ledger's token is
            // from another store.
            Err(stale @ LedgerError::Stale(_)) if guard.is_held() => {
                return Err(Failure::OtherStore(stale));
            }
            book => book?,
        };
        self.run.tally.lock().grants.push(Grant {
            number: book.grants,
            token,
            waited,
        });
        self.run.newest_token.send_replace(Some(token));
        let write = self.ledger.prepare(book, transfer)?;
        Ok(Holding {
            presence,
            guard,
            write,
        })
    }

    /// Returns the failure, unless a new session or a new grant can fix it.
    fn recover(&self, failure: Failure) -> Result<(), Failure> {
        match &failure {
            Failure::Lock(error) if error.is_session_end() => {}
            Failure::Ledger(LedgerError::Stale(_)) => {}
            _ => return Err(failure),
        }
        self.run.printer.remark(self.number, failure);
        Ok(())
    }
}

/// A worker that is between its read and its write.
struct Presence<'a>(&'a Run);

impl<'a> Presence<'a> {
    fn enter(run: &'a Run) -> Self {
        if run.inside.fetch_add(1, Ordering::SeqCst) > 0 {
            run.tally.lock().overlaps += 1;
        }
        Self(run)
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}
