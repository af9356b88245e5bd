//! [`OncePer`]: a job that runs once per period.

use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::forward::{Blocking, forward_methods};
use super::{Client, wait};
use crate::error::Result;
use crate::options::LockOptions;
use crate::path::IntoLockPath;
use crate::token::FencingToken;

/// The blocking variant of [`OncePer`](crate::OncePer).
///
/// ```
/// # let client = lockkeeper::blocking::connect("memory:example-blocking-once-per")?;
/// use std::time::Duration;
/// use lockkeeper::blocking::OncePer;
///
/// let nightly = OncePer::new(&client, "/lock/nightly", Duration::from_secs(23 * 3600))?;
/// if let Some(run) = nightly.try_begin()?.due() {
///     // the job; the resource checks run.fencing_token()
///     run.finish()?; // recorded: nobody runs it again in this period
/// }
/// assert!(nightly.try_begin()?.due().is_none());
/// # Ok::<(), lockkeeper::LockError>(())
/// ```
#[derive(Clone, Debug)]
pub struct OncePer(crate::OncePer);

/// Result of asking to run a job.
pub type Attempt = crate::Attempt<Run>;

/// A run of a job. Dropping it releases the lock and records nothing.
#[derive(Debug)]
#[must_use = "a run that is dropped does not count"]
pub struct Run(crate::Run);

impl OncePer {
    /// Creates the job at a path.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath, period: Duration) -> Result<Self, Error> {
        crate::OncePer::new(client.as_async(), path, period).map(Self)
    }

    /// Returns the path of the lock.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }
}

forward_methods! { OncePer {
    /// Starts a run if the job is due and no other process has the lock. Does not wait for the lock.
    fn try_begin() -> Attempt;

    /// Like [`try_begin`](Self::try_begin), with the given options for the lock.
    fn try_begin_with(options: LockOptions) -> Attempt;

    /// Starts a run if the job is due. Waits while another process has the lock.
    fn begin() -> Attempt;

    /// Like [`begin`](Self::begin), with the given options for the lock.
    fn begin_with(options: LockOptions) -> Attempt;
}}

impl Blocking for crate::Attempt {
    type Output = Attempt;

    fn blocking(self) -> Attempt {
        self.map(Run)
    }
}

impl Run {
    /// Records that the job has run, and releases the lock.
    ///
    /// # Errors
    /// Same as [`Run::finish`](crate::Run::finish).
    #[track_caller]
    pub fn finish(self) -> Result<()> {
        wait(self.0.finish())
    }

    /// Releases the lock without recording a run, so the job is still due.
    ///
    /// # Errors
    /// Same as [`Run::release`](crate::Run::release).
    #[track_caller]
    pub fn release(self) -> Result<()> {
        wait(self.0.release())
    }

    /// Returns the token that the resource must check.
    pub fn fencing_token(&self) -> FencingToken {
        self.0.fencing_token()
    }

    /// Returns `true` while the lock is held.
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }
}
