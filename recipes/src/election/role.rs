//! [`ElectionState`]: the part that an election object plays itself, to look at and to wait on.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;

use lockkeeper_store::{WatchReceiver, WatchSender};

use crate::guard::{GuardView, OnLoss};
use crate::token::FencingToken;

/// The part that an election object plays in its election.
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
    /// Returns true for the leader.
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

/// The campaigns and leaderships of one election object, for its states to read.
#[derive(Default)]
pub(super) struct RoleState(WatchSender<Terms>);

#[derive(Default)]
struct Terms {
    campaigns: usize,
    seats: BTreeMap<u64, (FencingToken, GuardView)>,
    /// Number of the next leadership.
    next: u64,
}

impl Terms {
    fn role(&self) -> Role {
        let held = self.seats.values().filter(|(_, witness)| witness.is_held());
        match held.map(|(epoch, _)| *epoch).max() {
            Some(epoch) => Role::Leader { epoch },
            None if self.campaigns > 0 => Role::Candidate,
            None => Role::Bystander,
        }
    }
}

impl RoleState {
    /// Notes a campaign, until it is dropped or seated.
    pub(super) fn candidacy(self: &Arc<Self>) -> Candidacy {
        self.0.modify(|terms| terms.campaigns += 1);
        Candidacy {
            board: Some(self.clone()),
        }
    }

    pub(super) fn state(&self) -> ElectionState {
        let receiver = self.0.subscribe();
        ElectionState {
            seen: receiver.read(Terms::role),
            receiver,
        }
    }
}

/// A campaign under way.
pub(super) struct Candidacy {
    /// Taken when it has come to its end.
    board: Option<Arc<RoleState>>,
}

impl Candidacy {
    /// Makes the candidate the leader, in one step: no state says bystander in between.
    pub(super) fn seat(mut self, epoch: FencingToken, witness: GuardView) -> LeaderSlot {
        let board = self.board.take().expect("only the end takes it");
        let number = board.0.modify(|terms| {
            terms.next += 1;
            terms.campaigns -= 1;
            terms.seats.insert(terms.next, (epoch, witness));
            terms.next
        });
        LeaderSlot { board, number }
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        if let Some(board) = self.board.take() {
            board.0.modify(|terms| terms.campaigns -= 1);
        }
    }
}

/// A leadership, until it is dropped.
pub(super) struct LeaderSlot {
    board: Arc<RoleState>,
    number: u64,
}

impl LeaderSlot {
    /// Returns the function to call when the leadership is lost. The loss itself is seen by looking.
    pub(super) fn on_loss(&self) -> OnLoss {
        let states = self.board.0.notifier();
        Box::new(move || states.notify())
    }

    /// Has everybody look again.
    pub(super) fn tell(&self) {
        self.board.0.modify(|_| ());
    }
}

impl Drop for LeaderSlot {
    fn drop(&mut self) {
        let seat = self
            .board
            .0
            .modify(|terms| terms.seats.remove(&self.number));
        drop(seat);
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
#[derive(Clone)]
pub struct ElectionState {
    receiver: WatchReceiver<Terms>,
    seen: Role,
}

impl ElectionState {
    /// Returns the role now. It is never the leader's when the leadership is known to be lost, or can no longer be
    /// believed in. Of several leaderships (from successive campaigns of one object) the newest counts.
    pub fn current(&self) -> Role {
        self.receiver.read(Terms::role)
    }

    /// Waits until the role differs from the one that this handle has seen last: at its making, or here.
    /// Changes that come faster than they are read are seen together. `None` when no change can
    /// come any more: the election, its clones, and all that came from them are gone.
    ///
    /// Cancel safe.
    pub async fn changed(&mut self) -> Option<Role> {
        let seen = self.seen;
        let news = |terms: &Terms| Some(terms.role()).filter(|role| *role != seen);
        self.seen = poll_fn(|context| self.receiver.poll_pick(context, news)).await?;
        Some(self.seen)
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

impl fmt::Debug for ElectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ElectionState({:?})", self.current())
    }
}
