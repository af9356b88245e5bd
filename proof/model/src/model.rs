//! [`QueueModel`]: the states of the protocol and the actions between them, for stateright.

use stateright::{Model, Property};

use crate::client::{Client, Phase};
use crate::config::{Budgets, Config, StoreKind};
use crate::properties;
use crate::queue::{Name, Queue, ReleaseMarker};

/// The protocol under one configuration.
#[derive(Clone, Copy, Debug)]
pub struct QueueModel(pub Config);

/// The store, the clients, and everything in flight between them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) queue: Queue,
    pub(crate) clients: Vec<Client>,
    /// Faults that may still occur.
    pub(crate) budgets: Budgets,
    /// The newest granted token.
    pub(crate) newest_token: u8,
    pub(crate) flaws: Flaws,
}

/// Violations that are visible in a step but not in a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Flaws {
    pub(crate) overtook: bool,
    pub(crate) token_not_newer: bool,
    pub(crate) woke_several: bool,
}

/// A step of the protocol or a fault. Clients are identified by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A client asks for the lock.
    Start(usize),
    /// The store executes the oldest request of a client.
    Serve(usize),
    /// A client receives its oldest reply or event.
    Deliver(usize),
    /// A holder releases the lock.
    Release(usize),
    /// A client reconnects, and learns whether its session has expired.
    Reconnect(usize),
    /// A lagging follower applies all transactions.
    CatchUp(usize),
    /// The stranger removes its entries.
    DismissStranger,
    /// The store executes a change that was sent over an earlier connection.
    ServeStray(usize),
    /// A connection breaks.
    Disconnect(usize),
    /// A lease ends.
    EndLease(usize),
    /// A session expires.
    Expire(usize),
    /// A wait is cancelled.
    Cancel(usize),
    /// An operator deletes the entry at this position of the queue.
    Remove(usize),
    /// A stranger takes the name of the entry at this position, which is the last one.
    TakeOver(usize),
    /// A client's follower falls behind.
    Lag(usize),
    /// The parent of the empty queue is recreated.
    Recreate,
}

impl State {
    /// Returns the steps that happen eventually unless a fault prevents them.
    pub(crate) fn steps(&self, actions: &mut Vec<Action>) {
        for (at, client) in self.clients.iter().enumerate() {
            let connection = &client.connection;
            if connection.is_up && client.phase == Phase::Idle && client.waits_left > 0 {
                actions.push(Action::Start(at));
            }
            if !connection.requests.is_empty() {
                actions.push(Action::Serve(at));
            }
            if !connection.replies.is_empty() {
                actions.push(Action::Deliver(at));
            }
            if client.phase == Phase::Holding {
                actions.push(Action::Release(at));
            }
            if !connection.is_up {
                actions.push(Action::Reconnect(at));
            }
            if connection.view.is_some() {
                actions.push(Action::CatchUp(at));
            }
        }
        if self.queue.entries.iter().any(|entry| entry.owner.is_none()) {
            actions.push(Action::DismissStranger);
        }
    }

    fn faults(&self, config: &Config, actions: &mut Vec<Action>) {
        for at in 0..self.clients.len() {
            self.faults_of(config, at, actions);
        }
        for (place, entry) in self.queue.entries.iter().enumerate() {
            if entry.owner.is_some() && self.budgets.removals > 0 {
                actions.push(Action::Remove(place));
            }
            // A copy ahead of other entries would break any queue of names. At the end it only concerns the owner of
            // the name.
            let is_last = place + 1 == self.queue.entries.len();
            if entry.owner.is_some() && is_last && self.budgets.takeovers > 0 {
                actions.push(Action::TakeOver(place));
            }
        }
        if self.queue.entries.is_empty() && self.budgets.recreations > 0 {
            actions.push(Action::Recreate);
        }
    }

    fn faults_of(&self, config: &Config, at: usize, actions: &mut Vec<Action>) {
        let (client, budgets) = (&self.clients[at], &self.budgets);
        if !client.connection.strays.is_empty() {
            actions.push(Action::ServeStray(at));
        }
        // An idle client has nothing to lose.
        if client.phase == Phase::Idle {
            return;
        }
        if budgets.disconnects > 0 && client.connection.is_up {
            actions.push(Action::Disconnect(at));
        }
        if budgets.lapses > 0 && (client.is_lease_valid || client.is_touched) {
            actions.push(Action::EndLease(at));
        }
        if budgets.expiries > 0 && self.may_expire(config, at) {
            actions.push(Action::Expire(at));
        }
        if budgets.cancellations > 0 && client.is_waiting() {
            actions.push(Action::Cancel(at));
        }
        let may_lag = config.store == StoreKind::Ensemble && client.connection.view.is_none();
        if budgets.lags > 0 && may_lag && client.is_waiting() {
            actions.push(Action::Lag(at));
        }
    }

    pub(crate) fn apply(&mut self, config: &Config, action: Action) {
        match action {
            Action::Start(at) => self.start(config, at),
            Action::Serve(at) => self.serve(config, at),
            Action::Deliver(at) => self.deliver(config, at),
            Action::Release(at) => self.release(at),
            Action::Reconnect(at) => self.reconnect(config, at),
            Action::CatchUp(at) => self.catch_up(config, at),
            Action::DismissStranger => self.dismiss_stranger(config),
            Action::ServeStray(at) => self.serve_stray(config, at),
            Action::Disconnect(at) => {
                self.budgets.disconnects -= 1;
                self.clients[at].connection.break_off();
            }
            Action::EndLease(at) => {
                self.budgets.lapses -= 1;
                self.end_lease(at);
            }
            Action::Expire(at) => {
                self.budgets.expiries -= 1;
                self.expire(config, at);
            }
            Action::Cancel(at) => {
                self.budgets.cancellations -= 1;
                self.cancel(config, at);
            }
            Action::Remove(place) => {
                self.budgets.removals -= 1;
                self.remove_by_force(config, self.name_at(place));
            }
            Action::TakeOver(place) => {
                self.budgets.takeovers -= 1;
                self.take_over(config, self.name_at(place));
            }
            Action::Lag(at) => {
                self.budgets.lags -= 1;
                self.clients[at].connection.view = Some(Box::new(self.queue.clone()));
            }
            Action::Recreate => {
                self.budgets.recreations -= 1;
                self.recreate();
            }
        }
    }

    fn name_at(&self, place: usize) -> Name {
        self.queue.entries[place].name
    }
}

impl Model for QueueModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients = (0..self.0.clients).map(|client| Client::new(client, self.0.rounds));
        let mut queue = Queue::new();
        // The marker is from a parent that does not exist here, of a queue that has advanced further.
        queue.marker = self.0.begins_as_copy.then_some(ReleaseMarker {
            parent: u8::MAX,
            released: u8::MAX,
        });
        vec![State {
            queue,
            clients: clients.collect(),
            budgets: self.0.budgets,
            newest_token: 0,
            flaws: Flaws::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.steps(actions);
        state.faults(&self.0, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.apply(&self.0, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all(&self.0)
    }
}
