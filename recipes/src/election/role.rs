//! [`ElectionState`]: which part an election object plays itself, for others to look at and wait on.
//!
//! By hand, as [`StateStream`](lockkeeper_store::StateStream): the order of waking must not be
//! random, or faults would not replay from their seeds.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use lockkeeper_store::wake_all;
use parking_lot::Mutex;

use crate::guard::{OnLoss, Witness};
use crate::token::FencingToken;

/// The part that one plays in an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// It does not stand for election, or no longer.
    Bystander,
    /// It stands, and waits for its turn.
    Candidate,
    /// It leads.
    Leader {
        /// Its term.
        epoch: FencingToken,
    },
}

impl Role {
    /// Whether this is the leader.
    pub fn is_leader(self) -> bool {
        matches!(self, Self::Leader { .. })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bystander => f.write_str("not standing"),
            Self::Candidate => f.write_str("standing by"),
            Self::Leader { epoch } => write!(f, "leading, epoch {epoch}"),
        }
    }
}

/// What the campaigns and leaderships of one election object write, and its states read.
#[derive(Default)]
pub(super) struct RoleState(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    campaigns: usize,
    seats: BTreeMap<u64, (FencingToken, Witness)>,
    /// Who waits for a change, by the number of the state.
    waiting: BTreeMap<u64, Waker>,
    next_number: u64,
    /// Nobody will write any more.
    gone: bool,
}

impl Shared {
    fn role(&self) -> Role {
        let held = self.seats.values().filter(|(_, witness)| witness.is_held());
        match held.map(|(epoch, _)| *epoch).max() {
            Some(epoch) => Role::Leader { epoch },
            None if self.campaigns > 0 => Role::Candidate,
            None => Role::Bystander,
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

/// Makes a change, and wakes those who wait for one.
fn change<T>(shared: &Mutex<Shared>, make: impl FnOnce(&mut Shared) -> T) -> T {
    let mut locked = shared.lock();
    let made = make(&mut locked);
    let waiting = std::mem::take(&mut locked.waiting);
    drop(locked);
    wake_all(waiting.into_values());
    made
}

impl RoleState {
    /// Notes a campaign, until it is dropped or seated.
    pub(super) fn candidacy(self: &Arc<Self>) -> Candidacy {
        change(&self.0, |shared| shared.campaigns += 1);
        Candidacy {
            board: Some(self.clone()),
        }
    }

    pub(super) fn state(&self) -> ElectionState {
        let mut shared = self.0.lock();
        ElectionState {
            number: shared.number(),
            seen: shared.role(),
            shared: self.0.clone(),
        }
    }
}

impl Drop for RoleState {
    fn drop(&mut self) {
        change(&self.0, |shared| shared.gone = true);
    }
}

/// A campaign under way.
pub(super) struct Candidacy {
    /// Taken when it has come to its end.
    board: Option<Arc<RoleState>>,
}

impl Candidacy {
    /// The candidate leads, in one step.
    pub(super) fn seat(mut self, epoch: FencingToken, witness: Witness) -> LeaderSlot {
        let board = self.board.take().expect("only the end takes it");
        let number = change(&board.0, |shared| {
            let number = shared.number();
            shared.campaigns -= 1;
            shared.seats.insert(number, (epoch, witness));
            number
        });
        LeaderSlot { board, number }
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        if let Some(board) = self.board.take() {
            change(&board.0, |shared| shared.campaigns -= 1);
        }
    }
}

/// A leadership, until it is dropped.
pub(super) struct LeaderSlot {
    board: Arc<RoleState>,
    number: u64,
}

impl LeaderSlot {
    /// What to call when the leadership is lost. That it is lost is seen by looking.
    pub(super) fn on_loss(&self) -> OnLoss {
        let shared = self.board.0.clone();
        Box::new(move || change(&shared, |_| ()))
    }

    /// Has everybody look again.
    pub(super) fn tell(&self) {
        change(&self.board.0, |_| ());
    }
}

impl Drop for LeaderSlot {
    fn drop(&mut self) {
        change(&self.board.0, |shared| shared.seats.remove(&self.number));
    }
}

/// The part that one election object (and its clones) plays itself, in the way of a watch channel:
/// look at it at any time, or wait until it changes.
///
/// It is a state and no callback, since what a callback says may be over when it is heard:
/// [`current`](Self::current) asks whether the leadership is held at that very moment.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper::{Election, Role};
///
/// # let client = lockkeeper::connect("memory:election-state").await?;
/// let election = Election::new(&client, "/election/scheduler")?;
/// let mut state = election.state();
/// assert_eq!(state.current(), Role::Bystander);
/// let leadership = election.campaign("me").await?;
/// let epoch = leadership.epoch();
/// assert_eq!(state.changed().await, Some(Role::Leader { epoch }));
/// client.close().await?; // the leadership is lost with its session
/// assert_eq!(state.changed().await, Some(Role::Bystander));
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub struct ElectionState {
    shared: Arc<Mutex<Shared>>,
    number: u64,
    seen: Role,
}

impl ElectionState {
    /// The role now. It never says leader when the leadership is known to be lost, or can no longer
    /// be believed in. Of several leaderships (from successive campaigns of one object) the newest counts.
    pub fn current(&self) -> Role {
        self.shared.lock().role()
    }

    /// Waits until the role is another than this handle has seen last: at its making, or here.
    /// Changes that come faster than they are read are seen together. `None` when no change can
    /// come any more: the election, its clones, and all that came from them are gone.
    ///
    /// Cancel safe.
    pub async fn changed(&mut self) -> Option<Role> {
        poll_fn(|context| {
            // Neither cloned nor dropped under the lock: a waker may own states of this election.
            let waker = context.waker().clone();
            let mut shared = self.shared.lock();
            let role = shared.role();
            if role != self.seen {
                self.seen = role;
                return Poll::Ready(Some(role));
            }
            if shared.gone {
                return Poll::Ready(None);
            }
            let former = shared.waiting.insert(self.number, waker);
            drop(shared);
            drop(former);
            Poll::Pending
        })
        .await
    }

    /// Waits until the role is as wanted. `None` when it can no longer become so.
    ///
    /// Cancel safe.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(Role) -> bool) -> Option<Role> {
        self.seen = self.current();
        while !wanted(self.seen) {
            self.changed().await?;
        }
        Some(self.seen)
    }
}

impl Clone for ElectionState {
    fn clone(&self) -> Self {
        Self {
            number: self.shared.lock().number(),
            seen: self.seen,
            shared: self.shared.clone(),
        }
    }
}

impl Drop for ElectionState {
    fn drop(&mut self) {
        let former = self.shared.lock().waiting.remove(&self.number);
        drop(former);
    }
}

impl fmt::Debug for ElectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ElectionState({:?})", self.current())
    }
}
