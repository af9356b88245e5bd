//! The read-write lock in simulation: contenders read, write and convert.

use std::rc::Rc;
use std::time::Duration;

use lockkeeper::{FencingToken, LockError};

use super::*;
use crate::harness::simulation::{
    Actor, Contender, Fenced, Holding, Resource, Scenario, Simulation, assert_replays, compete,
    or_cancelled, simulate,
};

#[test]
fn no_seed_breaks_the_lock() {
    let total = simulate::<ReadersAndWriters>(1_000);
    total.assert_more_than_runs("writes");
    total.assert_more_than_runs("reads");
    total.assert_some(&["upgrades", "refusals", "downgrades", "lost"]);
}

#[cfg(all(feature = "file", feature = "server", feature = "client"))]
#[test]
fn no_hurt_connection_breaks_the_lock() {
    let total = crate::harness::simulation::simulate_over_a_wire::<ReadersAndWriters>(6);
    total.assert_more_than_runs("writes");
    total.assert_more_than_runs("connections");
}

#[test]
fn a_seed_replays() {
    assert_replays::<ReadersAndWriters>(60);
}

/// Contenders for both sides of one lock.
struct ReadersAndWriters(Rc<Resource<Had>>);

impl Scenario for ReadersAndWriters {
    fn start(simulation: &mut Simulation) -> Self {
        let resource = Rc::new(Resource::new(&simulation.counters));
        for _ in 0..simulation.random.within(2..6) {
            let client = simulation.client();
            for _ in 0..simulation.random.within(1..4) {
                let worker = Worker {
                    lock: lock_of(&client),
                    resource: resource.clone(),
                    actor: simulation.actor(),
                };
                simulation.spawn(compete(worker, 2..8));
            }
        }
        Self(resource)
    }

    fn check(&self) {
        self.0.check();
    }
}

impl Holding for Had {
    fn is_held(&self) -> bool {
        self.guard().is_held()
    }

    fn is_compatible(&self, other: &Self) -> bool {
        (self.side(), other.side()) == (Read, Read)
    }
}

impl Fenced for Had {
    fn fencing_token(&self) -> FencingToken {
        self.guard().fencing_token()
    }

    fn is_shared(&self) -> bool {
        self.side() == Read
    }
}

struct Worker {
    lock: RwLock,
    resource: Rc<Resource<Had>>,
    actor: Actor,
}

impl Contender for Worker {
    type Granted = Had;

    fn actor(&mut self) -> &mut Actor {
        &mut self.actor
    }

    async fn contend(&mut self) -> Result<Option<Had>, LockError> {
        let lock = &self.lock;
        let limit = self.actor.duration(10_000);
        let sleep = self.actor.clock.sleep(limit);
        Ok(match self.actor.random.within(0..11) {
            0 => lock.try_read().await?.map(Had::Reader),
            1 => lock
                .try_read_with(LockOptions::new().synced())
                .await?
                .map(Had::Reader),
            2 => lock.try_write().await?.map(Had::Writer),
            3 => Some(Had::Reader(lock.read_timeout(limit).await?)),
            4 => Some(Had::Writer(lock.write_timeout(limit).await?)),
            5 => or_cancelled(lock.read(), sleep).await?.map(Had::Reader),
            6 => or_cancelled(lock.write(), sleep).await?.map(Had::Writer),
            7 | 8 => Some(Had::Writer(lock.write().await?)),
            _ => Some(Had::Reader(lock.read().await?)),
        })
    }

    async fn insist(&mut self) -> Result<Option<Had>, LockError> {
        match self.actor.random.within(0..2) {
            0 => self.lock.read().await.map(Had::Reader).map(Some),
            _ => self.lock.write().await.map(Had::Writer).map(Some),
        }
    }

    /// Holds, and converts the guard, some times.
    async fn hold(&mut self, mut had: Had) {
        for _ in 0..self.actor.random.within(1..4) {
            let Some(converted) = self.hold_and_convert(had).await else {
                return;
            };
            had = converted;
        }
        self.actor.let_go(had.into_guard(), Guard::release).await;
    }
}

impl Worker {
    /// Uses the resource on one side, and returns the guard with which to go on, if any.
    async fn hold_and_convert(&mut self, had: Had) -> Option<Had> {
        self.actor.count(match had.side() {
            Read => "reads",
            Write => "writes",
        });
        self.resource.advance(&had);
        let had = self.resource.enter(had);
        self.resource.write(&had);
        self.actor.work_inside().await;
        // Also when the lock is lost: then it is the token that protects the resource.
        self.resource.write(&had);
        let guard = match self.resource.leave(had) {
            Had::Reader(guard) => guard,
            Had::Writer(guard) => {
                let reader = self.unless_given_up(guard.downgrade()).await?;
                self.actor.count("downgrades");
                return Some(Had::Reader(reader));
            }
        };
        if self.actor.random.within(0..2) == 0 {
            return Some(Had::Reader(guard));
        }
        match self.unless_given_up(guard.try_upgrade()).await? {
            Upgrade::Upgraded(guard) => {
                self.actor.count("upgrades");
                self.actor.counters.assert_granted(guard.is_held());
                Some(Had::Writer(guard))
            }
            Upgrade::Refused(guard) => {
                self.actor.count("refusals");
                Some(Had::Reader(guard))
            }
        }
    }

    /// Returns the outcome of a conversion, unless it fails or is dropped midway.
    async fn unless_given_up<T>(
        &mut self,
        conversion: impl Future<Output = Result<T, LockError>>,
    ) -> Option<T> {
        let patience = match self.actor.random.within(0..6) {
            0 => self.actor.duration(500),
            _ => Duration::from_secs(100_000),
        };
        match or_cancelled(conversion, self.actor.clock.sleep(patience)).await {
            Ok(outcome) => outcome,
            Err(LockError::Lost(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }
}
