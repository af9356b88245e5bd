//! Compares the re-entrant mutex with its model: a queue of owners whose head holds, and for each owner the tasks that
//! have entered or want to.

use std::collections::VecDeque;

use lockkeeper::{FencingGate, ReentrantGuard};
use proptest::prelude::*;
use testkit::Env;
use tokio::task::JoinHandle;

use super::*;
use crate::harness::model::{CLIENTS, Model, clients, labels, model_tests};

/// The first and the last have the same client.
const OWNERS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Enter {
        owner: usize,
        unheard: bool,
    },
    Try {
        owner: usize,
    },
    Leave {
        owner: usize,
        entry: usize,
        end: End,
    },
    Cancel {
        owner: usize,
        entrant: usize,
    },
    /// An administrator deletes the holder's entry.
    Revoke,
    Expire {
        client: usize,
    },
    Reconnect {
        client: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum End {
    Released,
    /// Its reply is lost.
    Unheard,
    Dropped,
}

type Entering = JoinHandle<Result<ReentrantGuard, LockError>>;

/// An owner in the model. It has a place in the queue while one of its tasks wants to enter or is inside a lock that is
/// not lost.
struct Player {
    owner: Owner,
    client: usize,
    /// Tasks that want to enter, with their labels. The first is in the queue.
    entrants: VecDeque<(String, Entering)>,
    entries: Vec<ReentrantGuard>,
    /// The label of the task that entered first.
    label: String,
    lost: Option<LostReason>,
}

impl Player {
    fn holds(&self) -> bool {
        !self.entries.is_empty() && self.lost.is_none()
    }

    fn label(&self) -> String {
        let (label, _) = self.entrants.front().expect("it stands in the line");
        label.clone()
    }
}

struct Scene {
    world: World,
    clients: Vec<Client>,
    players: Vec<Player>,
    /// The owners in queue order.
    line: Vec<usize>,
    gate: FencingGate,
    stood: usize,
}

impl Model for Scene {
    type Operation = Operation;

    fn operation() -> impl Strategy<Value = Operation> {
        let client = || 0..CLIENTS;
        let owner = || 0..OWNERS;
        let end = prop_oneof![Just(End::Released), Just(End::Unheard), Just(End::Dropped)];
        prop_oneof![
            10 => (owner(), prop::bool::weighted(0.2))
                .prop_map(|(owner, unheard)| Operation::Enter { owner, unheard }),
            2 => owner().prop_map(|owner| Operation::Try { owner }),
            10 => (owner(), 0..4_usize, end)
                .prop_map(|(owner, entry, end)| Operation::Leave { owner, entry, end }),
            3 => (owner(), 0..3_usize)
                .prop_map(|(owner, entrant)| Operation::Cancel { owner, entrant }),
            1 => Just(Operation::Revoke),
            1 => client().prop_map(|client| Operation::Expire { client }),
            1 => client().prop_map(|client| Operation::Reconnect { client }),
        ]
    }

    async fn start(env: Env) -> Self {
        let world = World::new(env).await;
        // Otherwise creating it might use up a loss.
        world.make(LOCK).await;
        let clients = clients(&world).await;
        let players = (0..OWNERS).map(|number| Player {
            owner: ReentrantMutex::new(&clients[number % CLIENTS], LOCK)
                .unwrap()
                .owner(),
            client: number % CLIENTS,
            entrants: VecDeque::new(),
            entries: Vec::new(),
            label: String::new(),
            lost: None,
        });
        Self {
            players: players.collect(),
            world,
            clients,
            line: Vec::new(),
            gate: FencingGate::default(),
            stood: 0,
        }
    }

    async fn carry_out(&mut self, operation: Operation) {
        match operation {
            Operation::Enter { owner, unheard } => self.enter(owner, unheard).await,
            Operation::Try { owner } => self.attempt(owner).await,
            Operation::Leave { owner, entry, end } => self.leave(owner, entry, end).await,
            Operation::Cancel { owner, entrant } => self.cancel(owner, entrant).await,
            Operation::Revoke => self.revoke().await,
            Operation::Expire { client } => self.expire(client).await,
            Operation::Reconnect { client } => {
                self.world.disconnect(&self.clients[client]);
                self.world.reconnect(&self.clients[client]);
            }
        }
    }

    async fn agree(&mut self) {
        if let Some(&head) = self.line.first()
            && !self.players[head].holds()
        {
            let entrants = std::mem::take(&mut self.players[head].entrants);
            let label = entrants[0].0.clone();
            for (_, entering) in entrants {
                let entry = entering.await.unwrap().unwrap();
                self.players[head].entries.push(entry);
            }
            self.granted(head, label);
        }
        self.world.until_count(self.line.len()).await;
        let expected = self.line.iter().enumerate().map(|(place, owner)| {
            let player = &self.players[*owner];
            match place {
                0 => player.label.clone(),
                _ => player.label(),
            }
        });
        assert_eq!(labels(&self.world).await, expected.collect::<Vec<_>>());
        for (number, player) in self.players.iter().enumerate() {
            self.see(player, self.line.first() == Some(&number));
        }
    }

    async fn end(mut self) {
        for player in self.players.drain(..) {
            for (_, entering) in player.entrants {
                entering.abort();
            }
        }
        self.world.until_count(0).await;
    }
}

impl Scene {
    fn next_label(&mut self) -> String {
        self.stood += 1;
        self.stood.to_string()
    }

    async fn enter(&mut self, owner: usize, unheard: bool) {
        let label = self.next_label();
        let player = &mut self.players[owner];
        let options = LockOptions::new().label(&*label);
        if let Some(reason) = player.lost {
            let refusal = player.owner.lock_with(options).await.unwrap_err();
            return assert_eq!(refusal, LockError::Lost(reason));
        }
        if player.holds() {
            let entry = player.owner.lock_with(options).await.unwrap();
            return player.entries.push(entry);
        }
        let is_first = player.entrants.is_empty();
        if is_first && unheard {
            self.world
                .lose_reply(&self.clients[player.client], RequestKind::Enqueue);
        }
        let before = self.world.children().await;
        let owning = player.owner.clone();
        let mut wait = Box::pin(async move { owning.lock_with(options).await });
        // It has its place among the owner's entrants from now on.
        let entering = match polled(tokio::task::unconstrained(&mut wait), 1).await {
            Some(outcome) => tokio::spawn(async { outcome }),
            None => tokio::spawn(wait),
        };
        player.entrants.push_back((label, entering));
        if is_first {
            self.joined(&before).await;
            self.line.push(owner);
        }
    }

    async fn joined(&self, before: &[String]) {
        until_joined(&self.world.observing().await, LOCK, before).await;
    }

    async fn attempt(&mut self, owner: usize) {
        let label = self.next_label();
        let player = &mut self.players[owner];
        let options = LockOptions::new().label(&*label);
        let outcome = player.owner.try_lock_with(options).await;
        if let Some(reason) = player.lost {
            return assert_eq!(outcome.unwrap_err(), LockError::Lost(reason));
        }
        let is_free = self.line.is_empty();
        let entry = outcome.unwrap();
        assert_eq!(entry.is_some(), player.holds() || is_free);
        if let Some(entry) = entry {
            player.entries.push(entry);
        }
        if is_free {
            self.granted(owner, label);
        }
    }

    /// Records the first entry of a new holding.
    fn granted(&mut self, owner: usize, label: String) {
        if !self.line.contains(&owner) {
            self.line.push(owner);
        }
        let token = self.players[owner].entries[0].fencing_token();
        assert!(self.gate.newest() < Some(token), "tokens only grow");
        self.gate.admit(token).unwrap();
        self.players[owner].label = label;
    }

    async fn leave(&mut self, owner: usize, entry: usize, end: End) {
        let player = &mut self.players[owner];
        if entry >= player.entries.len() {
            return;
        }
        let entry = player.entries.remove(entry);
        let is_last = player.entries.is_empty();
        let lost = match is_last {
            true => player.lost.take(),
            false => player.lost,
        };
        if is_last && lost.is_none() {
            self.line.retain(|other| *other != owner);
            if matches!(end, End::Unheard) {
                self.world
                    .lose_reply(&self.clients[player.client], RequestKind::Any);
            }
        }
        if matches!(end, End::Dropped) {
            return drop(entry);
        }
        let outcome = entry.release().await;
        assert_eq!(outcome.err(), lost.map(LockError::Lost));
    }

    async fn cancel(&mut self, owner: usize, entrant: usize) {
        let before = self.world.children().await;
        let entrants = &mut self.players[owner].entrants;
        let Some((_, entering)) = entrants.remove(entrant) else {
            return;
        };
        let others = entrants.len();
        entering.abort();
        assert!(entering.await.unwrap_err().is_cancelled());
        if entrant == 0 {
            self.line.retain(|other| *other != owner);
            if others > 0 {
                self.joined(&before).await;
                self.line.push(owner);
            }
        }
    }

    async fn revoke(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let player = &mut self.players[self.line.remove(0)];
        self.world.revoke(player.entries[0].path()).await;
        assert_eq!(player.entries[0].lost().await, LostReason::Revoked);
        player.lost = Some(LostReason::Revoked);
    }

    async fn expire(&mut self, client: usize) {
        self.world.end_session(&self.clients[client]).await;
        let mut again = Vec::new();
        for (number, player) in self.players.iter_mut().enumerate() {
            if player.client != client || !self.line.contains(&number) {
                continue;
            }
            self.line.retain(|other| *other != number);
            if player.holds() {
                let reason = player.entries[0].lost().await;
                assert_eq!(reason, LostReason::SessionExpired);
                player.lost = Some(reason);
            } else if let Some((_, entering)) = player.entrants.pop_front() {
                let refusal = entering.await.unwrap().unwrap_err();
                assert!(refusal.is_session_end(), "{refusal}");
                if !player.entrants.is_empty() {
                    again.push(number);
                }
            }
        }
        self.rejoined(again).await;
        // Opens the next session here, before a fault is set for it.
        self.clients[client].session().await.unwrap();
    }

    /// If others waited with the refused one, the next of them has joined in a new session. Two owners join in either
    /// order.
    async fn rejoined(&mut self, mut again: Vec<usize>) {
        self.world.until_count(self.line.len() + again.len()).await;
        let found = labels(&self.world).await;
        again.sort_by_key(|owner| {
            let label = self.players[*owner].label();
            found.iter().position(|other| *other == label)
        });
        self.line.extend(again);
    }

    fn see(&self, player: &Player, is_head: bool) {
        let mut entering = player.entrants.iter();
        assert!(entering.all(|(_, entering)| !entering.is_finished()));
        assert_eq!(player.owner.is_held(), is_head);
        assert_eq!(player.holds(), is_head);
        for entry in &player.entries {
            assert_eq!(entry.is_held(), is_head);
            assert_eq!(entry.entries(), player.entries.len());
            assert_eq!(entry.fencing_token(), player.entries[0].fencing_token());
            assert_eq!(entry.metadata().label.as_ref(), Some(&player.label));
        }
    }
}

model_tests! {
    Scene,
    memory: the_reentrant_mutex_does_what_its_model_does_in_memory(150),
    file: the_reentrant_mutex_does_what_its_model_does_in_a_folder(15),
    served: the_reentrant_mutex_does_what_its_model_does_on_a_served_store(12),
    zookeeper: the_reentrant_mutex_does_what_its_model_does_on_zookeeper(12),
    lent: the_reentrant_mutex_does_what_its_model_does_with_a_lent_client(3),
}
