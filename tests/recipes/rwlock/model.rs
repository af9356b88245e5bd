//! Compares the read-write lock with its model: a queue in which a reader holds if no writer is ahead, and a writer if
//! it is first.

use lockkeeper::LockError;
use lockkeeper::testing::RequestKind;
use proptest::prelude::*;
use testkit::Env;

use super::*;
use crate::harness::model::{
    Line, Model, Queued, State, Step, attempt, drop_at, expire, leave, model_tests, reconnect, wait,
};

#[derive(Clone, Copy, Debug)]
enum Operation {
    Line(Step<Side>),
    /// Converts to the other side if possible. The reply may be lost.
    Convert {
        place: usize,
        unheard: bool,
    },
}

impl Queued for RwLock {
    type Kind = Side;
    type Held = Had;

    fn open(client: &Client) -> Self {
        lock_of(client)
    }

    fn client(&self) -> &Client {
        self.client()
    }

    async fn wait(self, side: Side, label: String) -> Result<Had, LockError> {
        let options = LockOptions::new().label(label);
        Ok(match side {
            Read => Had::Reader(self.read_with(options).await?),
            Write => Had::Writer(self.write_with(options).await?),
        })
    }

    async fn attempt(&self, side: Side, label: String) -> Result<Option<Had>, LockError> {
        let options = LockOptions::new().label(label);
        Ok(match side {
            Read => self.try_read_with(options).await?.map(Had::Reader),
            Write => self.try_write_with(options).await?.map(Had::Writer),
        })
    }

    fn guard(held: &Had) -> &Guard {
        held.guard()
    }

    async fn release(held: Had) -> Result<(), LockError> {
        held.into_guard().release().await
    }

    fn is_shared(side: Side) -> bool {
        side == Read
    }
}

struct Scene {
    line: Line<RwLock>,
}

impl Model for Scene {
    type Operation = Operation;

    fn operation() -> impl Strategy<Value = Operation> {
        let side = || prop_oneof![3 => Just(Read), 2 => Just(Write)];
        let step = prop_oneof![
            8 => wait(side(), 0.2),
            2 => attempt(side()),
            5 => leave(0..8, 0.2),
            1 => drop_at(0..8),
            1 => expire(),
            1 => reconnect(),
        ];
        prop_oneof![
            18 => step.prop_map(Operation::Line),
            6 => (0..8_usize, prop::bool::weighted(0.2))
                .prop_map(|(place, unheard)| Operation::Convert { place, unheard }),
        ]
    }

    async fn start(env: Env) -> Self {
        let line = Line::new(env).await;
        Self { line }
    }

    async fn carry_out(&mut self, operation: Operation) {
        match operation {
            Operation::Line(step) => self.line.carry_out(step).await,
            Operation::Convert { place, unheard } => self.convert(place, unheard).await,
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
    async fn convert(&mut self, place: usize, unheard: bool) {
        let is_alone = self.line.standing.len() == 1;
        let holds = |state: &State<Had>| matches!(state, State::Holding(_));
        if place >= self.line.standing.len() || !holds(&self.line.standing[place].state) {
            return;
        }
        let mut standing = self.line.standing.remove(place);
        let State::Holding(had) = standing.state else {
            unreachable!("it was looked at just now")
        };
        self.line
            .lose_reply(standing.client, unheard.then_some(RequestKind::Any));
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
        if had.side() == Read {
            assert_eq!(had.guard().fencing_token(), old);
        }
        standing.kind = had.side();
        standing.state = State::Holding(had);
        self.line.standing.insert(place, standing);
    }
}

model_tests! {
    Scene,
    memory: the_lock_does_what_its_model_does_in_memory(100),
    file: the_lock_does_what_its_model_does_in_a_folder(15),
    served: the_lock_does_what_its_model_does_on_a_served_store(10),
    zookeeper: the_lock_does_what_its_model_does_on_zookeeper(10),
    lent: the_lock_does_what_its_model_does_with_a_lent_client(3),
    foreign: the_lock_does_what_its_model_does_for_a_foreign_client(4),
}
