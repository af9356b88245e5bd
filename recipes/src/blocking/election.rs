//! [`Election`]: one leader among many candidates.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{Error, ZnodePath};

use super::forward::forward_methods;
use super::{BlockingGuard, Client, Iter, Leadership, block_on, iter, wait};
use crate::election::{Campaigns, Leader, Role, Term};
use crate::error::Result;
use crate::options::LockOptions;
use crate::path::IntoLockPath;

/// The blocking variant of [`Election`](crate::Election).
///
/// ```
/// # let client = lockkeeper::blocking::connect("memory:example-blocking-election")?;
/// use lockkeeper::blocking::Election;
///
/// let election = Election::new(&client, "/election/scheduler")?;
/// let leadership = election.campaign("10.0.0.1:8080")?; // in order of arrival
/// let leader = election.leader()?.expect("a candidate leads");
/// assert_eq!(leader.epoch, leadership.epoch());
/// leadership.resign()?; // or drop
/// # Ok::<(), lockkeeper::LockError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Election(crate::Election);

impl Election {
    /// Creates the election at a path.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        crate::Election::new(client.as_async(), path).map(Self)
    }

    /// Returns the znode that contains the candidates.
    pub fn path(&self) -> &ZnodePath {
        self.0.path()
    }

    /// Campaigns and leads until the work is done, like the async [`Election::run`](crate::Election::run). Calls `work`
    /// in each term, and returns the output if the leadership is still held when `work` returns. Otherwise drops the
    /// output and campaigns again.
    ///
    /// **A loss does not stop `work`**, because `work` runs in this thread. It must check
    /// [`is_held`](BlockingGuard::is_held) between its steps and return after a loss. A second thread can wait in
    /// [`lost`](BlockingGuard::lost) and interrupt long steps. Until `work` returns, another candidate may lead at the
    /// same time, and only a resource that checks the [`epoch`](BlockingGuard::epoch) rejects the former leader's
    /// writes.
    ///
    /// ```
    /// use lockkeeper::blocking::{self, Election};
    ///
    /// let client = blocking::connect("memory:blocking-run")?;
    /// let election = Election::new(&client, "/election/scheduler")?;
    /// let planned = election.run("10.0.0.1:8080", |leadership| {
    ///     let mut planned = 0;
    ///     while planned < 3 && leadership.is_held() {
    ///         planned += 1; // a step of the work, under `leadership.epoch()`
    ///     }
    ///     planned // counts if it still leads; otherwise the next term begins
    /// })?;
    /// assert_eq!(planned, 3);
    /// # Ok::<(), lockkeeper::LockError>(())
    /// ```
    ///
    /// # Cancellation
    ///
    /// To stop a thread in `run`, call [`Client::close`] from another thread. `run` then leaves the queue or loses the
    /// leadership, and returns [`SessionClosed`](Error::SessionClosed) as soon as `work` has returned. If `work`
    /// panics, `run` resigns and the panic propagates.
    ///
    /// ```
    /// use std::{thread, time::Duration};
    /// use lockkeeper::{Error, LockError};
    /// use lockkeeper::blocking::{self, Election};
    ///
    /// let client = blocking::connect("memory:blocking-run-shutdown")?;
    /// let election = Election::new(&client, "/election/scheduler")?;
    /// let serving = thread::spawn(move || {
    ///     election.run("10.0.0.1:8080", |leadership| leadership.lost()) // leads until it is lost
    /// });
    /// client.close()?; // at the shutdown
    /// let end = serving.join().expect("the work did not panic");
    /// assert!(matches!(end, Err(LockError::Store(Error::SessionClosed { .. }))));
    /// # Ok::<(), LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Election::run`](crate::Election::run).
    ///
    /// # Panics
    /// Inside an async task, before anything is sent. See the [module](crate::blocking).
    #[track_caller]
    pub fn run<W, T>(&self, data: impl Into<String>, work: W) -> Result<T>
    where
        W: FnMut(Arc<Leadership>) -> T,
    {
        self.run_with(data, LockOptions::new(), work)
    }

    /// Like [`run`](Self::run), with the given options for each campaign.
    ///
    /// # Errors
    /// Same as [`Election::run_with`](crate::Election::run_with).
    #[track_caller]
    pub fn run_with<W, T>(
        &self,
        data: impl Into<String>,
        options: LockOptions,
        mut work: W,
    ) -> Result<T>
    where
        W: FnMut(Arc<Leadership>) -> T,
    {
        let mut campaigns = Campaigns::new(&self.0, data, options);
        loop {
            let leadership = wait(campaigns.win())?;
            // Dropping the term resigns, also when `work` panics.
            let term = Term::new(BlockingGuard(leadership));
            let output = work(term.share());
            if block_on(term.finish()) {
                return Ok(output);
            }
        }
    }

    /// Yields the current leader and then each change. The iterator blocks until the next change.
    pub fn observe(&self) -> LeaderChanges {
        iter(self.0.observe())
    }

    /// Returns the role that this election object and its clones have.
    pub fn state(&self) -> ElectionState {
        ElectionState(self.0.state())
    }
}

forward_methods! { Election {
    /// Campaigns, and blocks until this candidate leads.
    fn campaign(data: impl Into<String>) -> Leadership;

    /// Campaigns for at most `timeout`.
    fn campaign_timeout(data: impl Into<String>, timeout: Duration) -> Leadership;

    /// Campaigns with the given options, and blocks until this candidate leads.
    fn campaign_with(data: impl Into<String>, options: LockOptions) -> Leadership;

    /// Becomes the leader if the election has no candidate, otherwise returns `None`.
    fn try_campaign(data: impl Into<String>) -> Option<Leadership>;

    /// Becomes the leader if the election has no candidate, with the given options. Otherwise returns `None`.
    fn try_campaign_with(data: impl Into<String>, options: LockOptions) -> Option<Leadership>;

    /// Returns the leader, or `None` if the election has no candidate.
    fn leader() -> Option<Leader>;
}}

/// Iterator of [`Election::observe`].
pub type LeaderChanges = Iter<crate::LeaderChanges>;

/// The role of one election object. See [`ElectionState`](crate::ElectionState).
#[derive(Clone, Debug)]
pub struct ElectionState(crate::ElectionState);

impl ElectionState {
    /// Returns the current role.
    pub fn current(&self) -> Role {
        self.0.current()
    }

    /// Blocks until the role differs from the one that this handle saw last. Returns `None` if the role can no longer
    /// change.
    #[track_caller]
    pub fn changed(&mut self) -> Option<Role> {
        block_on(self.0.changed())
    }

    /// Blocks until `wanted` accepts the role. Returns `None` if the role can no longer change.
    #[track_caller]
    pub fn wait_for(&mut self, wanted: impl FnMut(Role) -> bool) -> Option<Role> {
        block_on(self.0.wait_for(wanted))
    }
}
