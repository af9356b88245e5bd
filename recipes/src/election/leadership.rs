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

/// The guard of an election, from the grant until it is resigned, dropped or lost.
///
/// It is a [`Guard`], and has all its methods: [`is_held`](Guard::is_held), [`lost`](Guard::lost),
/// [`protect`](Guard::protect), [`held_until`](Guard::held_until). Unlike other guards it watches its own znode from
/// the grant on, so that the [`state`](super::Election::state) of its election shows a forced removal without a call.
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
    /// Declared, and so dropped, before the guard: once the guard's delete is sent the next candidate may lead, and no
    /// state of this election may still say leader then.
    slot: LeaderSlot,
    guard: Guard,
}

impl Leadership {
    pub(super) fn new(guard: Guard, candidacy: Candidacy) -> Self {
        let epoch = guard.fencing_token();
        // Elected in the closure, which runs before the monitor: a loss that is noticed at once finds the slot.
        let mut slot = None;
        let guard =
            guard.monitored(|witness| slot.insert(candidacy.elect(epoch, witness)).on_loss());
        Self {
            slot: slot.expect("`monitored` calls the closure"),
            guard,
        }
    }

    /// Returns the number of this term: the [`fencing_token`](Guard::fencing_token), by the name that elections give
    /// it. It is greater than that of every earlier leader.
    pub fn epoch(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Returns the leader's data: the data of its campaign, or those that it has set since. Nothing is sent.
    pub fn data(&self) -> String {
        let mut metadata = self.guard.metadata();
        match metadata.other.remove(DATA) {
            Some(Value::String(data)) => data,
            _ => String::new(),
        }
    }

    /// Changes the leader's data, and waits until the store has confirmed that. Observers see it; of changes in quick
    /// succession they may see only the last. Concurrent changes are written in the order of the calls.
    ///
    /// Not for a path that is shared with Curator: a `LeaderLatch` that waits behind this leader watches its data,
    /// ignores the change, does not watch again, and so misses the leader's end.
    ///
    /// Not cancel safe: dropped midway, the change may be written or not. It can be repeated.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when the leadership is lost, and those of the
    /// store, [`Error::TooLarge`](crate::Error::TooLarge) among them.
    pub async fn set_data(&self, data: impl Into<String>) -> Result<()> {
        let data = Value::String(data.into());
        self.guard
            .rewrite(|metadata| drop(metadata.other.insert(DATA.to_owned(), data)))
            .await
    }

    /// Resigns, and waits until the store has confirmed it: the next candidate leads then. The term of elections for
    /// [`release`](Self::release).
    ///
    /// The resignation is sent by the call itself; dropping the future does not stop it.
    ///
    /// # Errors
    /// [`LockError::Lost`](crate::LockError::Lost) when the leadership had been lost before: another leader may have
    /// worked at the same time since.
    pub fn resign(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.release()
    }

    /// Releases the leadership, as [`resign`](Self::resign): the name that all guards share.
    ///
    /// # Errors
    /// Those of [`resign`](Self::resign).
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        let Self { slot, guard } = self;
        // First, for the reason given at the field: `release` sends the delete.
        drop(slot);
        guard.release()
    }

    /// Resigns a leadership that is shared: the other owners see it lost from now on. A second call has no effect.
    pub(super) fn resign_shared(
        &self,
    ) -> impl Future<Output = Result<()>> + Send + 'static + use<> {
        let resigned = self.guard.release_in_place();
        // After the loss has been noted: a state that is woken reads the role at once.
        self.slot.notify();
        resigned
    }

    /// Converts it into the plain guard. The [`state`](super::Election::state) of the election no longer counts it.
    /// Nothing is sent.
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
