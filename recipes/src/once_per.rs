//! [`OncePer`]: a job that runs once a period, however many processes start it and however short it is.
//!
//! The lock alone is not enough: of a fleet that a cron starts at the same moment, a slow process comes when the run of
//! another is over already. So the last run is recorded in a znode, which is read and written under the lock alone.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_store::{Client, Create, CreateMode, Error, Op, ReadOp, ReadReply, ZnodePath};
use serde::{Deserialize, Serialize};

use crate::error::{LockError, LostReason, Result};
use crate::guard::Guard;
use crate::mutex::Mutex;
use crate::options::LockOptions;
use crate::path::IntoLockPath;
use crate::retry::retry;

/// Name of the record, a persistent child of the lock's znode. No [`key`](crate::LockPath::key) has a colon.
const RECORD: &str = ":last-run";

/// A job that runs once a period among all programs that name the same path of the same store: what a fleet's cron
/// starts everywhere at the same moment, and only one process should do.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use lockkeeper::OncePer;
///
/// # let client = lockkeeper::connect("memory:example-once-per").await?;
/// let nightly = OncePer::new(&client, "/lock/nightly", Duration::from_secs(23 * 3600))?;
/// if let Some(run) = nightly.try_begin().await?.due() {
///     // the job; the resource checks run.fencing_token()
///     run.finish().await?; // recorded: nobody runs it again in this period
/// }
/// assert!(nightly.try_begin().await?.due().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// The path is that of a [`Mutex`]: a run holds its lock, and excludes whoever locks the mutex, too. A persistent child
/// of the path, `:last-run`, has the beginning of the last finished run, and its end as its time of change.
///
/// - **The period begins with a run**, not with its end: otherwise a job that takes five minutes, started once an hour,
///   would run every second hour. A run that takes longer than the period is not overlapped, and the next one may begin
///   right after it. Choose the period somewhat shorter than the interval of the cron (55 minutes for an hour), since no
///   two starts are exactly that far apart.
/// - **Only a finished run counts.** A [`Run`] that is dropped, or whose process dies, records nothing, and the next
///   process that asks runs. Call [`Run::finish`] after a failure, too, if the job is not to be repeated in this period.
/// - **A process that comes at the same moment** gets [`Turn::Running`] from [`try_begin`](Self::try_begin) at once;
///   [`begin`](Self::begin) waits for the run, and then says [`Turn::NotDue`], or has the turn if the other has died.
/// - **The clock is the server's**: the times that it gives to znodes. Clocks of clients do not matter. If the server's
///   clock jumps forward (or a failover leads to a server whose clock is ahead), a run may come too early by that much.
///   If it jumps back, the next run comes late: by that much, or one period after the jump was noticed, whichever is
///   earlier. Two runs never overlap, whatever clocks do.
#[derive(Clone, Debug)]
pub struct OncePer {
    mutex: Mutex,
    record: ZnodePath,
    period: Duration,
}

/// Answer to a process that wants to run a job. `R` is the run: [`Run`], or that of threads without async,
/// [`blocking::Run`](crate::blocking::Run).
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a turn that is dropped is given up"]
pub enum Turn<R = Run> {
    /// The job is due, and this process runs it.
    Due(R),
    /// Another process runs it, or holds or waits for its lock.
    Running,
    /// It has run in this period.
    NotDue {
        /// Time since the end of the last run, by the server's clock.
        since_end: Duration,
        /// Time until the job is due again, likewise.
        due_in: Duration,
    },
}

impl<R> Turn<R> {
    /// Returns the run, if the job is due.
    pub fn due(self) -> Option<R> {
        match self {
            Self::Due(run) => Some(run),
            _ => None,
        }
    }

    pub(crate) fn map<S>(self, of: impl FnOnce(R) -> S) -> Turn<S> {
        match self {
            Self::Due(run) => Turn::Due(of(run)),
            Self::Running => Turn::Running,
            Self::NotDue { since_end, due_in } => Turn::NotDue { since_end, due_in },
        }
    }
}

/// A run of a job: it holds the lock, and has the interface of its [`Guard`].
///
/// A drop gives up the lock and records nothing.
#[must_use = "a run that is dropped does not count"]
pub struct Run {
    guard: Guard,
    record: ZnodePath,
    began_ms: i64,
}

impl OncePer {
    /// Creates the job at a path. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath, period: Duration) -> Result<Self, Error> {
        let mutex = Mutex::new(client, path)?;
        let record = mutex.path().join(RECORD)?;
        Ok(Self {
            mutex,
            record,
            period,
        })
    }

    /// Returns the path of the lock.
    pub fn path(&self) -> &ZnodePath {
        self.mutex.path()
    }

    /// Begins a run if the job is due and no other process has the lock. Does not wait.
    ///
    /// Cancel safe: a dropped call holds nothing.
    ///
    /// # Errors
    /// Those of [`Mutex::try_lock`].
    pub async fn try_begin(&self) -> Result<Turn> {
        self.try_begin_with(LockOptions::new()).await
    }

    /// Begins a run as [`try_begin`](Self::try_begin) does, with the given options of the lock.
    ///
    /// Cancel safe, as [`try_begin`](Self::try_begin).
    ///
    /// # Errors
    /// Those of [`Mutex::try_lock_with`].
    pub async fn try_begin_with(&self, mut options: LockOptions) -> Result<Turn> {
        let deadline = options.start(self.mutex.client());
        let attempt = async {
            match self.mutex.try_lock_with(options).await? {
                Some(guard) => self.turn(guard).await,
                None => Ok(Turn::Running),
            }
        };
        deadline.run(self.path(), self.path(), attempt).await
    }

    /// Begins a run if the job is due, and waits until no other process has the lock. Never says [`Turn::Running`].
    ///
    /// Cancel safe: a dropped wait leaves the queue.
    ///
    /// # Errors
    /// Those of [`Mutex::lock`].
    pub async fn begin(&self) -> Result<Turn> {
        self.begin_with(LockOptions::new()).await
    }

    /// Begins a run as [`begin`](Self::begin) does, with the given options of the lock.
    ///
    /// Cancel safe, as [`begin`](Self::begin).
    ///
    /// # Errors
    /// Those of [`Mutex::lock_with`].
    pub async fn begin_with(&self, mut options: LockOptions) -> Result<Turn> {
        let deadline = options.start(self.mutex.client());
        let wait = async {
            let guard = self.mutex.lock_with(options).await?;
            // The entry is as old as the wait was long; this write has the server's present time.
            guard.keep_alive().await?;
            self.turn(guard).await
        };
        deadline.run(self.path(), self.path(), wait).await
    }

    /// Decides under the lock: a record that was read before it might be that of the run before the last.
    async fn turn(&self, guard: Guard) -> Result<Turn> {
        let reads = [guard.path(), &self.record].map(|path| ReadOp::GetData(path.clone()));
        let answers = retry(|| guard.session().multi_read(reads.clone())).await?;
        let [entry, record] = &answers[..] else {
            return Err(unexpected(&self.record));
        };
        let now_ms = match entry {
            ReadReply::Data { stat, .. } => stat.mtime,
            ReadReply::Failed(Error::NoNode { .. }) => return Err(LostReason::Revoked.into()),
            _ => return Err(unexpected(guard.path())),
        };
        let last = match record {
            ReadReply::Data { data, stat } => Some(LastRun::parse(data, stat.mtime)),
            ReadReply::Failed(Error::NoNode { .. }) => None,
            ReadReply::Failed(error) => return Err(error.clone().into()),
            _ => return Err(unexpected(&self.record)),
        };
        let run = Run {
            guard,
            record: self.record.clone(),
            began_ms: now_ms,
        };
        let Some(due_in) = last.and_then(|last| last.due_in(now_ms, self.period)) else {
            return Ok(Turn::Due(run));
        };
        let since_end = last.map_or(0, |last| now_ms.saturating_sub(last.ended_ms));
        if since_end < 0 {
            // The server's clock has gone back. The period counts from now on: without this it would last until the
            // clock had reached the recorded time again, for years perhaps.
            run.write_record().await?;
        }
        run.guard.release().await?;
        Ok(Turn::NotDue {
            since_end: millis(since_end),
            due_in,
        })
    }
}

impl Run {
    /// Records that the job has run, and releases the lock.
    ///
    /// Neither of it happens if the lock was lost: another process may have run the job since.
    ///
    /// # Errors
    /// [`LockError::Lost`], and those of the store. After an error the run is not known to be recorded.
    pub async fn finish(self) -> Result<()> {
        // Before the release: the next holder must read it.
        self.write_record().await?;
        self.guard.release().await
    }

    /// Releases the lock and records nothing: the next process that asks has the turn.
    ///
    /// A drop does the same in the background; this returns when the store has confirmed it.
    ///
    /// # Errors
    /// Those of [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }

    /// Returns the guard of the lock.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    async fn write_record(&self) -> Result<()> {
        let data = LastRun::to_bytes(self.began_ms);
        // A write to the record in one transaction with a proof that the lock is held. Repeated after a lost reply, it
        // writes the same.
        let set = Op::SetData {
            path: self.record.clone(),
            data: data.clone(),
            version: None,
        };
        let create = Op::Create(Create {
            path: self.record.clone(),
            data,
            mode: CreateMode::Persistent,
            acl: self.guard.session().acl().clone(),
        });
        for write in [set, create].into_iter().cycle() {
            let check = Op::Check {
                path: self.guard.path().clone(),
                version: None,
            };
            let ops = vec![check, write];
            let error = match retry(|| self.guard.session().multi(ops.clone())).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let Error::MultiFailed { index, source } = &error else {
                return Err(error.into());
            };
            match (index, &**source) {
                (0, Error::NoNode { .. }) => return Err(LostReason::Revoked.into()),
                (1, Error::NoNode { .. } | Error::NodeExists { .. }) => {}
                _ => return Err(error.into()),
            }
        }
        unreachable!("the writes are repeated without end")
    }
}

impl Deref for Run {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("guard", &self.guard)
            .field("began_ms", &self.began_ms)
            .finish()
    }
}

/// The last finished run, in the server's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastRun {
    began_ms: i64,
    ended_ms: i64,
}

/// The data of the record.
#[derive(Serialize, Deserialize)]
struct RecordData {
    v: u32,
    began_ms: i64,
}

impl LastRun {
    const VERSION: u32 = 1;

    pub(crate) fn to_bytes(began_ms: i64) -> Bytes {
        let v = Self::VERSION;
        let record = serde_json::to_vec(&RecordData { v, began_ms });
        record.expect("numbers are plain JSON").into()
    }

    /// Parses a record, which was written at `ended_ms`. Of other data the time of the write alone counts: a job must not
    /// run twice because another version has recorded its run.
    pub(crate) fn parse(data: &[u8], ended_ms: i64) -> Self {
        let record = serde_json::from_slice::<RecordData>(data);
        let record = record.ok().filter(|record| record.v == Self::VERSION);
        let began_ms = record.map_or(ended_ms, |record| record.began_ms);
        Self {
            // The clock has gone back during the run if it began after its end.
            began_ms: began_ms.min(ended_ms),
            ended_ms,
        }
    }

    /// Returns the time until the job is due again; `None` if it is due.
    pub(crate) fn due_in(self, now_ms: i64, period: Duration) -> Option<Duration> {
        // Before its end: the clock has gone back since, and the period begins anew.
        let elapsed = match now_ms < self.ended_ms {
            true => Duration::ZERO,
            false => millis(now_ms.saturating_sub(self.began_ms)),
        };
        period.checked_sub(elapsed).filter(|left| !left.is_zero())
    }
}

/// Returns a duration of these milliseconds; none that is negative.
fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

fn unexpected(path: &ZnodePath) -> LockError {
    Error::Protocol(format!(
        "an answer about {path} is of another kind than its question"
    ))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn last(began_ms: i64, ended_ms: i64) -> LastRun {
        LastRun::parse(&LastRun::to_bytes(began_ms), ended_ms)
    }

    #[test]
    fn the_period_begins_with_the_run() {
        let last = last(1_000, 301_000);
        assert_eq!(last.due_in(301_000, HOUR), Some(Duration::from_secs(3300)));
        let almost = Some(Duration::from_millis(1));
        assert_eq!(last.due_in(3_600_999, HOUR), almost);
        assert_eq!(last.due_in(3_601_000, HOUR), None);
        assert_eq!(last.due_in(i64::MAX, HOUR), None);
    }

    #[test]
    fn a_run_longer_than_the_period_may_be_followed_at_once() {
        assert_eq!(last(0, 9_000_000).due_in(9_000_000, HOUR), None);
    }

    #[test]
    fn a_clock_that_went_back_costs_one_period_at_most() {
        let year = 365 * 24 * 3_600_000;
        assert_eq!(last(year, year + 1).due_in(0, HOUR), Some(HOUR));
        // During the run.
        let last = last(year, 5_000);
        assert_eq!(last.due_in(5_000, HOUR), Some(HOUR));
        assert_eq!(last.due_in(3_605_000, HOUR), None);
    }

    #[test]
    fn a_period_of_nothing_is_always_due() {
        assert_eq!(last(5, 5).due_in(5, Duration::ZERO), None);
        assert_eq!(last(5, 9).due_in(1, Duration::ZERO), None);
    }

    #[test]
    fn of_other_data_the_time_of_the_write_counts() {
        for data in ["", "{}", r#"{"v":2,"began_ms":7}"#, r#"{"v":1}"#] {
            let last = LastRun::parse(data.as_bytes(), 1_000);
            assert_eq!(
                last.due_in(1_001, HOUR),
                Some(HOUR - Duration::from_millis(1))
            );
        }
    }
}
