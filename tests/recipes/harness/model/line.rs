//! The model of a recipe with one queue: the first contenders hold, the others wait.

use std::ops::Range;

use lockkeeper::testing::RequestKind;
use lockkeeper::{Client, FencingGate, Guard, LockError, LostReason};
use proptest::prelude::*;
use testkit::Env;
use tokio::task::JoinHandle;

use super::CLIENTS;
use crate::common::*;

pub(crate) trait Queued: Clone + 'static {
    /// Kind of a contender, for example a side of the lock.
    type Kind: Copy + std::fmt::Debug + 'static;
    type Held: Send + 'static;

    fn open(client: &Client) -> Self;

    fn client(&self) -> &Client;

    fn wait(
        self,
        kind: Self::Kind,
        label: String,
    ) -> impl Future<Output = Result<Self::Held, LockError>> + Send + 'static;

    async fn attempt(
        &self,
        kind: Self::Kind,
        label: String,
    ) -> Result<Option<Self::Held>, LockError>;

    fn guard(held: &Self::Held) -> &Guard;

    async fn release(held: Self::Held) -> Result<(), LockError>;

    /// Returns the label that a holder shows.
    fn label(held: &Self::Held) -> Option<String> {
        Self::guard(held).metadata().label.clone()
    }

    async fn labels(world: &World) -> Vec<String> {
        super::labels(world).await
    }

    /// Returns true if several contenders can hold this together.
    fn is_shared(_kind: Self::Kind) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<K> {
    /// Joins the line. The reply to the create may be lost.
    Wait {
        client: usize,
        kind: K,
        unheard: bool,
    },
    Try {
        client: usize,
        kind: K,
    },
    /// The contender at this place releases or gives up. The reply to a release may be lost.
    Leave {
        place: usize,
        unheard: bool,
    },
    /// Like `Leave`, but a holder is dropped.
    Drop {
        place: usize,
    },
    Expire {
        client: usize,
    },
    Reconnect {
        client: usize,
    },
}

pub(crate) fn wait<K: std::fmt::Debug>(
    kind: impl Strategy<Value = K>,
    unheard: f64,
) -> impl Strategy<Value = Step<K>> {
    (0..CLIENTS, kind, prop::bool::weighted(unheard)).prop_map(|(client, kind, unheard)| {
        Step::Wait {
            client,
            kind,
            unheard,
        }
    })
}

pub(crate) fn attempt<K: std::fmt::Debug>(
    kind: impl Strategy<Value = K>,
) -> impl Strategy<Value = Step<K>> {
    (0..CLIENTS, kind).prop_map(|(client, kind)| Step::Try { client, kind })
}

pub(crate) fn leave<K: std::fmt::Debug>(
    place: Range<usize>,
    unheard: f64,
) -> impl Strategy<Value = Step<K>> {
    (place, prop::bool::weighted(unheard))
        .prop_map(|(place, unheard)| Step::Leave { place, unheard })
}

pub(crate) fn drop_at<K: std::fmt::Debug>(place: Range<usize>) -> impl Strategy<Value = Step<K>> {
    place.prop_map(|place| Step::Drop { place })
}

pub(crate) fn expire<K: std::fmt::Debug>() -> impl Strategy<Value = Step<K>> {
    (0..CLIENTS).prop_map(|client| Step::Expire { client })
}

pub(crate) fn reconnect<K: std::fmt::Debug>() -> impl Strategy<Value = Step<K>> {
    (0..CLIENTS).prop_map(|client| Step::Reconnect { client })
}

pub(crate) enum State<H> {
    Waiting(JoinHandle<Result<H, LockError>>),
    Holding(H),
}

pub(crate) struct Standing<R: Queued> {
    pub(crate) client: usize,
    pub(crate) kind: R::Kind,
    pub(crate) label: String,
    pub(crate) state: State<R::Held>,
}

pub(crate) struct Line<R: Queued> {
    pub(crate) world: World,
    pub(crate) recipes: Vec<R>,
    pub(crate) standing: Vec<Standing<R>>,
    gate: FencingGate,
    stood: usize,
}

impl<R: Queued> Line<R> {
    pub(crate) async fn new(env: Env) -> Self {
        let world = World::new(env).await;
        let clients = super::clients(&world).await;
        Self {
            world,
            recipes: clients.iter().map(R::open).collect(),
            standing: Vec::new(),
            gate: FencingGate::default(),
            stood: 0,
        }
    }

    pub(crate) async fn carry_out(&mut self, step: Step<R::Kind>) {
        match step {
            Step::Wait {
                client,
                kind,
                unheard,
            } => {
                let label = self.next_label();
                let wait = self.recipes[client].clone().wait(kind, label.clone());
                let lost = unheard.then_some(RequestKind::Enqueue);
                self.join(client, kind, label, lost, wait).await;
            }
            Step::Try { client, kind } => {
                let label = self.next_label();
                let attempt = self.recipes[client].attempt(kind, label.clone()).await;
                self.tried(client, kind, label, attempt.unwrap());
            }
            Step::Leave { place, unheard } => self.leave(place, unheard).await,
            Step::Drop { place } => drop(self.take(place)),
            Step::Expire { client } => self.expire(client).await,
            Step::Reconnect { client } => {
                let client = self.recipes[client].client();
                self.world.disconnect(client);
                self.world.reconnect(client);
            }
        }
    }

    pub(crate) fn lose_reply(&self, client: usize, on: Option<RequestKind>) {
        if let Some(on) = on {
            self.world.lose_reply(self.recipes[client].client(), on);
        }
    }

    pub(crate) fn next_label(&mut self) -> String {
        self.stood += 1;
        self.stood.to_string()
    }

    /// Starts a wait, and adds the contender to the model once its entry exists.
    pub(crate) async fn join(
        &mut self,
        client: usize,
        kind: R::Kind,
        label: String,
        lost: Option<RequestKind>,
        wait: impl Future<Output = Result<R::Held, LockError>> + Send + 'static,
    ) {
        if lost.is_some() {
            // Otherwise creating the parent might use up the loss.
            self.world.make(LOCK).await;
        }
        self.lose_reply(client, lost);
        let state = State::Waiting(self.world.queue_up_at(LOCK, wait).await);
        self.standing.push(Standing {
            client,
            kind,
            label,
            state,
        });
    }

    /// Compares the outcome of a try with the model.
    pub(crate) fn tried(
        &mut self,
        client: usize,
        kind: R::Kind,
        label: String,
        held: Option<R::Held>,
    ) {
        let has_turn = self.has_turn(kind, self.standing.len());
        assert_eq!(held.is_some(), has_turn, "a try of {kind:?}");
        if let Some(held) = held {
            self.standing.push(Standing {
                client,
                kind,
                label,
                state: State::Holding(held),
            });
        }
    }

    /// The model's only rule: returns true if a contender at this place holds.
    pub(crate) fn has_turn(&self, kind: R::Kind, place: usize) -> bool {
        let mut ahead = self.standing[..place].iter();
        match R::is_shared(kind) {
            true => ahead.all(|other| R::is_shared(other.kind)),
            false => ahead.len() == 0,
        }
    }

    /// Removes a contender from the line. A waiter gives up.
    fn take(&mut self, place: usize) -> Option<(usize, R::Held)> {
        if place >= self.standing.len() {
            return None;
        }
        let standing = self.standing.remove(place);
        match standing.state {
            State::Waiting(waiter) => {
                waiter.abort();
                None
            }
            State::Holding(held) => Some((standing.client, held)),
        }
    }

    pub(crate) async fn leave(&mut self, place: usize, unheard: bool) {
        if let Some((client, held)) = self.take(place) {
            self.lose_reply(client, unheard.then_some(RequestKind::Any));
            R::release(held).await.unwrap();
        }
    }

    async fn expire(&mut self, client: usize) {
        let expired = self.recipes[client].client();
        self.world.end_session(expired).await;
        let gone = self.standing.extract_if(.., |one| one.client == client);
        for standing in gone {
            match standing.state {
                State::Waiting(waiter) => {
                    let refusal = waiter.await.unwrap().err().expect("its session has ended");
                    assert!(refusal.is_session_end(), "{refusal}");
                }
                State::Holding(held) => {
                    let guard = R::guard(&held);
                    assert_eq!(guard.lost().await, LostReason::SessionExpired);
                    assert!(!guard.is_held());
                }
            }
        }
        // Opens the next session here, before a fault is set for it.
        expired.session().await.unwrap();
    }

    /// Waits until all contenders whose turn it is hold, and checks that the queue equals the line.
    pub(crate) async fn agree(&mut self) {
        for place in 0..self.standing.len() {
            let kind = self.standing[place].kind;
            let has_turn = self.has_turn(kind, place);
            let standing = &mut self.standing[place];
            if has_turn && let State::Waiting(waiter) = &mut standing.state {
                let held = waiter.await.unwrap().unwrap();
                assert_eq!(R::label(&held).as_ref(), Some(&standing.label));
                if !R::is_shared(kind) {
                    let token = R::guard(&held).fencing_token();
                    assert!(self.gate.newest() < Some(token), "tokens only grow");
                }
                standing.state = State::Holding(held);
            }
        }
        self.world.until_count(self.standing.len()).await;
        let expected: Vec<_> = self.standing.iter().map(|one| one.label.clone()).collect();
        assert_eq!(R::labels(&self.world).await, expected);
        for place in 0..self.standing.len() {
            let kind = self.standing[place].kind;
            let has_turn = self.has_turn(kind, place);
            match &self.standing[place].state {
                State::Waiting(waiter) => assert!(!waiter.is_finished(), "out of turn"),
                State::Holding(held) => {
                    assert!(has_turn, "out of turn");
                    let guard = R::guard(held);
                    assert!(guard.is_held());
                    let token = guard.fencing_token();
                    let admitted = match R::is_shared(kind) {
                        true => self.gate.admit_shared(token),
                        false => self.gate.admit(token),
                    };
                    admitted.unwrap();
                }
            }
        }
    }

    pub(crate) async fn end(mut self) {
        for standing in self.standing.drain(..) {
            if let State::Waiting(waiter) = standing.state {
                waiter.abort();
            }
        }
        self.world.until_count(0).await;
    }
}
