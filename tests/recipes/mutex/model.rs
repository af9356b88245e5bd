//! Compares the mutex with its model, a queue whose head holds.

use proptest::prelude::*;
use testkit::Env;

use super::*;
use crate::harness::model::{
    CLIENTS, Line, Model, Queued, State, Step, drop_at, expire, leave, model_tests, reconnect,
};

#[derive(Clone, Copy, Debug)]
enum Operation {
    Line(Step<()>),
    Wait {
        client: usize,
        limit: Option<usize>,
        unheard: Option<RequestKind>,
    },
    Try {
        client: usize,
        synced: bool,
    },
    /// A wait that gives up after this many polls, or when it is in the queue.
    Cancel {
        client: usize,
        polls: usize,
        unheard: Option<RequestKind>,
    },
    /// A wait that soon gives up unless the lock is free.
    TimeOut {
        client: usize,
    },
    KeepAlive {
        unheard: bool,
    },
    /// An administrator deletes the entry at this place.
    Revoke {
        place: usize,
    },
}

impl Queued for Mutex {
    type Kind = ();
    type Held = Guard;

    fn open(client: &Client) -> Self {
        Self::new(client, LOCK).unwrap()
    }

    fn client(&self) -> &Client {
        self.client()
    }

    async fn wait(self, (): (), label: String) -> Result<Guard, LockError> {
        self.lock_with(LockOptions::new().label(label)).await
    }

    async fn attempt(&self, (): (), label: String) -> Result<Option<Guard>, LockError> {
        self.try_lock_with(LockOptions::new().label(label)).await
    }

    fn guard(held: &Guard) -> &Guard {
        held
    }

    async fn release(held: Guard) -> Result<(), LockError> {
        held.release().await
    }
}

struct Scene {
    line: Line<Mutex>,
}

impl Model for Scene {
    type Operation = Operation;

    fn operation() -> impl Strategy<Value = Operation> {
        let client = || 0..CLIENTS;
        let limit = || prop::option::weighted(0.3, 0..4_usize);
        let lost = || prop::option::weighted(0.3, Just(RequestKind::Enqueue));
        let step = prop_oneof![
            6 => leave(0..6, 0.3),
            1 => drop_at(0..6),
            1 => expire(),
            1 => reconnect(),
        ];
        prop_oneof![
            8 => (client(), limit(), lost())
                .prop_map(|(client, limit, unheard)| Operation::Wait { client, limit, unheard }),
            2 => (client(), any::<bool>())
                .prop_map(|(client, synced)| Operation::Try { client, synced }),
            2 => (client(), 1..5_usize, lost())
                .prop_map(|(client, polls, unheard)| Operation::Cancel { client, polls, unheard }),
            1 => client().prop_map(|client| Operation::TimeOut { client }),
            1 => prop::bool::weighted(0.3).prop_map(|unheard| Operation::KeepAlive { unheard }),
            1 => (0..6_usize).prop_map(|place| Operation::Revoke { place }),
            9 => step.prop_map(Operation::Line),
        ]
    }

    async fn start(env: Env) -> Self {
        let line = Line::new(env).await;
        // Otherwise creating it might use up a loss.
        line.world.make(LOCK).await;
        Self { line }
    }

    async fn carry_out(&mut self, operation: Operation) {
        match operation {
            Operation::Line(step) => self.line.carry_out(step).await,
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
            Operation::KeepAlive { unheard } => {
                if let Some(head) = self.line.standing.first()
                    && let State::Holding(guard) = &head.state
                {
                    let lost = unheard.then_some(RequestKind::SetData);
                    self.line.lose_reply(head.client, lost);
                    guard.keep_alive().await.unwrap();
                }
            }
            Operation::Revoke { place } => self.revoke(place).await,
        }
    }

    async fn agree(&mut self) {
        self.line.agree().await;
    }

    async fn end(self) {
        self.line.end().await;
    }
}

impl Scene {
    async fn wait(&mut self, client: usize, limit: Option<usize>, unheard: Option<RequestKind>) {
        let label = self.line.next_label();
        let mutex = self.line.recipes[client].clone();
        let mut options = LockOptions::new().label(&*label);
        let ahead = self.line.standing.len();
        if let Some(limit) = limit {
            options = options.queue_limit(limit);
            if ahead > limit {
                self.line.lose_reply(client, unheard);
                let refusal = mutex.lock_with(options).await.unwrap_err();
                let path = path(LOCK);
                assert_eq!(refusal, LockError::QueueFull { path, ahead, limit });
                return;
            }
        }
        let wait = async move { mutex.lock_with(options).await };
        self.line.join(client, (), label, unheard, wait).await;
    }

    async fn attempt(&mut self, client: usize, synced: bool) {
        if !synced {
            return self.line.carry_out(Step::Try { client, kind: () }).await;
        }
        let options = LockOptions::new().synced();
        let guard = self.line.recipes[client]
            .try_lock_with(options)
            .await
            .unwrap();
        assert_eq!(guard.is_some(), self.line.standing.is_empty());
    }

    async fn cancel(&mut self, client: usize, polls: usize, unheard: Option<RequestKind>) {
        let world = &self.line.world;
        let before = world.children().await;
        self.line.lose_reply(client, unheard);
        let observing = world.observing().await;
        tokio::select! {
            biased;
            _ = polled(self.line.recipes[client].lock(), polls) => {}
            // Nothing more would wake it.
            () = until_joined(&observing, LOCK, &before) => {}
        }
        self.arrive(client).await;
    }

    /// Waits until all requests of this client are executed, because a cancelled entry may still be in flight,
    /// invisible to other clients.
    async fn arrive(&self, client: usize) {
        until_carried_out(self.line.recipes[client].client(), &path(LOCK)).await;
    }

    async fn time_out(&mut self, client: usize) {
        let limit = Duration::from_millis(2);
        match self.line.recipes[client].lock_timeout(limit).await {
            Ok(_) => assert!(self.line.standing.is_empty(), "granted, and another holds"),
            Err(LockError::Timeout { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        self.arrive(client).await;
    }

    async fn revoke(&mut self, place: usize) {
        let line = &mut self.line;
        if place >= line.standing.len() {
            return;
        }
        let entry = queue(&line.world.observer, LOCK).await.unwrap();
        line.world.revoke(&entry[place].path).await;
        match line.standing.remove(place).state {
            State::Waiting(waiter) => {
                // A waiter looks for itself when the one ahead has left.
                for _ in 0..place {
                    line.leave(0, false).await;
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
}

model_tests! {
    Scene,
    memory: the_mutex_does_what_its_model_does_in_memory(100),
    file: the_mutex_does_what_its_model_does_in_a_folder(15),
    served: the_mutex_does_what_its_model_does_on_a_served_store(10),
    zookeeper: the_mutex_does_what_its_model_does_on_zookeeper(10),
    lent: the_mutex_does_what_its_model_does_with_a_lent_client(3),
    foreign: the_mutex_does_what_its_model_does_for_a_foreign_client(4),
}
