//! [`History`]: the calls on a few znodes and their answers, for the checker of
//! [`linearizability`](testkit::linearizable).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use lockkeeper::Client;
use testkit::ask;
use testkit::linearizable::{Answer, Call, Operation, is_linearizable};

use crate::world::{Random, World};

/// Number of znodes. A small number makes the calls on each overlap.
const KEYS: u64 = 3;

/// The calls of a run on znodes that all clients create, read, write and delete.
pub(crate) struct History {
    world: World,
    operations: RefCell<BTreeMap<u64, Vec<Operation>>>,
    /// Logical time that counts calls and answers.
    now: Cell<u64>,
    values: Cell<u64>,
    /// Number of restores so far.
    life: Cell<u64>,
}

impl History {
    pub(crate) fn new(world: &World) -> Self {
        Self {
            world: world.clone(),
            operations: RefCell::default(),
            now: Cell::new(0),
            values: Cell::new(0),
            life: Cell::new(0),
        }
    }

    /// Forgets everything, because a backup has restored an earlier state.
    pub(crate) fn forget(&self) {
        self.check();
        self.operations.borrow_mut().clear();
        self.life.set(self.life.get() + 1);
    }

    pub(crate) async fn call(&self, client: &Client, random: &mut Random) {
        let (key, call) = (random.within(0..KEYS), self.draw(random));
        let life = self.life.get();
        let place = self.begin(key, call);
        // The restored state is unknown, so other znodes are used after it.
        let path = format!("/key-{life}-{key}").parse().expect("a path");
        let answer = match client.session().await {
            Ok(session) => ask(&session, &path, call, self.world.is_ensemble()).await,
            Err(_) => None,
        };
        if life != self.life.get() {
            return;
        }
        match answer {
            Some(answer) => self.end(key, place, answer),
            None => self.world.count("history: calls of unknown outcome"),
        }
    }

    fn draw(&self, random: &mut Random) -> Call {
        self.values.set(self.values.get() + 1);
        let value = self.values.get();
        let version = (!random.once_in(2)).then(|| random.within(0..4) as i32);
        match random.within(0..8) {
            0 | 1 => Call::Create { value },
            2 | 3 => Call::Set { value, version },
            4 => Call::Delete { version },
            _ => Call::Get,
        }
    }

    fn tick(&self) -> u64 {
        self.now.set(self.now.get() + 1);
        self.now.get()
    }

    fn begin(&self, key: u64, call: Call) -> usize {
        let called = self.tick();
        let mut operations = self.operations.borrow_mut();
        let operations = operations.entry(key).or_default();
        operations.push(Operation {
            call,
            called,
            answered: None,
        });
        operations.len() - 1
    }

    fn end(&self, key: u64, place: usize, answer: Answer) {
        let at = self.tick();
        let mut operations = self.operations.borrow_mut();
        let operations = operations.get_mut(&key).expect("it was begun");
        operations[place].answered = Some((at, answer));
    }

    /// Fails the run unless each znode's answers are possible.
    pub(crate) fn check(&self) {
        for (key, operations) in &*self.operations.borrow() {
            self.world.count("history: znodes checked");
            self.world
                .count_many("history: calls checked", operations.len() as u64);
            match is_linearizable(operations) {
                Some(true) => {}
                None => self.world.count("history: too long to check"),
                Some(false) => {
                    for operation in operations {
                        self.world.tell(format_args!("/key-{key} {operation:?}"));
                    }
                    self.world
                        .violate(format_args!("linearizability: the history of /key-{key}"));
                }
            }
        }
    }
}
