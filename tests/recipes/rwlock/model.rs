//! Random operations of several clients, one after the other, beside a model of the lock: a line in
//! which a reader holds when no writer is ahead of it, and a writer when nobody is.

use lockkeeper::LockError;
use lockkeeper::testing::On;
use proptest::prelude::*;
use tokio::task::JoinHandle;

use super::*;
use crate::modelling::{check, labels};
use crate::support::Env;

const CLIENTS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Wait {
        client: usize,
        side: Side,
        unheard: bool,
    },
    Try {
        client: usize,
        side: Side,
    },
    /// Whoever stands at this place leaves: a holder releases, one who waits gives up.
    Leave {
        place: usize,
        unheard: bool,
    },
    Drop {
        place: usize,
    },
    /// The other side, if it is to be had.
    Convert {
        place: usize,
        unheard: bool,
    },
    Expire {
        client: usize,
    },
    Reconnect {
        client: usize,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    let client = || 0..CLIENTS;
    let place = || 0..8_usize;
    let side = || prop_oneof![3 => Just(Read), 2 => Just(Write)];
    let unheard = || prop::bool::weighted(0.2);
    prop_oneof![
        8 => (client(), side(), unheard())
            .prop_map(|(client, side, unheard)| Operation::Wait { client, side, unheard }),
        2 => (client(), side()).prop_map(|(client, side)| Operation::Try { client, side }),
        5 => (place(), unheard()).prop_map(|(place, unheard)| Operation::Leave { place, unheard }),
        1 => place().prop_map(|place| Operation::Drop { place }),
        6 => (place(), unheard())
            .prop_map(|(place, unheard)| Operation::Convert { place, unheard }),
        1 => client().prop_map(|client| Operation::Expire { client }),
        1 => client().prop_map(|client| Operation::Reconnect { client }),
    ]
}

type Wait = JoinHandle<Result<Had, LockError>>;

enum State {
    Waiting(Wait),
    Holding(Had),
}

/// One who stands in the line, as the model knows it.
struct Standing {
    client: usize,
    side: Side,
    label: String,
    state: State,
}

/// The model, and what it is compared with.
struct Scene {
    world: World,
    locks: Vec<RwLock>,
    line: Vec<Standing>,
    stood: usize,
}

impl Scene {
    async fn new(env: Env) -> Self {
        let world = World::new(env).await;
        let mut locks = Vec::new();
        for _ in 0..CLIENTS {
            locks.push(lock(&world).await);
        }
        Self {
            world,
            locks,
            line: Vec::new(),
            stood: 0,
        }
    }

    async fn carry_out(&mut self, operation: Operation) {
        match operation {
            Operation::Wait {
                client,
                side,
                unheard,
            } => {
                if unheard {
                    // One that has to make the parent first may spend the loss on that.
                    self.world.make(LOCK).await;
                    self.lose_reply(client, On::Enqueue);
                }
                self.wait(client, side).await;
            }
            Operation::Try { client, side } => self.try_to(client, side).await,
            Operation::Leave { place, unheard } => self.leave(place, unheard).await,
            Operation::Drop { place } => {
                if place < self.line.len() {
                    match self.line.remove(place).state {
                        State::Waiting(waiter) => waiter.abort(),
                        State::Holding(had) => drop(had),
                    }
                }
            }
            Operation::Convert { place, unheard } => self.convert(place, unheard).await,
            Operation::Expire { client } => self.expire(client).await,
            Operation::Reconnect { client } => {
                let client = self.locks[client].client();
                self.world.disconnect(client);
                self.world.reconnect(client);
            }
        }
    }

    fn lose_reply(&self, client: usize, on: On) {
        self.world.lose_reply(self.locks[client].client(), on);
    }

    async fn wait(&mut self, client: usize, side: Side) {
        let label = self.next_label();
        let options = LockOptions::new().label(&*label);
        let lock = self.locks[client].clone();
        let before = self.world.children().await;
        let state = State::Waiting(tokio::spawn(async move {
            Ok(match side {
                Read => Had::Reader(lock.read_with(options).await?),
                Write => Had::Writer(lock.write_with(options).await?),
            })
        }));
        let joined = |names: &[String]| names.iter().any(|name| !before.contains(name));
        until(&self.world.observing().await, LOCK, joined).await;
        self.line.push(Standing {
            client,
            side,
            label,
            state,
        });
    }

    fn next_label(&mut self) -> String {
        self.stood += 1;
        self.stood.to_string()
    }

    async fn try_to(&mut self, client: usize, side: Side) {
        let label = self.next_label();
        let options = LockOptions::new().label(&*label);
        let lock = &self.locks[client];
        let had = match side {
            Read => lock.try_read_with(options).await.unwrap().map(Had::Reader),
            Write => lock.try_write_with(options).await.unwrap().map(Had::Writer),
        };
        assert_eq!(
            had.is_some(),
            self.is_free(side, self.line.len()),
            "a try to {side:?}"
        );
        if let Some(had) = had {
            let state = State::Holding(had);
            self.line.push(Standing {
                client,
                side,
                label,
                state,
            });
        }
    }

    /// The model's one rule: whether one at this place has its turn.
    fn is_free(&self, side: Side, place: usize) -> bool {
        let mut ahead = self.line[..place].iter();
        match side {
            Read => ahead.all(|other| other.side == Read),
            Write => ahead.len() == 0,
        }
    }

    async fn leave(&mut self, place: usize, unheard: bool) {
        if place >= self.line.len() {
            return;
        }
        let standing = self.line.remove(place);
        match standing.state {
            State::Waiting(waiter) => waiter.abort(),
            State::Holding(had) => {
                if unheard {
                    self.lose_reply(standing.client, On::Any);
                }
                had.into_guard().release().await.unwrap();
            }
        }
    }

    async fn convert(&mut self, place: usize, unheard: bool) {
        let holds = |standing: &Standing| matches!(standing.state, State::Holding(_));
        if !self.line.get(place).is_some_and(holds) {
            return;
        }
        let is_alone = self.line.len() == 1;
        let standing = self.line.remove(place);
        let State::Holding(had) = standing.state else {
            unreachable!("it was looked at just now")
        };
        if unheard {
            self.lose_reply(standing.client, On::Any);
        }
        let old = had.guard().fencing_token();
        let had = match had {
            Had::Writer(guard) => Had::Reader(guard.downgrade().await.unwrap()),
            Had::Reader(guard) => match guard.try_upgrade().await.unwrap() {
                Upgrade::Upgraded(guard) => {
                    assert!(is_alone, "upgraded beside another");
                    assert!(guard.fencing_token() > old);
                    Had::Writer(guard)
                }
                Upgrade::Refused(guard) => {
                    assert!(!is_alone, "refused, and nobody else is there");
                    Had::Reader(guard)
                }
            },
        };
        let side = match &had {
            Had::Reader(guard) => {
                assert_eq!(guard.fencing_token(), old);
                Read
            }
            Had::Writer(_) => Write,
        };
        let state = State::Holding(had);
        self.line.insert(
            place,
            Standing {
                side,
                state,
                ..standing
            },
        );
    }

    async fn expire(&mut self, client: usize) {
        let expired = self.locks[client].client();
        self.world.end_session(expired).await;
        for standing in self
            .line
            .extract_if(.., |standing| standing.client == client)
        {
            match standing.state {
                State::Waiting(waiter) => {
                    let refusal = waiter.await.unwrap().err().expect("its session has ended");
                    assert!(refusal.is_session_end(), "{refusal}");
                }
                State::Holding(had) => {
                    had.guard().lost().await;
                    assert!(!had.guard().is_held());
                }
            }
        }
        // The next wait opens another session; here, so that it can be told what to lose.
        expired.session().await.unwrap();
    }

    /// What the store has come to is what the model says.
    async fn compare(&mut self) {
        for place in 0..self.line.len() {
            let has_turn = self.is_free(self.line[place].side, place);
            let standing = &mut self.line[place];
            if has_turn && let State::Waiting(waiter) = &mut standing.state {
                let had = waiter.await.unwrap().unwrap();
                assert_eq!(had.guard().metadata().label.as_ref(), Some(&standing.label));
                standing.state = State::Holding(had);
            }
        }
        let count = self.line.len();
        until(&self.world.observing().await, LOCK, |names| {
            names.len() == count
        })
        .await;
        let expected: Vec<_> = self.line.iter().map(|other| other.label.clone()).collect();
        assert_eq!(labels(&self.world).await, expected);
        for standing in &self.line {
            match &standing.state {
                State::Waiting(waiter) => assert!(!waiter.is_finished(), "out of turn"),
                State::Holding(had) => assert!(had.guard().is_held()),
            }
        }
    }
}

async fn follow(env: Env, operations: Vec<Operation>) {
    let mut scene = Scene::new(env).await;
    for operation in operations {
        scene.carry_out(operation).await;
        scene.compare().await;
    }
    for standing in scene.line.drain(..) {
        if let State::Waiting(waiter) = standing.state {
            waiter.abort();
        }
    }
    scene.world.until_count(0).await;
}

#[test]
fn the_lock_does_what_its_model_does_in_memory() {
    check(100, operation(), Env::memory, follow);
}

#[cfg(feature = "file")]
#[test]
fn the_lock_does_what_its_model_does_in_a_folder() {
    check(15, operation(), Env::file, follow);
}

#[cfg(all(feature = "file", feature = "server", feature = "zookeeper"))]
#[test]
fn the_lock_does_what_its_model_does_on_a_served_store() {
    check(10, operation(), Env::served, follow);
}

#[cfg(feature = "zookeeper")]
#[test]
fn the_lock_does_what_its_model_does_on_zookeeper() {
    check(10, operation(), Env::zookeeper, follow);
}
