//! Compares an election with its model, a queue whose head leads.

use lockkeeper::Guard;
use proptest::prelude::*;
use testkit::Env;

use super::*;
use crate::harness::model::{
    Line, Model, Queued, State, Step, drop_at, expire, leave, metadata_fields, model_tests,
    reconnect, wait,
};

#[derive(Clone, Copy, Debug)]
enum Operation {
    Line(Step<()>),
    SetData,
}

/// A candidate's data is its label.
impl Queued for Election {
    type Kind = ();
    type Held = Leadership;

    fn open(client: &Client) -> Self {
        Self::new(client, LOCK).unwrap()
    }

    fn client(&self) -> &Client {
        self.client()
    }

    async fn wait(self, (): (), data: String) -> Result<Leadership, LockError> {
        self.campaign_with(data, LockOptions::new()).await
    }

    async fn attempt(&self, (): (), data: String) -> Result<Option<Leadership>, LockError> {
        self.try_campaign(data).await
    }

    fn guard(held: &Leadership) -> &Guard {
        held
    }

    async fn release(held: Leadership) -> Result<(), LockError> {
        held.resign().await
    }

    fn label(held: &Leadership) -> Option<String> {
        Some(held.data())
    }

    async fn labels(world: &World) -> Vec<String> {
        let data =
            |metadata: lockkeeper::LockMetadata| metadata.other["data"].as_str().map(str::to_owned);
        metadata_fields(world, data).await
    }
}

struct Scene {
    line: Line<Election>,
    changes: LeaderChanges,
    /// The data last shown to an observer.
    shown: Option<String>,
}

impl Model for Scene {
    type Operation = Operation;

    fn operation() -> impl Strategy<Value = Operation> {
        let step = prop_oneof![
            8 => wait(Just(()), 0.25),
            2 => leave(1..9, 0.0),
            4 => leave(0..1, 0.25),
            1 => drop_at(0..1),
            1 => expire(),
            1 => reconnect(),
        ];
        prop_oneof![
            17 => step.prop_map(Operation::Line),
            1 => Just(Operation::SetData),
        ]
    }

    async fn start(env: Env) -> Self {
        let line = Line::new(env).await;
        let changes = Election::open(&line.world.observer).observe();
        Self {
            line,
            changes,
            shown: None,
        }
    }

    async fn carry_out(&mut self, operation: Operation) {
        match operation {
            Operation::Line(step) => self.line.carry_out(step).await,
            Operation::SetData => {
                if let Some(head) = self.line.standing.first_mut()
                    && let State::Holding(leadership) = &head.state
                {
                    head.label.push('!');
                    leadership.set_data(head.label.as_str()).await.unwrap();
                }
            }
        }
    }

    async fn agree(&mut self) {
        self.line.agree().await;
        let head = self.line.standing.first();
        match (head, self.line.recipes[0].leader().await.unwrap()) {
            (None, None) => {}
            (Some(head), Some(leader)) => {
                let State::Holding(leadership) = &head.state else {
                    panic!("the head of the line does not lead");
                };
                assert!(leadership.is_held());
                let state = self.line.recipes[head.client].state();
                assert!(state.current().is_leader());
                assert_eq!(leader.data.as_ref(), Some(&head.label));
                assert_eq!(leader.epoch, leadership.epoch());
            }
            (_, other) => panic!("{other:?}"),
        }
        let data = head.map(|head| head.label.clone());
        if data != self.shown {
            until_shown(&mut self.changes, data.as_deref()).await;
            self.shown = data;
        }
    }

    async fn end(self) {
        self.line.end().await;
    }
}

model_tests! {
    Scene,
    memory: an_election_does_what_its_model_does_in_memory(100),
    file: an_election_does_what_its_model_does_in_a_folder(15),
    served: an_election_does_what_its_model_does_on_a_served_store(10),
    zookeeper: an_election_does_what_its_model_does_on_zookeeper(10),
    lent: an_election_does_what_its_model_does_with_a_lent_client(3),
    foreign: an_election_does_what_its_model_does_for_a_foreign_client(4),
}
