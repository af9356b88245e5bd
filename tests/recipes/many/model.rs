//! Compares batches with their model: after every step exactly the model's holders hold, and no other contender does at
//! any moment in between.

use lockkeeper::{Guard, LockPath, try_lock_many};
use proptest::prelude::*;
use testkit::Env;

use super::*;
use crate::harness::model::{CLIENTS, Model, clients, model_tests};

const LOCKS: [&str; 5] = ["/model/0", "/model/1", "/model/2", "/model/3", "/model/4"];

#[derive(Clone, Debug)]
enum Step {
    /// A client asks for several locks. The answer to the multi may be lost.
    Enter {
        client: usize,
        keys: Vec<usize>,
        is_lost: bool,
    },
    /// A client takes the free ones.
    Try { client: usize, keys: Vec<usize> },
    /// A holder releases.
    Release(usize),
    /// A waiter gives up.
    Cancel(usize),
    /// The store ends a client's session.
    Expire(usize),
}

fn keys() -> impl Strategy<Value = Vec<usize>> {
    let some = proptest::sample::subsequence((0..LOCKS.len()).collect::<Vec<_>>(), 1..4);
    some.prop_shuffle()
}

/// A contender in some queues, in the model and in the store.
struct Place {
    client: usize,
    keys: Vec<usize>,
    state: State,
}

enum State {
    Waiting(Waiting),
    Holding(MultiGuard),
    Taken(Guard),
}

impl Place {
    fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }
}

struct Play {
    world: World,
    clients: Vec<Client>,
    /// In order of arrival, which is the whole model.
    places: Vec<Place>,
}

impl Model for Play {
    type Operation = Step;

    fn operation() -> impl Strategy<Value = Step> {
        let client = 0..CLIENTS;
        prop_oneof![
            6 => (client.clone(), keys(), prop::bool::weighted(0.2))
                .prop_map(|(client, keys, is_lost)| Step::Enter { client, keys, is_lost }),
            2 => (client.clone(), keys()).prop_map(|(client, keys)| Step::Try { client, keys }),
            4 => (0..64_usize).prop_map(Step::Release),
            2 => (0..64_usize).prop_map(Step::Cancel),
            1 => client.prop_map(Step::Expire),
        ]
    }

    async fn start(env: Env) -> Self {
        let world = World::new(env).await;
        let clients = clients(&world).await;
        for lock in LOCKS {
            world.make(lock).await;
        }
        Self {
            world,
            clients,
            places: Vec::new(),
        }
    }

    async fn carry_out(&mut self, step: Step) {
        match step {
            Step::Enter {
                client,
                keys,
                is_lost,
            } => self.enter(client, keys, is_lost).await,
            Step::Try { client, keys } => self.attempt(client, keys).await,
            Step::Release(nth) => self.release(nth).await,
            Step::Cancel(nth) => self.cancel(nth).await,
            Step::Expire(client) => self.expire(client).await,
        }
    }

    /// Checks that no other contender is granted anything in the meantime, and then that the queues equal the model's.
    async fn agree(&mut self) {
        loop {
            let mut is_settled = true;
            for index in 0..self.places.len() {
                let may_hold = self.may_hold(index);
                let State::Waiting(wait) = &mut self.places[index].state else {
                    continue;
                };
                if wait.is_finished() {
                    assert!(may_hold, "granted before its turn");
                    let guard = wait.await.unwrap().unwrap();
                    assert!(guard.is_held());
                    self.places[index].state = State::Holding(guard);
                } else {
                    is_settled &= !may_hold;
                }
            }
            if is_settled {
                break;
            }
            // A round trip, during which the others proceed.
            let session = self.world.observing().await;
            session.exists(&path("/model")).await.unwrap();
            tokio::task::yield_now().await;
        }
        self.see_queues().await;
    }

    async fn end(mut self) {
        while !self.places.is_empty() {
            self.release(0).await;
            self.agree().await;
        }
        self.see_queues().await;
    }
}

impl Play {
    /// The model's rule: the contender that is first at all its locks holds.
    fn may_hold(&self, index: usize) -> bool {
        let earlier = &self.places[..index];
        let keys = &self.places[index].keys;
        earlier
            .iter()
            .all(|other| other.keys.iter().all(|key| !keys.contains(key)))
    }

    fn is_free(&self, key: usize) -> bool {
        self.places.iter().all(|place| !place.keys.contains(&key))
    }

    async fn enter(&mut self, client: usize, keys: Vec<usize>, is_lost: bool) {
        if is_lost {
            self.world
                .lose_reply(&self.clients[client], RequestKind::Multi);
        }
        let names: Vec<_> = keys.iter().map(|key| LOCKS[*key]).collect();
        let waiting = self.world.queue_up_all(&self.clients[client], &names).await;
        let state = State::Waiting(waiting);
        self.places.push(Place {
            client,
            keys,
            state,
        });
    }

    async fn attempt(&mut self, client: usize, keys: Vec<usize>) {
        let names = keys.iter().map(|key| LOCKS[*key]);
        let tried = try_lock_many(&self.clients[client], names).await.unwrap();
        let held: Vec<_> = keys.iter().filter(|key| !self.is_free(**key)).collect();
        let named: Vec<_> = tried.contended.iter().map(LockPath::to_string).collect();
        let expected: Vec<_> = held.iter().map(|key| LOCKS[**key]).collect();
        assert_eq!(
            named, expected,
            "a try takes what is free, and names the rest"
        );
        for (key, guard) in tried.acquired {
            let lock = LOCKS.iter().position(|lock| *lock == key.to_string());
            self.places.push(Place {
                client,
                keys: vec![lock.unwrap()],
                state: State::Taken(guard),
            });
        }
    }

    async fn release(&mut self, nth: usize) {
        let holding = (0..self.places.len()).filter(|index| !self.places[*index].is_waiting());
        let holding: Vec<_> = holding.collect();
        if holding.is_empty() {
            return;
        }
        match self.places.remove(holding[nth % holding.len()]).state {
            State::Holding(guard) => guard.release().await.unwrap(),
            State::Taken(guard) => guard.release().await.unwrap(),
            State::Waiting(_) => unreachable!("it holds"),
        }
    }

    async fn cancel(&mut self, nth: usize) {
        let waiting = (0..self.places.len()).filter(|index| self.places[*index].is_waiting());
        let waiting: Vec<_> = waiting.collect();
        if waiting.is_empty() {
            return;
        }
        if let State::Waiting(wait) = self.places.remove(waiting[nth % waiting.len()]).state {
            wait.abort();
            assert!(wait.await.unwrap_err().is_cancelled());
        }
    }

    async fn expire(&mut self, client: usize) {
        self.world.end_session(&self.clients[client]).await;
        let (ended, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.places)
            .into_iter()
            .partition(|place| place.client == client);
        self.places = rest;
        for place in ended {
            match place.state {
                State::Waiting(wait) => assert!(all_refused(wait).await.is_session_end()),
                State::Holding(guard) => assert!(guard.release().await.is_err()),
                State::Taken(guard) => assert!(guard.release().await.is_err()),
            }
        }
        // The next session exists before the next step sends requests to it.
        self.clients[client].session().await.unwrap();
    }

    async fn see_queues(&self) {
        let session = self.world.observing().await;
        for (key, lock) in LOCKS.iter().enumerate() {
            let places = self.places.iter();
            let count = places.filter(|place| place.keys.contains(&key)).count();
            until(&session, lock, |names| names.len() == count).await;
        }
    }
}

model_tests! {
    Play,
    memory: batches_do_what_their_model_does_in_memory(100),
    file: batches_do_what_their_model_does_in_a_folder(15),
    served: batches_do_what_their_model_does_on_a_served_store(6),
    zookeeper: batches_do_what_their_model_does_on_zookeeper(6),
    lent: batches_do_what_their_model_does_with_a_lent_client(3),
}
