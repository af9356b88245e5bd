//! [`Election`]: one leader among all candidates.
//!
//! The head of the queue leads.

mod leader;
mod leadership;
mod observe;
mod role;
mod run;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{Client, Error, ZnodeHandle, ZnodePath};

use crate::error::Result;
use crate::names::Kind;
use crate::options::LockOptions;
use crate::path::IntoLockPath;
use crate::queue_lock::QueueLock;

pub use leader::Leader;
pub use leadership::Leadership;
pub use observe::{LeaderChange, LeaderChanges};
pub use role::{ElectionState, Role};
pub(crate) use run::{Campaigns, Term};

use role::RoleState;

const DATA: &str = "data";

/// An election shared by all programs that use the same path in the same store.
///
/// It is fair. Candidates lead in the order of arrival, even across reconnections, and each candidate watches only its
/// predecessor. Each term has an [`epoch`](Leadership::epoch), which is the fencing token of the leader. A resource
/// that checks the epoch is safe from a leader that has not noticed its loss yet (see
/// [`FencingGate`](crate::FencingGate)).
///
/// Curator's `LeaderLatch` can use the same path.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper::Election;
///
/// let client = lockkeeper::connect("memory:election").await?;
/// let election = Election::new(&client, "/election/scheduler")?;
/// let leadership = election.campaign("10.0.0.1:8080").await?; // in order of arrival
/// let leader = election.leader().await?.expect("a candidate leads");
/// assert_eq!(leader.data.as_deref(), Some("10.0.0.1:8080"));
/// assert_eq!(leader.epoch, leadership.epoch());
/// leadership.resign().await?; // or drop
/// assert!(election.leader().await?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// Use [`run`](Self::run) for a service that should lead whenever it can. Clones are the same election and share its
/// [`state`](Self::state).
#[derive(Clone)]
pub struct Election {
    client: Client,
    queue: Arc<ZnodeHandle>,
    role_state: Arc<RoleState>,
}

impl Election {
    /// Creates the election at a path.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        Ok(Self {
            client: client.clone(),
            queue: path.into_lock_path()?.into_queue(),
            role_state: Arc::default(),
        })
    }

    /// Returns the znode that contains the candidates.
    pub fn path(&self) -> &ZnodePath {
        self.queue.path()
    }

    /// Returns the client that the election uses.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Campaigns, and waits until this candidate leads. `data` (an address or a name) identifies the candidate to
    /// observers.
    ///
    /// Fair: candidates lead in the order of arrival. Cancel safe: a dropped campaign loses its place and leaves
    /// nothing behind.
    ///
    /// # Errors
    /// [`LockError::Store`](crate::LockError::Store), [`LockError::EntryDeleted`](crate::LockError::EntryDeleted),
    /// [`LockError::WrongKind`](crate::LockError::WrongKind).
    pub async fn campaign(&self, data: impl Into<String>) -> Result<Leadership> {
        self.campaign_with(data, LockOptions::new()).await
    }

    /// Campaigns for at most `timeout`, which covers the whole call.
    ///
    /// Fair and cancel safe, like [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), and the errors of [`campaign`](Self::campaign).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-election-campaign-timeout").await?;
    /// use std::time::Duration;
    /// use lockkeeper::{Election, LockError};
    ///
    /// let election = Election::new(&client, "/election/scheduler")?;
    /// let _leader = election.campaign("10.0.0.1:8080").await?;
    /// let waited = election.campaign_timeout("10.0.0.2:8080", Duration::from_millis(10)).await;
    /// assert!(matches!(waited, Err(LockError::Timeout { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn campaign_timeout(
        &self,
        data: impl Into<String>,
        timeout: Duration,
    ) -> Result<Leadership> {
        self.campaign_with(data, LockOptions::new().timeout(timeout))
            .await
    }

    /// Campaigns with the given options, and waits until this candidate leads. `data` replaces a field `data` in the
    /// options. A queue limit counts the candidates ahead, including the leader.
    ///
    /// Fair and cancel safe, like [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), [`LockError::QueueFull`](crate::LockError::QueueFull),
    /// [`LockError::InvalidField`](crate::LockError::InvalidField), and the errors of [`campaign`](Self::campaign).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-election-campaign-with").await?;
    /// use lockkeeper::{Election, LockOptions};
    ///
    /// let election = Election::new(&client, "/election/scheduler")?;
    /// let options = LockOptions::new().label("scheduler").queue_limit(2); // one leader, one stand-by before it
    /// let leadership = election.campaign_with("10.0.0.1:8080", options).await?;
    /// assert_eq!(leadership.metadata().label.as_deref(), Some("scheduler"));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn campaign_with(
        &self,
        data: impl Into<String>,
        options: LockOptions,
    ) -> Result<Leadership> {
        let options = options.field(DATA, data.into());
        // Create the candidacy first, so that the state shows a candidate during the wait.
        let candidacy = self.role_state.candidacy();
        let guard = self.queue_lock().acquire(options).await?;
        Ok(Leadership::new(guard, candidacy))
    }

    /// Leads if the election has no candidate now, otherwise returns `None`.
    ///
    /// A failed try costs one read and no write. The result `None` can be outdated unless
    /// [`synced`](LockOptions::synced) is set.
    ///
    /// Cancel safe, like [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// Same as [`campaign`](Self::campaign).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-election-try-campaign").await?;
    /// use lockkeeper::Election;
    ///
    /// let election = Election::new(&client, "/election/scheduler")?;
    /// let leadership = election.try_campaign("10.0.0.1:8080").await?.expect("it has no candidate");
    /// assert!(election.try_campaign("10.0.0.2:8080").await?.is_none());
    /// leadership.resign().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn try_campaign(&self, data: impl Into<String>) -> Result<Option<Leadership>> {
        self.try_campaign_with(data, LockOptions::new()).await
    }

    /// Leads, with the given options, if the election has no candidate now. Otherwise returns `None`. `data` replaces a
    /// field `data` in the options. A queue limit has no effect.
    ///
    /// Cancel safe, like [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout) if the store does not answer in time,
    /// [`LockError::InvalidField`](crate::LockError::InvalidField), and the errors of [`campaign`](Self::campaign).
    pub async fn try_campaign_with(
        &self,
        data: impl Into<String>,
        options: LockOptions,
    ) -> Result<Option<Leadership>> {
        let options = options.field(DATA, data.into());
        let candidacy = self.role_state.candidacy();
        let guard = self.queue_lock().try_acquire(options).await?;
        Ok(guard.map(|guard| Leadership::new(guard, candidacy)))
    }

    /// Returns the role that this election object and its clones have. Sends nothing.
    pub fn state(&self) -> ElectionState {
        self.role_state.state()
    }

    fn queue_lock(&self) -> QueueLock<'_> {
        QueueLock {
            client: &self.client,
            queue: &self.queue,
            kind: Kind::Candidate,
        }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("path", self.path())
            .field("client", &self.client)
            .finish()
    }
}
