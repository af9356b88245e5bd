//! [`Election`]: one leader among all who stand for it.

mod leader;
mod leadership;
mod observe;
mod role;
mod run;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{Client, Error, ZnodePath};

use crate::error::Result;
use crate::names::Kind;
use crate::options::LockOptions;
use crate::path::{IntoLockPath, LockPath};
use crate::queue_lock::QueueLock;

pub use leader::Leader;
pub use leadership::Leadership;
pub use observe::{LeaderChange, LeaderChanges};
pub use role::{ElectionState, Role};

use role::RoleState;

/// The field of an entry's metadata that holds what a candidate campaigned with.
const DATA: &str = "data";

/// An election among all programs that name the same path of the same store: one of them leads, the
/// others stand by.
///
/// It is fair: candidates come to lead in the order in which their znodes were made, and none gives
/// way to another, whatever happens to connections. Each watches only the one before it. The number
/// of a term is its [`epoch`](Leadership::epoch), the fencing token of the leader: it only grows, and
/// a resource that checks it is safe from a leader that does not know yet that it has lost (see
/// [`FencingGate`](crate::FencingGate)).
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
/// let leader = election.leader().await?.expect("somebody leads");
/// assert_eq!(leader.data.as_deref(), Some("10.0.0.1:8080"));
/// assert_eq!(leader.epoch, leadership.epoch());
/// leadership.resign().await?; // or drop
/// assert!(election.leader().await?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// A service that is to lead whenever it can leaves the campaigning to [`run`](Self::run). A clone is
/// the same election, and shares its [`state`](Self::state).
#[derive(Clone)]
pub struct Election {
    client: Client,
    path: LockPath,
    board: Arc<RoleState>,
}

impl Election {
    /// Creates the election at a path. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(client: &Client, path: impl IntoLockPath) -> Result<Self, Error> {
        Ok(Self {
            client: client.clone(),
            path: path.into_lock_path()?,
            board: Arc::default(),
        })
    }

    /// Returns the znode under which the candidates stand.
    pub fn path(&self) -> &ZnodePath {
        self.path.as_znode()
    }

    /// Returns the client that the election speaks through.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Stands for election, and waits until it leads. `data` identifies the candidate (an address, a name) to all that
    /// look at the election.
    ///
    /// Fair: candidates lead in the order of their arrival.
    ///
    /// Cancel safe: a dropped campaign leaves nothing behind, at whatever moment it is dropped. It
    /// loses its place.
    ///
    /// # Errors
    /// [`LockError::Store`](crate::LockError::Store) with the session's end or a refusal,
    /// [`LockError::EntryDeleted`](crate::LockError::EntryDeleted),
    /// [`LockError::WrongKind`](crate::LockError::WrongKind).
    pub async fn campaign(&self, data: impl Into<String>) -> Result<Leadership> {
        self.campaign_with(data, LockOptions::new()).await
    }

    /// Stands for election, and leads within `timeout`: one deadline for everything, the joining of the queue included.
    ///
    /// Cancel safe, as [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout), and those of [`campaign`](Self::campaign).
    pub async fn campaign_timeout(
        &self,
        data: impl Into<String>,
        timeout: Duration,
    ) -> Result<Leadership> {
        self.campaign_with(data, LockOptions::new().timeout(timeout))
            .await
    }

    /// Stands for election with the given options, and waits until it leads. A field `data` of the options is replaced
    /// by `data`.
    ///
    /// Cancel safe, as [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout),
    /// [`LockError::QueueFull`](crate::LockError::QueueFull), and those of
    /// [`campaign`](Self::campaign).
    pub async fn campaign_with(
        &self,
        data: impl Into<String>,
        options: LockOptions,
    ) -> Result<Leadership> {
        let options = options.field(DATA, data.into());
        let candidacy = self.board.candidacy();
        let guard = self.queue_lock().acquire_with(options).await?;
        Ok(Leadership::new(guard, candidacy))
    }

    /// Leads if nobody does and nobody stands for it now; `None` otherwise.
    ///
    /// A taken election costs one read and no write, and that answer may be as stale as the server that gives it,
    /// unless the options say [`synced`](LockOptions::synced); a free one is confirmed by the queue itself.
    ///
    /// Cancel safe, as [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// Those of [`campaign`](Self::campaign).
    pub async fn try_campaign(&self, data: impl Into<String>) -> Result<Option<Leadership>> {
        self.try_campaign_with(data, LockOptions::new()).await
    }

    /// Leads if nobody does and nobody stands for it now, with the given options; `None` otherwise. A field `data` of
    /// the options is replaced by `data`; a queue limit has no effect.
    ///
    /// Cancel safe, as [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// [`LockError::Timeout`](crate::LockError::Timeout) when the store has not answered in time, and those of
    /// [`campaign`](Self::campaign).
    pub async fn try_campaign_with(
        &self,
        data: impl Into<String>,
        options: LockOptions,
    ) -> Result<Option<Leadership>> {
        let options = options.field(DATA, data.into());
        let candidacy = self.board.candidacy();
        let guard = self.queue_lock().try_acquire(options).await?;
        Ok(guard.map(|guard| Leadership::new(guard, candidacy)))
    }

    /// Returns the part that this election and its clones play themselves, as a state to look at and to wait on.
    pub fn state(&self) -> ElectionState {
        self.board.state()
    }

    fn queue_lock(&self) -> QueueLock<'_> {
        QueueLock {
            client: &self.client,
            path: self.path(),
            kind: Kind::Candidate,
        }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("path", &self.path)
            .field("client", &self.client)
            .finish()
    }
}
