//! Random operations of several clients, one after the other, beside a model of an election: a line
//! whose head leads.

use lockkeeper::testing::On;
use lockkeeper::{LockMetadata, queue};
use proptest::prelude::*;

use super::*;
use crate::modelling::check;
use crate::support::Env;

const CLIENTS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Stand {
        client: usize,
    },
    /// The same; the reply to its create is lost.
    StandUnheard {
        client: usize,
    },
    /// One who waits gives up.
    GiveUp {
        place: usize,
    },
    Resign,
    /// The leader resigns, and the reply to that is lost.
    ResignUnheard,
    Drop,
    SetData,
    Expire {
        client: usize,
    },
    Reconnect {
        client: usize,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    let client = || 0..CLIENTS;
    prop_oneof![
        6 => client().prop_map(|client| Operation::Stand { client }),
        2 => client().prop_map(|client| Operation::StandUnheard { client }),
        2 => (0..8_usize).prop_map(|place| Operation::GiveUp { place }),
        3 => Just(Operation::Resign),
        1 => Just(Operation::ResignUnheard),
        1 => Just(Operation::Drop),
        1 => Just(Operation::SetData),
        1 => client().prop_map(|client| Operation::Expire { client }),
        1 => client().prop_map(|client| Operation::Reconnect { client }),
    ]
}

/// One who stands, as the model knows it.
struct Standing {
    client: usize,
    data: String,
    campaign: Campaign,
}

/// The model, and what it is compared with.
struct Scene {
    world: World,
    elections: Vec<Election>,
    changes: LeaderChanges,
    /// The data of the one who leads, its client, and its leadership.
    leader: Option<(usize, String, Leadership)>,
    line: Vec<Standing>,
    stood: usize,
}

impl Scene {
    async fn new(env: Env) -> Self {
        let world = World::new(env).await;
        let mut elections = Vec::new();
        for _ in 0..CLIENTS {
            elections.push(election(&world).await);
        }
        let changes = Election::new(&world.observer, LOCK).unwrap().observe();
        Self {
            world,
            elections,
            changes,
            leader: None,
            line: Vec::new(),
            stood: 0,
        }
    }

    async fn carry_out(&mut self, operation: Operation) {
        match operation {
            Operation::Stand { client } => self.stand(client).await,
            Operation::StandUnheard { client } => {
                // One that has to make the parent first may spend the loss on that.
                self.world.make(LOCK).await;
                self.lose_reply(client, On::Enqueue);
                self.stand(client).await;
            }
            Operation::GiveUp { place } => {
                if place < self.line.len() {
                    self.line.remove(place).campaign.abort();
                }
            }
            Operation::Resign => {
                if let Some((_, _, leadership)) = self.leader.take() {
                    leadership.resign().await.unwrap();
                }
            }
            Operation::ResignUnheard => {
                if let Some((client, _, leadership)) = self.leader.take() {
                    self.lose_reply(client, On::Any);
                    leadership.resign().await.unwrap();
                }
            }
            Operation::Drop => drop(self.leader.take()),
            Operation::SetData => {
                if let Some((_, data, leadership)) = &mut self.leader {
                    data.push('!');
                    leadership.set_data(data.as_str()).await.unwrap();
                }
            }
            Operation::Expire { client } => self.expire(client).await,
            Operation::Reconnect { client } => {
                let client = self.elections[client].client();
                self.world.disconnect(client);
                self.world.reconnect(client);
            }
        }
    }

    fn lose_reply(&self, client: usize, on: On) {
        self.world.lose_reply(self.elections[client].client(), on);
    }

    async fn stand(&mut self, client: usize) {
        self.stood += 1;
        let data = self.stood.to_string();
        let campaign = stand(&self.world, &self.elections[client], &data).await;
        self.line.push(Standing {
            client,
            data,
            campaign,
        });
    }

    async fn expire(&mut self, client: usize) {
        let expired = self.elections[client].client();
        self.world.end_session(expired).await;
        if let Some((_, _, lost)) = self.leader.take_if(|(leads, ..)| *leads == client) {
            lost.lost().await;
            assert!(!lost.is_held());
        }
        for standing in self
            .line
            .extract_if(.., |standing| standing.client == client)
        {
            let refusal = standing.campaign.await.unwrap().unwrap_err();
            assert!(refusal.is_session_end(), "{refusal}");
        }
        // The next campaign opens another session; here, so that it can be told what to lose.
        expired.session().await.unwrap();
    }

    /// What the store has come to is what the model says.
    async fn compare(&mut self, newest: &mut i64) {
        if self.leader.is_none() && !self.line.is_empty() {
            let next = self.line.remove(0);
            let leadership = elected(next.campaign).await;
            assert_eq!(leadership.data(), next.data);
            assert!(leadership.epoch().as_i64() > *newest, "epochs only grow");
            *newest = leadership.epoch().as_i64();
            self.leader = Some((next.client, next.data, leadership));
        }
        let count = self.line.len() + usize::from(self.leader.is_some());
        self.world.until_count(count).await;
        let mut expected: Vec<_> = self
            .leader
            .iter()
            .map(|(_, data, _)| data.clone())
            .collect();
        expected.extend(self.line.iter().map(|standing| standing.data.clone()));
        let entries = queue(&self.world.observer, LOCK).await.unwrap();
        let data =
            |metadata: Option<LockMetadata>| metadata?.other["data"].as_str().map(str::to_owned);
        let found: Vec<_> = entries
            .into_iter()
            .filter_map(|entry| data(entry.metadata))
            .collect();
        assert_eq!(found, expected);
        assert!(
            self.line
                .iter()
                .all(|standing| !standing.campaign.is_finished())
        );

        let seen = self.elections[0].leader().await;
        match (&self.leader, seen) {
            (None, Ok(None)) => {}
            (Some((client, data, leadership)), Ok(Some(leader))) => {
                assert!(leadership.is_held());
                assert!(self.elections[*client].state().current().is_leader());
                assert_eq!(leader.data.as_ref(), Some(data));
                assert_eq!(leader.epoch, leadership.epoch());
            }
            (_, other) => panic!("{other:?}"),
        }
    }
}

async fn follow(env: Env, operations: Vec<Operation>) {
    let mut scene = Scene::new(env).await;
    let mut newest = 0;
    let mut shown = None;
    for operation in operations {
        scene.carry_out(operation).await;
        scene.compare(&mut newest).await;
        let data = scene.leader.as_ref().map(|(_, data, _)| data.clone());
        if data != shown {
            until_shown(&mut scene.changes, data.as_deref()).await;
            shown = data;
        }
    }
    drop((
        scene.leader,
        scene
            .line
            .drain(..)
            .for_each(|standing| standing.campaign.abort()),
    ));
    scene.world.until_count(0).await;
}

#[test]
fn an_election_does_what_its_model_does_in_memory() {
    check(100, operation(), Env::memory, follow);
}

#[cfg(feature = "file")]
#[test]
fn an_election_does_what_its_model_does_in_a_folder() {
    check(15, operation(), Env::file, follow);
}

#[cfg(all(feature = "file", feature = "server", feature = "zookeeper"))]
#[test]
fn an_election_does_what_its_model_does_on_a_served_store() {
    check(10, operation(), Env::served, follow);
}

#[cfg(feature = "zookeeper")]
#[test]
fn an_election_does_what_its_model_does_on_zookeeper() {
    check(10, operation(), Env::zookeeper, follow);
}
