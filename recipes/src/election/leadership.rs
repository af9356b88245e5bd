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
/// [`protect`](Guard::protect), [`held_until`](Guard::held_until). Unlike other guards it notices a
/// forced removal although nobody waits for that.
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
    /// Dropped first, so that no state of the election says leader once the next one may lead.
    seat: LeaderSlot,
    guard: Guard,
}

impl Leadership {
    pub(super) fn new(guard: Guard, candidacy: Candidacy) -> Self {
        let epoch = guard.fencing_token();
        let mut seat = None;
        let guard =
            guard.monitored(|witness| seat.insert(candidacy.seat(epoch, witness)).on_loss());
        Self {
            seat: seat.expect("it is monitored at once"),
            guard,
        }
    }

    /// Returns the number of this term: the [`fencing_token`](Guard::fencing_token), by the name that elections give
    /// it. It is greater than that of every earlier leader.
    pub fn epoch(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Returns the leader's data: those that it campaigned with, or has set since.
    pub fn data(&self) -> String {
        let mut metadata = self.guard.metadata();
        match metadata.other.remove(DATA) {
            Some(Value::String(data)) => data,
            _ => String::new(),
        }
    }

    /// Changes the leader's data. Observers see it; of changes that come fast they may see only
    /// the last. Two changes under way at the same time are written in the order of the calls.
    ///
    /// Not for a path that is shared with Curator: a `LeaderLatch` that waits behind this leader takes
    /// the change for nothing, and misses the leader's end.
    ///
    /// Dropped midway, the change may be written or not.
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
    /// [`LockError::Lost`](crate::LockError::Lost) when the leadership had been lost before: what was
    /// done under it since may have been done beside another leader.
    pub fn resign(self) -> impl Future<Output = Result<()>> + Send + 'static {
        self.release()
    }

    /// Releases the leadership, as [`resign`](Self::resign): the name that all guards share.
    ///
    /// # Errors
    /// Those of [`resign`](Self::resign).
    pub fn release(self) -> impl Future<Output = Result<()>> + Send + 'static {
        let Self { seat, guard } = self;
        // First, so that no state of the election says leader once the next one may lead.
        drop(seat);
        guard.release()
    }

    /// Resigns under a leadership that others may still look at.
    pub(super) fn resign_shared(
        &self,
    ) -> impl Future<Output = Result<()>> + Send + 'static + use<> {
        let resigned = self.guard.release_in_place();
        self.seat.tell();
        resigned
    }

    /// Turns it into the plain guard. The [`state`](super::Election::state) of the election
    /// does not count it any more.
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
