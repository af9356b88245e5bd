//! [`ElectionState`]: the role of this election object.
//!
//! The role is computed from the leases of the leaderships whenever it is read, so it never depends on a message that
//! may arrive late (invariant 6). Messages only wake waiting tasks.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;

use lockkeeper_store::{WatchReceiver, WatchSender};

use crate::guard::{GuardView, OnLoss};
use crate::token::FencingToken;

/// Role of an election object in its election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// It is not a candidate.
    Bystander,
    /// It is waiting to lead.
    Candidate,
    /// It leads.
    Leader {
        /// Fencing token of its term.
        epoch: FencingToken,
    },
}

impl Role {
    /// Returns `true` for the leader.
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

#[derive(Default)]
pub(super) struct RoleState(WatchSender<Participation>);

#[derive(Default)]
struct Participation {
    campaigns: usize,
    /// Leaderships by id, until they are dropped. Some of them may be lost.
    leaderships: BTreeMap<u64, (FencingToken, GuardView)>,
    next_id: u64,
}

impl Participation {
    fn role(&self) -> Role {
        let held = self
            .leaderships
            .values()
            .filter(|(_, witness)| witness.is_held());
        match held.map(|(epoch, _)| *epoch).max() {
            Some(epoch) => Role::Leader { epoch },
            None if self.campaigns > 0 => Role::Candidate,
            None => Role::Bystander,
        }
    }
}

impl RoleState {
    pub(super) fn candidacy(self: &Arc<Self>) -> Candidacy {
        self.0.modify(|participation| participation.campaigns += 1);
        Candidacy {
            role_state: Some(self.clone()),
        }
    }

    pub(super) fn state(&self) -> ElectionState {
        // Subscribe before reading the role, so that `changed` sees any later change.
        let receiver = self.0.subscribe();
        ElectionState {
            seen: receiver.read(Participation::role),
            receiver,
        }
    }
}

pub(super) struct Candidacy {
    /// `None` once the candidate is elected.
    role_state: Option<Arc<RoleState>>,
}

impl Candidacy {
    /// Turns the candidate into the leader in one modification, so that no reader sees a bystander in between.
    pub(super) fn elect(mut self, epoch: FencingToken, witness: GuardView) -> LeaderSlot {
        let role_state = self.role_state.take().expect("only the end takes it");
        let id = role_state.0.modify(|participation| {
            participation.next_id += 1;
            participation.campaigns -= 1;
            participation
                .leaderships
                .insert(participation.next_id, (epoch, witness));
            participation.next_id
        });
        LeaderSlot { role_state, id }
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        if let Some(role_state) = self.role_state.take() {
            role_state
                .0
                .modify(|participation| participation.campaigns -= 1);
        }
    }
}

pub(super) struct LeaderSlot {
    role_state: Arc<RoleState>,
    id: u64,
}

impl LeaderSlot {
    /// Returns a function that wakes waiting [`ElectionState`]s when the leadership is lost. The function does not keep
    /// the channel open, because the guard that owns it may outlive the leadership
    /// ([`into_guard`](super::Leadership::into_guard)), and [`ElectionState::changed`] must then return `None`.
    pub(super) fn on_loss(&self) -> OnLoss {
        let states = self.role_state.0.notifier();
        Box::new(move || states.notify())
    }

    pub(super) fn notify(&self) {
        self.role_state.0.modify(|_| ());
    }
}

impl Drop for LeaderSlot {
    fn drop(&mut self) {
        let removed = self
            .role_state
            .0
            .modify(|participation| participation.leaderships.remove(&self.id));
        // Drop the removed leadership outside the channel's lock. The drop may also drop a session's status, which
        // wakes tasks, and a waker may read this channel.
        drop(removed);
    }
}

/// The role of one election object and its clones. You can read it at any time or wait for a change, as with a watch
/// channel.
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
    receiver: WatchReceiver<Participation>,
    seen: Role,
}

impl ElectionState {
    /// Returns the current role, which is [`Leader`](Role::Leader) only while the leadership is held (see
    /// [`Guard::held_until`](crate::Guard::held_until)). Never waits, and sends nothing.
    pub fn current(&self) -> Role {
        self.receiver.read(Participation::role)
    }

    /// Waits until the role differs from the role that this handle saw last. Quick changes may be merged. Returns
    /// `None` if the role can no longer change, because the election, all its clones, campaigns and leaderships have
    /// been dropped.
    ///
    /// Cancel safe: if a call is dropped, the next call returns the change.
    pub async fn changed(&mut self) -> Option<Role> {
        let seen = self.seen;
        let news =
            |participation: &Participation| Some(participation.role()).filter(|role| *role != seen);
        self.seen = poll_fn(|context| self.receiver.poll_pick(context, news)).await?;
        Some(self.seen)
    }

    /// Waits until `wanted` accepts the role, starting with the current one. Returns `None` if the role can no longer
    /// change (see [`changed`](Self::changed)).
    ///
    /// Cancel safe.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-election-role-wait-for").await?;
    /// use lockkeeper::{Election, Role};
    ///
    /// let election = Election::new(&client, "/election/scheduler")?;
    /// let mut state = election.state();
    /// let leadership = election.campaign("10.0.0.1:8080").await?;
    /// let role = state.wait_for(Role::is_leader).await; // at once: it leads already
    /// assert_eq!(role, Some(Role::Leader { epoch: leadership.epoch() }));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
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
