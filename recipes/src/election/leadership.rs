//! [`Leadership`]: the guard of an election.

use std::fmt;
use std::future::Future;
use std::ops::Deref;

use serde_json::Value;

use super::DATA;
use super::role::{Candidacy, LeaderSlot};
use crate::error::Result;
use crate::guard::Guard;
use crate::token::FencingToken;

/// The guard of an election. The leadership ends when you resign or drop it, or when it is lost.
///
/// It has all methods of a [`Guard`], such as [`is_held`](Guard::is_held) and [`protect`](Guard::protect). Unlike other
/// guards, it watches its znode from the start, so that the [`state`](super::Election::state) of the election always
/// shows a forced removal.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper::{Election, FencingGate};
///
/// # let client = lockkeeper::connect("memory:leadership").await?;
/// # let mut schedule = FencingGate::default();
/// let leadership = Election::new(&client, "/election/scheduler")?.campaign("me").await?;
/// schedule.admit(leadership.epoch())?; // the resource refuses older epochs
/// leadership.set_data("me, warmed up").await?; // observers see it
/// let done = leadership.protect(async { "planned" }).await?; // dropped if the leadership is lost
/// leadership.resign().await?;
/// # assert_eq!(done, "planned");
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[must_use = "dropping a leadership resigns"]
pub struct Leadership {
    /// Declared before `guard`, so that it is dropped first. The guard's drop sends the delete, and the next candidate
    /// may lead from then on. By then, this election's state must no longer report us as the leader.
    slot: LeaderSlot,
    guard: Guard,
}

impl Leadership {
    pub(super) fn new(guard: Guard, candidacy: Candidacy) -> Self {
        let epoch = guard.fencing_token();
        // The closure registers us as the leader before the monitor starts. So the monitor finds the slot even if the
        // leadership is lost immediately.
        let mut slot = None;
        let guard =
            guard.monitored(|witness| slot.insert(candidacy.elect(epoch, witness)).on_loss());
        Self {
            slot: slot.expect("`monitored` calls the closure"),
            guard,
        }
    }

    /// Returns the [`fencing_token`](Guard::fencing_token) of this term, greater than the epoch of every earlier
    /// leader.
    pub fn epoch(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Returns the leader's data, as set by its campaign or by [`set_data`](Self::set_data). Sends nothing.
    pub fn data(&self) -> String {
        let mut metadata = self.guard.metadata();
        match metadata.other.remove(DATA) {
            Some(Value::String(data)) => data,
            _ => String::new(),
        }
    }

    /// Changes the leader's data, and waits until the store has confirmed the change. Observers may see only the last
    /// of several quick changes. Concurrent changes are written in the order of the calls.
    ///
    /// Do not use this method on a path that is shared with Curator. The next `LeaderLatch` arms a single one-time
    /// watch on the leader's data. A change uses up this watch, so the latch misses the end of this leadership.
    ///
    /// Not cancel safe: if the call is dropped midway, the change may or may not be written. You can repeat the call.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) if the leadership is lost, and store errors such as
    /// [`Error::TooLarge`](crate::Error::TooLarge).
    pub async fn set_data(&self, data: impl Into<String>) -> Result<()> {
        let data = Value::String(data.into());
        self.guard
            .rewrite(|metadata| drop(metadata.other.insert(DATA.to_owned(), data)))
            .await
    }

    /// Resigns, and waits until the store has confirmed the resignation. The next candidate then leads.
    ///
    /// Dropping the future does not cancel the resignation, because the call itself sends it.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) if the leadership was lost before the call.
    pub fn resign(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.release()
    }

    /// Resigns, like [`resign`](Self::resign).
    ///
    /// # Errors
    /// Same as [`resign`](Self::resign).
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        let Self { slot, guard } = self;
        // Drop the slot before the release sends the delete, as explained at the field `slot`.
        drop(slot);
        guard.release()
    }

    /// Resigns a shared leadership. A second call has no effect.
    pub(super) fn resign_shared(
        &self,
    ) -> impl Future<Output = Result<()>> + Send + 'static + use<> {
        let resigned = self.guard.release_in_place();
        // Wake waiting `ElectionState`s only after the guard counts as lost, because they read the role immediately.
        self.slot.notify();
        resigned
    }

    /// Converts this into a plain guard. From then on, the election's [`state`](super::Election::state) does not report
    /// this leadership. Sends nothing.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-election-leadership-into-guard").await?;
    /// let election = lockkeeper::Election::new(&client, "/election/scheduler")?;
    /// let guard = election.campaign("10.0.0.1:8080").await?.into_guard();
    /// assert!(guard.is_held() && !election.state().current().is_leader());
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn into_guard(self) -> Guard {
        self.guard
    }
}

impl Deref for Leadership {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("path", &self.guard.path())
            .field("epoch", &self.epoch())
            .field("held", &self.guard.is_held())
            .finish()
    }
}
