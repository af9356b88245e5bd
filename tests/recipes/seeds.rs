//! The mutex in simulation: thousands of runs with faults, in virtual time.

use std::rc::Rc;

use lockkeeper::{Guard, LockError, LockOptions, Mutex};

use crate::common::LOCK;
use crate::harness::simulation::{
    Actor, Contender, Resource, Scenario, Simulation, assert_replays, compete, or_cancelled,
    simulate,
};

#[test]
fn no_seed_breaks_the_lock() {
    let total = simulate::<OneLock>(2_000);
    total.assert_more_than_runs("grants");
}

#[cfg(all(feature = "file", feature = "server", feature = "client"))]
#[test]
fn no_hurt_connection_breaks_the_lock() {
    let total = crate::harness::simulation::simulate_over_a_wire::<OneLock>(12);
    total.assert_more_than_runs("grants");
    total.assert_more_than_runs("connections");
}

#[test]
fn a_seed_replays() {
    assert_replays::<OneLock>(50);
}

/// Contenders for one lock.
struct OneLock(Rc<Resource<Guard>>);

impl Scenario for OneLock {
    fn start(simulation: &mut Simulation) -> Self {
        let resource = Rc::new(Resource::new(&simulation.counters));
        for client in simulation.clients(2..6) {
            for _ in 0..simulation.random.within(1..4) {
                let worker = Worker {
                    mutex: Mutex::new(&client, LOCK).unwrap(),
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

struct Worker {
    mutex: Mutex,
    resource: Rc<Resource<Guard>>,
    actor: Actor,
}

impl Contender for Worker {
    type Granted = Guard;

    fn actor(&mut self) -> &mut Actor {
        &mut self.actor
    }

    async fn contend(&mut self) -> Result<Option<Guard>, LockError> {
        let limit = self.actor.duration(10_000);
        match self.actor.random.within(0..6) {
            0 => self.mutex.try_lock().await,
            1 => self.mutex.try_lock_with(LockOptions::new().synced()).await,
            2 => self.mutex.lock_timeout(limit).await.map(Some),
            3 => or_cancelled(self.mutex.lock(), self.actor.clock.sleep(limit)).await,
            _ => self.mutex.lock().await.map(Some),
        }
    }

    async fn insist(&mut self) -> Result<Option<Guard>, LockError> {
        self.mutex.lock().await.map(Some)
    }

    async fn hold(&mut self, guard: Guard) {
        self.actor.count("grants");
        self.resource.granted(&guard);
        if self.actor.random.within(0..4) == 0 {
            let _ = guard.keep_alive().await;
        }
        let guard = self.resource.enter(guard);
        self.resource.write(&guard);
        let longest = self.actor.longest_stay();
        if self.actor.random.within(0..3) == 0 {
            let length = self.actor.duration(longest);
            let _ = guard.protect(self.actor.clock.sleep(length)).await;
        } else {
            self.actor.rest(longest).await;
        }
        // Also when the lock is lost: then it is the token that protects the resource.
        self.resource.write(&guard);
        let guard = self.resource.leave(guard);
        self.actor.let_go(guard, Guard::release).await;
    }
}
