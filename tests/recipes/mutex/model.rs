//! Random operations of several clients, one after the other, beside a model of the mutex: a line
//! whose head holds.

use lockkeeper::FencingGate;
use proptest::prelude::*;

use super::*;
use crate::modelling::{check, labels};
use crate::support::Env;

const CLIENTS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Wait {
        client: usize,
        limit: Option<usize>,
        unheard: Option<On>,
    },
    Try {
        client: usize,
        synced: bool,
    },
    /// A wait that gives up after so many polls, or when it stands in the queue.
    Cancel {
        client: usize,
        polls: usize,
        unheard: Option<On>,
    },
    /// A wait that gives up after a moment, unless the lock is free.
    TimeOut {
        client: usize,
    },
    /// Whoever stands at this place leaves: the holder releases, one who waits gives up.
    Leave {
        place: usize,
        unheard: bool,
    },
    Drop {
        place: usize,
    },
    KeepAlive {
        unheard: bool,
    },
    /// An administrator deletes the entry at this place.
    Revoke {
        place: usize,
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
    let place = || 0..6_usize;
    let limit = || prop::option::weighted(0.3, 0..4_usize);
    let unheard = || prop::bool::weighted(0.3);
    let lost = || prop::option::weighted(0.3, Just(On::Enqueue));
    prop_oneof![
        8 => (client(), limit(), lost())
            .prop_map(|(client, limit, unheard)| Operation::Wait { client, limit, unheard }),
        2 => (client(), any::<bool>())
            .prop_map(|(client, synced)| Operation::Try { client, synced }),
        2 => (client(), 1..5_usize, lost())
            .prop_map(|(client, polls, unheard)| Operation::Cancel { client, polls, unheard }),
        1 => client().prop_map(|client| Operation::TimeOut { client }),
        6 => (place(), unheard()).prop_map(|(place, unheard)| Operation::Leave { place, unheard }),
        1 => place().prop_map(|place| Operation::Drop { place }),
        1 => unheard().prop_map(|unheard| Operation::KeepAlive { unheard }),
        1 => place().prop_map(|place| Operation::Revoke { place }),
        1 => client().prop_map(|client| Operation::Expire { client }),
        1 => client().prop_map(|client| Operation::Reconnect { client }),
    ]
}

enum State {
    Waiting(Waiter),
    Holding(Guard),
}

/// One who stands in the line, as the model knows it.
struct Standing {
    client: usize,
    label: String,
    state: State,
}

/// The model, and what it is compared with.
struct Scene {
    world: World,
    mutexes: Vec<Mutex>,
    line: Vec<Standing>,
    gate: FencingGate,
    stood: usize,
}

impl Scene {
    async fn new(env: Env) -> Self {
        let world = World::new(env).await;
        // One that had to make it first might spend its loss on that.
        world.make(LOCK).await;
        let mut mutexes = Vec::new();
        for _ in 0..CLIENTS {
            mutexes.push(world.mutex().await);
        }
        Self {
            world,
            mutexes,
            line: Vec::new(),
            gate: FencingGate::default(),
            stood: 0,
        }
    }

    async fn carry_out(&mut self, operation: Operation) {
        match operation {
            Operation::Wait {
                client,
                limit,
                unheard,
            } => self.wait(client, limit, unheard).await,
            Operation::Try { client, synced } => self.attempt(client, synced).await,
            Operation::Cancel {
                client,
                polls,
                unheard,
            } => self.cancel(client, polls, unheard).await,
            Operation::TimeOut { client } => self.time_out(client).await,
            Operation::Leave { place, unheard } => self.leave(place, unheard).await,
            Operation::Drop { place } => {
                if place < self.line.len() {
                    match self.line.remove(place).state {
                        State::Waiting(waiter) => waiter.abort(),
                        State::Holding(guard) => drop(guard),
                    }
                }
            }
            Operation::KeepAlive { unheard } => {
                if let Some(Standing { client, state, .. }) = self.line.first()
                    && let State::Holding(guard) = state
                {
                    self.lose_reply(*client, unheard.then_some(On::SetData));
                    guard.keep_alive().await.unwrap();
                }
            }
            Operation::Revoke { place } => self.revoke(place).await,
            Operation::Expire { client } => self.expire(client).await,
            Operation::Reconnect { client } => {
                let client = self.mutexes[client].client();
                self.world.disconnect(client);
                self.world.reconnect(client);
            }
        }
    }

    fn lose_reply(&self, client: usize, on: Option<On>) {
        if let Some(on) = on {
            self.world.lose_reply(self.mutexes[client].client(), on);
        }
    }

    fn options(&mut self) -> (String, LockOptions) {
        self.stood += 1;
        let label = self.stood.to_string();
        (label.clone(), LockOptions::new().label(label))
    }

    async fn wait(&mut self, client: usize, limit: Option<usize>, unheard: Option<On>) {
        let (label, mut options) = self.options();
        self.lose_reply(client, unheard);
        let ahead = self.line.len();
        if let Some(limit) = limit {
            options = options.queue_limit(limit);
            if ahead > limit {
                let refusal = self.mutexes[client].lock_with(options).await.unwrap_err();
                let path = path(LOCK);
                assert_eq!(refusal, LockError::QueueFull { path, ahead, limit });
                return;
            }
        }
        let waiter = self
            .world
            .queue_up_with(&self.mutexes[client], options)
            .await;
        self.line.push(Standing {
            client,
            label,
            state: State::Waiting(waiter),
        });
    }

    async fn attempt(&mut self, client: usize, synced: bool) {
        let mutex = &self.mutexes[client];
        if synced {
            let guard = mutex
                .try_lock_with(LockOptions::new().synced())
                .await
                .unwrap();
            assert_eq!(guard.is_some(), self.line.is_empty());
            return;
        }
        let (label, options) = self.options();
        let guard = self.mutexes[client].try_lock_with(options).await.unwrap();
        assert_eq!(guard.is_some(), self.line.is_empty());
        if let Some(guard) = guard {
            self.line.push(Standing {
                client,
                label,
                state: State::Holding(guard),
            });
        }
    }

    async fn cancel(&mut self, client: usize, polls: usize, unheard: Option<On>) {
        let before = self.world.children().await;
        self.lose_reply(client, unheard);
        let observing = self.world.observing().await;
        let joined = |names: &[String]| names.iter().any(|name| !before.contains(name));
        tokio::select! {
            biased;
            _ = polled(self.mutexes[client].lock(), polls) => {}
            // Nothing more would wake it.
            () = until(&observing, LOCK, joined) => {}
        }
        self.arrive(client).await;
    }

    /// Waits until what this client has sent has been carried out: an entry that is given up may still be on
    /// its way, and nobody else can see that.
    async fn arrive(&self, client: usize) {
        let session = self.mutexes[client].client().current_session();
        while let Err(Error::ConnectionLoss) = session.exists(&path(LOCK)).await {}
    }

    async fn time_out(&mut self, client: usize) {
        let outcome = self.mutexes[client]
            .lock_timeout(Duration::from_millis(2))
            .await;
        match outcome {
            Ok(_) => assert!(self.line.is_empty(), "granted, and another holds"),
            Err(LockError::Timeout { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        self.arrive(client).await;
    }

    async fn leave(&mut self, place: usize, unheard: bool) {
        if place >= self.line.len() {
            return;
        }
        let standing = self.line.remove(place);
        match standing.state {
            State::Waiting(waiter) => waiter.abort(),
            State::Holding(guard) => {
                self.lose_reply(standing.client, unheard.then_some(On::Any));
                guard.release().await.unwrap();
            }
        }
    }

    async fn revoke(&mut self, place: usize) {
        if place >= self.line.len() {
            return;
        }
        let entry = queue(&self.world.observer, LOCK).await.unwrap();
        self.world.revoke(&entry[place].path).await;
        match self.line.remove(place).state {
            State::Waiting(waiter) => {
                // Who waits looks for itself when the one ahead has gone.
                for standing in self.line.drain(..place) {
                    match standing.state {
                        State::Waiting(waiter) => waiter.abort(),
                        State::Holding(guard) => guard.release().await.unwrap(),
                    }
                }
                let removed = refused(waiter).await;
                assert!(
                    matches!(removed, LockError::EntryDeleted { .. }),
                    "{removed}"
                );
            }
            State::Holding(guard) => assert_eq!(guard.lost().await, LostReason::Revoked),
        }
    }

    async fn expire(&mut self, client: usize) {
        let expired = self.mutexes[client].client();
        self.world.end_session(expired).await;
        for standing in self
            .line
            .extract_if(.., |standing| standing.client == client)
        {
            match standing.state {
                State::Waiting(waiter) => {
                    let refusal = refused(waiter).await;
                    assert!(refusal.is_session_end(), "{refusal}");
                }
                State::Holding(guard) => {
                    assert_eq!(guard.lost().await, LostReason::SessionExpired);
                    assert!(!guard.is_held());
                }
            }
        }
        // The next wait opens another session; here, so that it can be told what to lose.
        expired.session().await.unwrap();
    }

    /// What the store has come to is what the model says.
    async fn compare(&mut self) {
        if let Some(standing) = self.line.first_mut()
            && let State::Waiting(waiter) = &mut standing.state
        {
            let guard = waiter.await.unwrap().unwrap();
            assert_eq!(guard.metadata().label.as_ref(), Some(&standing.label));
            assert!(self.gate.newest() < Some(guard.fencing_token()));
            standing.state = State::Holding(guard);
        }
        self.world.until_count(self.line.len()).await;
        let expected: Vec<_> = self.line.iter().map(|other| other.label.clone()).collect();
        assert_eq!(labels(&self.world).await, expected);
        for (place, standing) in self.line.iter().enumerate() {
            match &standing.state {
                State::Waiting(waiter) => assert!(!waiter.is_finished(), "out of turn"),
                State::Holding(guard) => {
                    assert_eq!(place, 0);
                    assert!(guard.is_held());
                    self.gate.admit(guard.fencing_token()).unwrap();
                }
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
fn the_mutex_does_what_its_model_does_in_memory() {
    check(100, operation(), Env::memory, follow);
}

#[cfg(feature = "file")]
#[test]
fn the_mutex_does_what_its_model_does_in_a_folder() {
    check(15, operation(), Env::file, follow);
}

#[cfg(all(feature = "file", feature = "server", feature = "zookeeper"))]
#[test]
fn the_mutex_does_what_its_model_does_on_a_served_store() {
    check(10, operation(), Env::served, follow);
}

#[cfg(feature = "zookeeper")]
#[test]
fn the_mutex_does_what_its_model_does_on_zookeeper() {
    check(10, operation(), Env::zookeeper, follow);
}
