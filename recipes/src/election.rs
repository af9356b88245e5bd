//! [`Election`]: one leader among all candidates.
//!
//! Candidates stand in the common queue, and its head leads. [`role`] has the state of an election's own campaigns,
//! [`leader`] and [`observe`] the view of others, [`run`] the loop of a service that leads whenever it can.

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

/// Field of an entry's metadata that holds the data with which its candidate campaigned.
const DATA: &str = "data";

/// An election among all programs that name the same path of the same store: one of them leads, the
/// others stand by.
///
/// It is fair: candidates lead in the order in which their znodes were created, whatever happens to connections. Each
/// watches only the one before it. The number of a term is its [`epoch`](Leadership::epoch), the fencing token of the
/// leader: it only grows, and a resource that checks it is safe from a leader that does not know yet that it has lost
/// (see [`FencingGate`](crate::FencingGate)).
///
/// The names of the znodes are those of Curator's `LeaderLatch`, which may stand at the same path.
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
/// [`run`](Self::run) campaigns for a service that is to lead whenever it can. A clone is the same election, and shares
/// its [`state`](Self::state).
#[derive(Clone)]
pub struct Election {
    client: Client,
    queue: Arc<ZnodeHandle>,
    role_state: Arc<RoleState>,
}

impl Election {
    /// Creates the election at a path. Nothing is sent.
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

    /// Returns the znode under which the candidates stand.
    pub fn path(&self) -> &ZnodePath {
        self.queue.path()
    }

    /// Returns the client that the election speaks through.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Stands for election, and waits until it leads. `data` identifies the candidate (an address, a name) to all
    /// observers of the election.
    ///
    /// Fair: candidates lead in the order of their arrival.
    ///
    /// Cancel safe: a dropped campaign leaves nothing behind, at whichever moment it is dropped. It loses its place.
    ///
    /// # Errors
    /// [`LockError::Store`](crate::LockError::Store) with the session's end or a refusal,
    /// [`LockError::EntryDeleted`](crate::LockError::EntryDeleted) if the candidate's entry was removed,
    /// [`LockError::WrongKind`](crate::LockError::WrongKind) if another recipe uses the path.
    pub async fn campaign(&self, data: impl Into<String>) -> Result<Leadership> {
        self.campaign_with(data, LockOptions::new()).await
    }

    /// Stands for election, and leads within `timeout`: one deadline for everything, the joining of the queue included.
    ///
    /// Fair and cancel safe, as [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), and those of [`campaign`](Self::campaign).
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

    /// Stands for election with the given options, and waits until it leads. A field `data` of the options is replaced
    /// by `data`. A queue limit counts the candidates ahead, the leader included.
    ///
    /// Fair and cancel safe, as [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), [`LockError::QueueFull`](crate::LockError::QueueFull),
    /// [`LockError::InvalidField`](crate::LockError::InvalidField), and those of [`campaign`](Self::campaign).
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
        // Before the wait, and dropped with it: the state says candidate for exactly as long as one exists.
        let candidacy = self.role_state.candidacy();
        let guard = self.queue_lock().acquire(options).await?;
        Ok(Leadership::new(guard, candidacy))
    }

    /// Leads if the election has no candidate now; `None` otherwise.
    ///
    /// A taken election costs one read and no write. "Taken" may be as stale as the server that answers, unless the
    /// options say [`synced`](LockOptions::synced); "free" is confirmed by the queue itself.
    ///
    /// Cancel safe, as [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// Those of [`campaign`](Self::campaign).
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

    /// Leads if the election has no candidate now, with the given options; `None` otherwise. A field `data` of the
    /// options is replaced by `data`; a queue limit has no effect.
    ///
    /// Cancel safe, as [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout) when the store has not answered in time,
    /// [`LockError::InvalidField`](crate::LockError::InvalidField), and those of [`campaign`](Self::campaign).
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

    /// Returns the role of this election object and its clones, as a state to read and to wait on. Nothing is sent.
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
