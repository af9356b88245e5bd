//! [`OncePer`]: a job that runs once per period, however many processes start it.
//!
//! A lock is not enough, because a slow process may acquire it after a fast process has finished the job. So a znode
//! records the last run, and is only read and written under the lock.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_store::{
    BootInstant, Client, Create, CreateMode, Error, Op, ReadOp, ReadReply, ZnodePath,
};
use serde::{Deserialize, Serialize};

use crate::error::{LockError, LostReason, Result};
use crate::guard::Guard;
use crate::mutex::Mutex;
use crate::options::LockOptions;
use crate::path::IntoLockPath;
use crate::retry::retry;

/// Name of the record. No [`key`](crate::LockPath::key) contains a colon, so no lock has this name.
const RECORD: &str = ":last-run";

/// A job that runs once per period, shared by all programs that use the same path in the same store, for example a cron
/// job that every machine of a fleet starts.
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
/// A run holds the [`Mutex`] at the same path. [`Run::finish`] writes the run's start time to the persistent child
/// `:last-run` of this path.
///
/// - **The period starts when a run starts**, not when it ends. Choose the period slightly shorter than the cron
///   interval, for example 55 minutes for an hour.
/// - **Only a finished run counts.** If a [`Run`] is dropped or its process dies, the next process that asks runs the
///   job. If a failed job should not be repeated in this period, call [`Run::finish`] anyway.
/// - **Only the server's clock counts.** If this clock jumps forward, a run may start too early by the length of the
///   jump. If it jumps back, the next process that asks notices this, and the period starts again. Runs never overlap,
///   whatever the clocks do.
/// - **On etcd, which has no clock, the period is a lease** of whole seconds, with the length that the finished run
///   chose. If the cluster elects a leader, the period starts again. [`Attempt::NotDue`] contains estimates by the
///   clients' clocks.
#[derive(Clone, Debug)]
pub struct OncePer {
    mutex: Mutex,
    record: ZnodePath,
    period: Duration,
}

/// Result of asking to run a job.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "a turn that is dropped is given up"]
pub enum Attempt<R = Run> {
    /// The job is due, and this process runs it.
    Due(R),
    /// Another process is running the job, or holds the lock or waits for it.
    Running,
    /// The job has run in this period.
    NotDue {
        /// Time since the end of the last run, by the server's clock.
        since_end: Duration,
        /// Time until the job is due again, by the server's clock.
        due_in: Duration,
    },
}

impl<R> Attempt<R> {
    /// Returns the run, if the job is due.
    pub fn due(self) -> Option<R> {
        match self {
            Self::Due(run) => Some(run),
            _ => None,
        }
    }

    pub(crate) fn map<S>(self, of: impl FnOnce(R) -> S) -> Attempt<S> {
        match self {
            Self::Due(run) => Attempt::Due(of(run)),
            Self::Running => Attempt::Running,
            Self::NotDue { since_end, due_in } => Attempt::NotDue { since_end, due_in },
        }
    }
}

/// A run of a job. It holds the lock and has the interface of its [`Guard`].
///
/// Dropping it releases the lock and records nothing.
#[must_use = "a run that is dropped does not count"]
pub struct Run {
    guard: Guard,
    record: ZnodePath,
    began_ms: i64,
    /// On etcd, the time after which the store deletes the record.
    record_ends: Option<BootInstant>,
}

impl OncePer {
    /// Creates the job at a path.
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

    /// Starts a run if the job is due and no other process has the lock. Does not wait.
    ///
    /// Cancel safe: a dropped call holds nothing.
    ///
    /// # Errors
    /// Same as [`Mutex::try_lock`].
    pub async fn try_begin(&self) -> Result<Attempt> {
        self.try_begin_with(LockOptions::new()).await
    }

    /// Like [`try_begin`](Self::try_begin), with the given options for the lock. Cancel safe.
    ///
    /// # Errors
    /// Same as [`Mutex::try_lock_with`].
    pub async fn try_begin_with(&self, mut options: LockOptions) -> Result<Attempt> {
        let deadline = options.start(self.mutex.client());
        let attempt = async {
            match self.mutex.try_lock_with(options).await? {
                Some(guard) => self.turn(guard).await,
                None => Ok(Attempt::Running),
            }
        };
        deadline.run(self.path(), self.path(), attempt).await
    }

    /// Starts a run if the job is due. Waits while another process has the lock, and never returns [`Attempt::Running`].
    ///
    /// Cancel safe: a dropped wait leaves the queue.
    ///
    /// # Errors
    /// Same as [`Mutex::lock`].
    pub async fn begin(&self) -> Result<Attempt> {
        self.begin_with(LockOptions::new()).await
    }

    /// Like [`begin`](Self::begin), with the given options for the lock. Cancel safe.
    ///
    /// # Errors
    /// Same as [`Mutex::lock_with`].
    pub async fn begin_with(&self, mut options: LockOptions) -> Result<Attempt> {
        let deadline = options.start(self.mutex.client());
        let wait = async {
            let guard = self.mutex.lock_with(options).await?;
            // After a long wait, our entry's `mtime` is old. This write sets it to the server's current time, which
            // `turn` reads.
            guard.keep_alive().await?;
            self.turn(guard).await
        };
        deadline.run(self.path(), self.path(), wait).await
    }

    /// Decides from the record whether the job is due. The record must be read under the lock.
    async fn turn(&self, guard: Guard) -> Result<Attempt> {
        let reads = [guard.path(), &self.record].map(|path| ReadOp::GetData(path.clone()));
        let answers = retry(|| guard.session().multi_read(reads.clone())).await?;
        let [entry, record] = &answers[..] else {
            return Err(unexpected(&self.record));
        };
        let clock = guard.session().clock().clone();
        let (now_ms, has_clock) = match entry {
            ReadReply::Data { stat, .. } if stat.mtime == 0 => (clock.unix_ms(), false),
            ReadReply::Data { stat, .. } => (stat.mtime, true),
            ReadReply::Failed(Error::NoNode { .. }) => return Err(LostReason::Revoked.into()),
            _ => return Err(unexpected(guard.path())),
        };
        let last = match record {
            ReadReply::Data { data, .. } if !has_clock => Some(LastRun::parse(data, now_ms)),
            ReadReply::Data { data, stat } => Some(LastRun::parse(data, stat.mtime)),
            ReadReply::Failed(Error::NoNode { .. }) => None,
            ReadReply::Failed(error) => return Err(error.clone().into()),
            _ => return Err(unexpected(&self.record)),
        };
        let run = Run {
            guard,
            record: self.record.clone(),
            began_ms: now_ms,
            record_ends: (!has_clock).then(|| clock.now().after(self.period)),
        };
        let due_in = last.and_then(|last| last.due_in(now_ms, self.period));
        // Without a clock, the job is not due while the record exists.
        let is_recorded = last.is_some() && !has_clock;
        let Some(due_in) = due_in.or(is_recorded.then_some(Duration::ZERO)) else {
            return Ok(Attempt::Due(run));
        };
        let since_end = last.map_or(0, |last| now_ms.saturating_sub(last.ended_ms));
        if since_end < 0 {
            // The server's clock has jumped back, perhaps by years. Restart the period now.
            run.write_record().await?;
        }
        run.guard.release().await?;
        Ok(Attempt::NotDue {
            since_end: millis(since_end),
            due_in,
        })
    }
}

impl Run {
    /// Records that the job has run, and releases the lock.
    ///
    /// After a loss, the call records nothing, because another process may have run the job in the meantime.
    ///
    /// # Errors
    /// [`LockError::Lost`], and store errors. After an error, the run may or may not be recorded.
    pub async fn finish(self) -> Result<()> {
        // Write the record first, because the next holder must read it.
        self.write_record().await?;
        self.guard.release().await
    }

    /// Releases the lock without recording a run, so the job is still due. Unlike a drop, waits for the confirmation.
    ///
    /// # Errors
    /// Same as [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }

    /// Returns the guard of the lock.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    async fn write_record(&self) -> Result<()> {
        let data = LastRun::to_bytes(self.began_ms);
        // The transaction checks that we still hold the lock. It can be repeated after a lost reply, because it writes
        // the same data.
        let set = Op::SetData {
            path: self.record.clone(),
            data: data.clone(),
            version: None,
        };
        let create = Op::Create(Create {
            path: self.record.clone(),
            data,
            mode: match self.record_ends {
                None => CreateMode::Persistent,
                Some(ends) => {
                    let now = self.guard.session().clock().now();
                    CreateMode::PersistentTtl(ends.since(now).max(Duration::from_secs(1)))
                }
            },
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
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastRun {
    began_ms: i64,
    ended_ms: i64,
}

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

    /// Parses a record written at `ended_ms`. A record that we cannot parse counts as a run that started at `ended_ms`,
    /// so that the job does not run a second time.
    pub(crate) fn parse(data: &[u8], ended_ms: i64) -> Self {
        let record = serde_json::from_slice::<RecordData>(data);
        let record = record.ok().filter(|record| record.v == Self::VERSION);
        let began_ms = record.map_or(ended_ms, |record| record.began_ms);
        Self {
            // The start is later than the end if the clock jumped back during the run.
            began_ms: began_ms.min(ended_ms),
            ended_ms,
        }
    }

    pub(crate) fn due_in(self, now_ms: i64, period: Duration) -> Option<Duration> {
        // If the clock has jumped back, the period starts now.
        let elapsed = match now_ms < self.ended_ms {
            true => Duration::ZERO,
            false => millis(now_ms.saturating_sub(self.began_ms)),
        };
        period.checked_sub(elapsed).filter(|left| !left.is_zero())
    }
}

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
