//! [`LeaseModel`]: the rule by which a client proves its etcd lease, with the etcd members that answer the client.
//!
//! The rule is described at `KeepAlive` in `src/backend/lease.rs`. A stopped member is one that takes no steps. Members
//! that only vote are not modelled. The model leaves out etcd #15247, so no member forwards the revoke of a former
//! leader to the new leader.
//!
//! etcd checks whether a lease has expired before it renews the lease. If the lease expires in between, the renewal
//! succeeds although the leader revokes the lease, and the range misses a revoke that is not yet committed. So after its
//! belief has ended, the client needs two keep-alives. The model assumes that a pending revoke is committed or lost
//! before the second one is sent.

use std::array;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::check::{Outcome, outcome};

/// Invariant 6 for a lease of etcd.
pub const LEASE: &str = "6: a client stops believing in its lease before etcd revokes it";

/// Time to live of the lease, in ticks.
const TTL: u8 = 3;
/// Number of terms, which bounds the number of elections.
const TERMS: usize = 3;
const MEMBERS: usize = 2;

/// A client that follows the rule, or makes a deliberate mistake that should violate [`LEASE`].
#[derive(Clone, Copy, Debug)]
pub struct LeaseModel(pub Option<LeaseMistake>);

/// A change of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseMistake {
    /// The answer to the keep-alive proves the lease without a range.
    TrustAnswer,
    /// The terms of both answers may differ.
    IgnoreTerm,
    /// The range need not find the key.
    IgnoreKey,
    /// The TTL counts from the answer to the keep-alive.
    CountFromAnswer,
    /// A single keep-alive proves a lease in which the client no longer believes.
    TrustFirst,
}

/// The members, the client's current call, and the client's belief in its lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseState {
    /// The committed entries. `Some` is the first entry of a term and contains the leader. `None` revokes the lease,
    /// which deletes the key.
    log: Vec<Option<usize>>,
    members: [Member; MEMBERS],
    /// True if the newest leader has decided to revoke the lease, and the revoke is not yet committed.
    is_revoke_pending: bool,
    call: Option<Call>,
    /// Ticks until the client stops believing.
    belief: u8,
    /// Ticks until the newest confirmed keep-alive is as old as the TTL.
    confirmed: u8,
    /// Term of the newest proof. It is 0 after the grant.
    proved_in: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Member {
    /// The newest term that the member knows.
    term: usize,
    /// Number of applied entries.
    applied: usize,
    /// Ticks until the lease expires, if the member believes that it leads.
    lease: u8,
}

/// A keep-alive and the range that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    step: Step,
    /// Ticks since the keep-alive was sent.
    age: u8,
    /// Member that handles the keep-alive.
    at: usize,
    /// Term in the header of the answer to the keep-alive.
    term: usize,
    /// Number of entries that a member must have applied to answer the range.
    index: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Sent,
    /// The lease has not expired. The leader renews it in a separate step, so it may still expire in between.
    Checked,
    Renewed,
    Reading,
}

/// A step of a member or of the client. Members are identified by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// A tick passes.
    Tick,
    /// A member is elected. It commits a pending revoke of its predecessor and the first entry of its term.
    Elect(usize),
    /// A member learns of the next term, so it no longer leads.
    LearnTerm(usize),
    /// A member applies the next entry. A leader restarts the lease when it applies the first entry of its term.
    Apply(usize),
    /// The newest leader finds that the lease has expired, and decides to revoke it.
    DecideToRevoke(usize),
    /// The pending revoke is committed.
    CommitRevoke,
    /// The pending revoke is lost.
    LoseRevoke,
    /// The client sends a keep-alive to a member, which fills in the answer's header. An earlier call is given up.
    SendKeepAlive(usize),
    /// The leader that this member knows finds that the lease has not expired.
    CheckLease,
    /// The leader renews the lease.
    RenewLease,
    /// The client receives the answer and sends the range, and the newest leader returns the range's index.
    SendRange,
    /// A member answers the range.
    AnswerRange(usize),
}

impl LeaseState {
    fn applied(&self, member: usize) -> &[Option<usize>] {
        &self.log[..self.members[member].applied]
    }

    /// Returns the term in the headers of a member's answers.
    fn header_term(&self, member: usize) -> usize {
        self.applied(member).iter().flatten().count()
    }

    fn has_key(&self, member: usize) -> bool {
        !self.applied(member).contains(&None)
    }

    fn newest_term(&self) -> usize {
        self.log.iter().flatten().count()
    }

    fn leader_of(&self, term: usize) -> usize {
        let mut leaders = self.log.iter().flatten();
        *leaders.nth(term - 1).expect("a known term has a leader")
    }

    /// Returns true if a member manages leases. It believes that it leads, and has applied its predecessors' entries.
    fn is_primary(&self, member: usize) -> bool {
        let term = self.members[member].term;
        self.leader_of(term) == member && self.header_term(member) == term
    }

    fn take_call(&mut self, step: Step) -> Option<Call> {
        self.call.take_if(|call| call.step == step)
    }

    /// Executes an action. Returns `None` if it is impossible.
    fn apply(&mut self, model: &LeaseModel, action: LeaseAction) -> Option<()> {
        match action {
            LeaseAction::Tick => self.tick(),
            LeaseAction::Elect(at) => {
                let term = self.newest_term() + 1;
                (term <= TERMS).then_some(())?;
                self.commit_revoke();
                self.log.push(Some(at));
                self.members[at].term = term;
                self.members[at].lease = 0;
            }
            LeaseAction::LearnTerm(at) => {
                (self.members[at].term < self.newest_term()).then_some(())?;
                self.members[at].term += 1;
                self.members[at].lease = 0;
            }
            LeaseAction::Apply(at) => {
                let entry = self.log.get(self.members[at].applied)?;
                let is_first = entry.is_some();
                let is_known = !is_first || self.header_term(at) < self.members[at].term;
                is_known.then_some(())?;
                self.members[at].applied += 1;
                if is_first && self.is_primary(at) {
                    self.members[at].lease = TTL;
                }
            }
            LeaseAction::DecideToRevoke(at) => {
                let is_leader = self.is_primary(at) && self.members[at].term == self.newest_term();
                let is_due = self.members[at].lease == 0 && !self.log.contains(&None);
                (is_leader && is_due && !self.is_revoke_pending).then_some(())?;
                self.is_revoke_pending = true;
            }
            LeaseAction::CommitRevoke => self.commit_revoke().then_some(())?,
            LeaseAction::LoseRevoke => self.is_revoke_pending = false,
            LeaseAction::SendKeepAlive(at) => {
                let is_second = self.belief == 0 && self.confirmed > 0;
                (!is_second || !self.is_revoke_pending).then_some(())?;
                self.call = Some(Call {
                    step: Step::Sent,
                    age: 0,
                    at,
                    term: self.header_term(at),
                    index: 0,
                });
            }
            LeaseAction::CheckLease => {
                let call = self.take_call(Step::Sent)?;
                let at = self.leader_of(self.members[call.at].term);
                let is_alive = self.members[at].lease > 0 && self.has_key(at);
                (is_alive && self.is_primary(at)).then_some(())?;
                let step = Step::Checked;
                self.call = Some(Call { step, at, ..call });
            }
            LeaseAction::RenewLease => {
                let call = self.take_call(Step::Checked)?;
                // Before 3.4.40, 3.5.23 and 3.6.5, etcd renews the lease even if the revoke was applied in between.
                if self.is_primary(call.at) {
                    self.members[call.at].lease = TTL;
                }
                let step = Step::Renewed;
                self.call = Some(Call { step, ..call });
            }
            LeaseAction::SendRange => self.send_range(model)?,
            LeaseAction::AnswerRange(at) => {
                let call = self.take_call(Step::Reading)?;
                (self.members[at].applied >= call.index).then_some(())?;
                let is_same_term = self.header_term(at) == call.term;
                if (is_same_term || model.makes(LeaseMistake::IgnoreTerm))
                    && (self.has_key(at) || model.makes(LeaseMistake::IgnoreKey))
                {
                    self.confirm(model, call);
                }
            }
        }
        Some(())
    }

    fn tick(&mut self) {
        for member in &mut self.members {
            member.lease = member.lease.saturating_sub(1);
        }
        self.belief = self.belief.saturating_sub(1);
        self.confirmed = self.confirmed.saturating_sub(1);
        // A call that is as old as the TTL would prove nothing, so the client gives it up.
        self.call = self.call.and_then(|call| {
            let age = call.age + 1;
            (age < TTL).then_some(Call { age, ..call })
        });
    }

    /// Commits a pending revoke. Returns false if there is none.
    fn commit_revoke(&mut self) -> bool {
        if self.is_revoke_pending {
            self.log.push(None);
        }
        std::mem::take(&mut self.is_revoke_pending)
    }

    fn send_range(&mut self, model: &LeaseModel) -> Option<()> {
        let call = self.take_call(Step::Renewed)?;
        if model.makes(LeaseMistake::TrustAnswer) {
            self.confirm(model, call);
            return Some(());
        }
        let restarts = model.makes(LeaseMistake::CountFromAnswer);
        self.call = Some(Call {
            step: Step::Reading,
            age: if restarts { 0 } else { call.age },
            // Only the newest leader chooses the index, because it first asks a quorum whether it still leads.
            index: self.log.len(),
            ..call
        });
        Some(())
    }

    /// Ends a confirmed call. It proves the lease if the client believes in it, or if it follows another such call.
    fn confirm(&mut self, model: &LeaseModel, call: Call) {
        let rest = TTL - call.age;
        if self.belief > 0 || self.confirmed > 0 || model.makes(LeaseMistake::TrustFirst) {
            self.belief = rest;
            self.proved_in = call.term;
        }
        self.confirmed = rest;
    }
}

impl LeaseModel {
    fn makes(&self, mistake: LeaseMistake) -> bool {
        self.0 == Some(mistake)
    }
}

impl Model for LeaseModel {
    type State = LeaseState;
    type Action = LeaseAction;

    fn init_states(&self) -> Vec<LeaseState> {
        vec![LeaseState {
            log: vec![Some(0)],
            members: array::from_fn(|at| Member {
                term: 1,
                applied: 1,
                lease: if at == 0 { TTL } else { 0 },
            }),
            is_revoke_pending: false,
            call: None,
            belief: TTL,
            confirmed: TTL,
            proved_in: 0,
        }]
    }

    fn actions(&self, _: &LeaseState, actions: &mut Vec<LeaseAction>) {
        use LeaseAction::*;
        actions.extend([
            Tick,
            CommitRevoke,
            LoseRevoke,
            CheckLease,
            RenewLease,
            SendRange,
        ]);
        for at in 0..MEMBERS {
            actions.extend([Elect(at), LearnTerm(at), Apply(at), DecideToRevoke(at)]);
            actions.extend([SendKeepAlive(at), AnswerRange(at)]);
        }
    }

    fn next_state(&self, state: &LeaseState, action: LeaseAction) -> Option<LeaseState> {
        let mut next = state.clone();
        next.apply(self, action).map(|()| next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LEASE, |_, state: &LeaseState| {
                let is_revoked = state.is_revoke_pending || state.log.contains(&None);
                state.belief == 0 || !is_revoked
            }),
            Property::sometimes(
                "reached: a proof outlives its term",
                |_, state: &LeaseState| {
                    state.belief > 0 && (1..state.newest_term()).contains(&state.proved_in)
                },
            ),
            Property::sometimes("reached: the key is deleted", |_, state: &LeaseState| {
                state.log.contains(&None)
            }),
        ]
    }
}

/// Checks all states breadth-first. Ends at the first violation.
pub fn check_lease(mistake: Option<LeaseMistake>) -> Outcome {
    let start = Instant::now();
    let checker = LeaseModel(mistake)
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    outcome(&checker, start, |path| {
        let last = format!("so the state is: {:?}", path.last_state());
        let steps = path.into_actions().into_iter();
        let steps = steps.map(|action| format!("{action:?}"));
        steps.chain([last]).collect()
    })
}
