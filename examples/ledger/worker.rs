//! The workers. Each has a thread, an executor, a session and a way to the ledger of its own, as
//! if it were a program of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{
    Client, ConnectOptions, Error, FencingToken, Guard, LockError, LockOptions, LockPath, Mutex,
    Target, connect_with,
};
use tokio::sync::{mpsc, watch};

use crate::book::{Ledger, LedgerError, Write};
use crate::input::Transfer;
use crate::mortal::Mortal;
use crate::teller::Teller;

/// The session timeout that doomed workers ask for; a store may insist on a longer one (two of its
/// ticks). Their death holds the others up for that long.
const DOOMED_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause of the workers without a lock between reading and writing.
const THINKING: Duration = Duration::from_millis(1);

/// State that all workers of a run share.
pub(crate) struct Run {
    pub(crate) target: Target,
    pub(crate) lock: LockPath,
    pub(crate) ledger: PathBuf,
    pub(crate) teller: Teller,
    pub(crate) inside: AtomicUsize,
    pub(crate) overlaps: AtomicUsize,
    pub(crate) grants: parking_lot::Mutex<Vec<Grant>>,
    pub(crate) newest_token: watch::Sender<Option<FencingToken>>,
    pub(crate) crashed: AtomicUsize,
    pub(crate) late_writes_refused: AtomicUsize,
}

/// One grant of the lock, as its holder and the ledger saw it.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// Number of the grant, as the ledger counts.
    pub(crate) place: u64,
    /// The name of the holder's znode.
    pub(crate) entry: String,
    pub(crate) token: FencingToken,
    pub(crate) waited: Duration,
}

/// Queue of transfers for the workers. It ends when it is empty and no worker is left that
/// could put one back.
pub(crate) type Jobs = Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Transfer>>>;

/// Why a worker gave up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("no executor: {0}")]
    NoExecutor(#[from] std::io::Error),
    #[error("{0}; a ledger stays with one store, whose tokens it compares")]
    OtherStore(LedgerError),
    #[error("a late write came through")]
    LateWrite,
    #[error("a worker panicked")]
    Panicked,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error.into())
    }
}

/// Task of a worker.
pub(crate) enum Task {
    /// Posts transfers under the lock until there are no more.
    Post(Jobs),
    /// Posts transfers without any lock until there are no more.
    PostWithoutLock(Jobs),
    /// Dies in the middle of posting this one, which goes back to the others.
    Die(Transfer, mpsc::UnboundedSender<Transfer>),
}

/// Starts a worker.
pub(crate) fn spawn(
    run: &Arc<Run>,
    number: usize,
    task: Task,
    results: mpsc::UnboundedSender<Result<(), Failure>>,
) {
    let run = run.clone();
    std::thread::spawn(move || {
        let work = || -> Result<(), Failure> {
            let executor = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            executor.block_on(live(&run, number, task))
        };
        // Nobody listens any more when another worker has failed before.
        let _ = results.send(work());
    });
}

async fn live(run: &Run, number: usize, task: Task) -> Result<(), Failure> {
    let ledger = Ledger::open(&run.ledger, &format!("w{number}"))?;
    let options = ConnectOptions::new().create_chroot();
    match task {
        Task::Post(jobs) => {
            let client = connect_with(run.target.clone(), options).await?;
            let mut worker = Worker::new(run, number, &client, ledger)?;
            while let Some(transfer) = next(&jobs).await {
                worker.post(&transfer).await?;
            }
            client.close().await?;
        }
        Task::PostWithoutLock(jobs) => {
            while let Some(transfer) = next(&jobs).await {
                post_without_lock(run, &ledger, &transfer).await?;
            }
        }
        Task::Die(transfer, put_back) => {
            let options = options.session_timeout(DOOMED_TIMEOUT);
            let first =
                connect_with(run.target.clone(), ConnectOptions::new().create_chroot()).await?;
            let mortal = Mortal::open(&first, options).await?;
            let mut worker = Worker::new(run, number, mortal.client(), ledger)?;
            worker.die_posting(&transfer, &mortal, put_back).await?;
        }
    }
    Ok(())
}

async fn next(jobs: &Jobs) -> Option<Transfer> {
    jobs.lock().await.recv().await
}

struct Worker<'a> {
    run: &'a Run,
    number: usize,
    mutex: Mutex,
    options: LockOptions,
    ledger: Ledger,
}

/// A worker who holds the lock, and has a write ready.
struct Holding<'a> {
    inside: Inside<'a>,
    guard: Guard,
    write: Write,
}

impl<'a> Worker<'a> {
    fn new(run: &'a Run, number: usize, client: &Client, ledger: Ledger) -> Result<Self, Failure> {
        let label = format!("ledger worker {number}");
        let mut options = LockOptions::new().label(label);
        if let Some(sink) = run.teller.sink(number) {
            options = options.events(sink);
        }
        Ok(Self {
            mutex: Mutex::new(client, &run.lock)?,
            run,
            number,
            options,
            ledger,
        })
    }

    /// Posts a transfer; again from the start if the lock is lost on the way.
    async fn post(&mut self, transfer: &Transfer) -> Result<(), Failure> {
        while let Err(failure) = self.try_post(transfer).await {
            self.get_over(failure)?;
        }
        Ok(())
    }

    /// Returns the failure unless a retry is worthwhile: after the loss of the session, or of the lock.
    fn get_over(&self, failure: Failure) -> Result<(), Failure> {
        let lost = match &failure {
            Failure::Lock(error) => error.is_session_end(),
            Failure::Ledger(error) => matches!(error, LedgerError::Stale(_)),
            _ => false,
        };
        if !lost {
            return Err(failure);
        }
        self.run.teller.remark(self.number, failure.to_string());
        Ok(())
    }

    async fn try_post(&mut self, transfer: &Transfer) -> Result<(), Failure> {
        let Holding {
            inside,
            guard,
            write,
        } = self.hold(transfer).await?;
        if self.ledger.commit(write, Some(guard.fencing_token()))? {
            inside.overlapped();
        }
        self.run.teller.posted();
        drop(inside);
        // The write is done, and the token vouches for it, whatever became of the lock since.
        if let Err(error) = guard.release().await {
            self.run.teller.remark(self.number, error.to_string());
        }
        Ok(())
    }

    /// Takes the lock, records the token, reads the ledger, and makes the write ready.
    async fn hold(&mut self, transfer: &Transfer) -> Result<Holding<'a>, Failure> {
        let began = Instant::now();
        let guard = self.mutex.lock_with(self.options.clone()).await?;
        let waited = began.elapsed();
        let inside = Inside::enter(self.run);
        let token = guard.fencing_token();
        let mut book = match self.ledger.enter(token) {
            // Who holds the lock and is refused all the same comes from another store.
            Err(stale @ LedgerError::Stale(_)) if guard.is_held() => {
                return Err(Failure::OtherStore(stale));
            }
            book => book?,
        };
        self.run.grants.lock().push(Grant {
            place: book.grants,
            entry: guard.path().name().to_owned(),
            token,
            waited,
        });
        self.run.newest_token.send_replace(Some(token));
        book.post(transfer)?;
        let write = self.ledger.prepare(book)?;
        Ok(Holding {
            inside,
            guard,
            write,
        })
    }

    /// Is cut off with the write ready, and has it arrive when another holds the lock.
    async fn die_posting(
        &mut self,
        transfer: &Transfer,
        mortal: &Mortal,
        put_back: mpsc::UnboundedSender<Transfer>,
    ) -> Result<(), Failure> {
        let holding = loop {
            match self.hold(transfer).await {
                Ok(holding) => break holding,
                Err(failure) => self.get_over(failure)?,
            }
        };
        let Holding {
            inside,
            guard,
            write,
        } = holding;
        let token = guard.fencing_token();
        let timeout = guard.session().timeout().unwrap_or_default();
        mortal.cut();
        drop((inside, guard));
        self.run.crashed.fetch_add(1, Ordering::Relaxed);
        let id = transfer.id;
        self.run.teller.died(
            self.number,
            format!(
                "DIES while it holds the lock, in the middle of writing transfer {id}; no \
                 closeSession is sent, so the lock is free when {timeout:?} have passed"
            ),
        );
        // What the dead one had taken is found again by the others.
        let _ = put_back.send(transfer.clone());
        drop(put_back);

        let mut newest = self.run.newest_token.subscribe();
        // It never fails: the run, which has the other end, outlives its workers.
        let _ = newest.wait_for(|newest| *newest > Some(token)).await;
        match self.ledger.commit(write, Some(token)) {
            Err(LedgerError::Stale(stale)) => {
                self.run.late_writes_refused.fetch_add(1, Ordering::Relaxed);
                let text = format!("(dead) its late write arrives and is refused: {stale}");
                self.run.teller.remark(self.number, text);
                Ok(())
            }
            Err(error) => Err(error.into()),
            Ok(_) => Err(Failure::LateWrite),
        }
    }
}

/// Posts a transfer without a lock, as a demonstration of what goes wrong.
async fn post_without_lock(run: &Run, ledger: &Ledger, transfer: &Transfer) -> Result<(), Failure> {
    let inside = Inside::enter(run);
    let mut book = ledger.read()?;
    book.post(transfer)?;
    let write = ledger.prepare(book)?;
    tokio::time::sleep(THINKING).await;
    if ledger.commit(write, None)? {
        inside.overlapped();
    }
    run.teller.posted();
    Ok(())
}

/// The presence of a worker between its reading and its writing: a witness that knows of no lock.
struct Inside<'a> {
    run: &'a Run,
    overlapped: std::cell::Cell<bool>,
}

impl<'a> Inside<'a> {
    fn enter(run: &'a Run) -> Self {
        let others = run.inside.fetch_add(1, Ordering::SeqCst);
        Self {
            run,
            overlapped: (others > 0).into(),
        }
    }

    /// Notes that somebody else has written meanwhile.
    fn overlapped(&self) {
        self.overlapped.set(true);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.run.inside.fetch_sub(1, Ordering::SeqCst);
        let overlapped = usize::from(self.overlapped.get());
        self.run.overlaps.fetch_add(overlapped, Ordering::Relaxed);
    }
}
