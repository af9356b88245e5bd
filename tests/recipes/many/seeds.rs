//! Batches in simulation: contenders lock several things at once. A run in which two of them waited for
//! each other would not end.

use std::rc::Rc;

use lockkeeper::{Guard, LockPath, lock_each, try_lock_many};

use super::*;
use crate::harness::simulation::{
    Actor, Contender, Resource, Scenario, Simulation, assert_replays, compete, or_cancelled,
    simulate,
};

/// Number of locks in all.
const LOCKS: u64 = 5;

#[test]
fn no_seed_breaks_a_lock_or_lets_batches_deadlock() {
    let total = simulate::<Batches>(1_000);
    total.assert_more_than_runs("grants");
}

#[cfg(all(feature = "file", feature = "server", feature = "client"))]
#[test]
fn no_hurt_connection_breaks_the_locks() {
    let total = crate::harness::simulation::simulate_over_a_wire::<Batches>(6);
    total.assert_more_than_runs("grants");
    total.assert_more_than_runs("connections");
}

#[test]
fn a_seed_replays() {
    assert_replays::<Batches>(50);
}

type Resources = Rc<[Rc<Resource<Guard>>]>;

/// Contenders for several of some locks at once.
struct Batches(Resources);

impl Scenario for Batches {
    fn start(simulation: &mut Simulation) -> Self {
        let resource = |_| Rc::new(Resource::new(&simulation.counters));
        let resources: Resources = (0..LOCKS).map(resource).collect();
        for _ in 0..simulation.random.within(2..6) {
            let client = simulation.client();
            for _ in 0..simulation.random.within(1..4) {
                let worker = Worker {
                    client: client.clone(),
                    resources: resources.clone(),
                    actor: simulation.actor(),
                };
                simulation.spawn(compete(worker, 2..6));
            }
        }
        Self(resources)
    }

    fn check(&self) {
        self.0.iter().for_each(|resource| resource.check());
    }

    fn queues() -> Vec<String> {
        (0..LOCKS).map(name).collect()
    }
}

fn name(lock: u64) -> String {
    format!("/seeds/{lock}")
}

struct Worker {
    client: Client,
    resources: Resources,
    actor: Actor,
}

impl Contender for Worker {
    type Granted = Vec<(LockPath, Guard)>;

    fn actor(&mut self) -> &mut Actor {
        &mut self.actor
    }

    async fn contend(&mut self) -> Result<Option<Self::Granted>, LockError> {
        let (client, keys) = (self.client.clone(), self.some_keys());
        let limit = self.actor.duration(10_000);
        let guard = match self.actor.random.within(0..7) {
            0 | 1 => {
                let acquired = try_lock_many(&client, keys).await?.acquired;
                assert!(acquired.iter().all(|(_, guard)| guard.is_held()));
                return Ok(Some(acquired));
            }
            2 => {
                let options = LockOptions::new().timeout(limit);
                lock_all_with(&client, keys, options).await?
            }
            3 => {
                let cancel = self.actor.clock.sleep(limit);
                match or_cancelled(lock_all(&client, keys), cancel).await? {
                    Some(guard) => guard,
                    None => return Ok(Some(Vec::new())),
                }
            }
            4 => {
                self.one_by_one(&client, keys).await?;
                return Ok(Some(Vec::new()));
            }
            _ => lock_all(&client, keys).await?,
        };
        self.actor.counters.assert_granted(guard.is_held());
        Ok(Some(guard.into_guards()))
    }

    async fn insist(&mut self) -> Result<Option<Self::Granted>, LockError> {
        let keys = self.some_keys();
        let guard = lock_all(&self.client, keys).await?;
        Ok(Some(guard.into_guards()))
    }

    async fn hold(&mut self, guards: Vec<(LockPath, Guard)>) {
        let mut held = Vec::new();
        for (key, guard) in guards {
            let index: usize = key.as_znode().name().parse().unwrap();
            let resource = self.resources[index].clone();
            self.actor.count("grants");
            resource.advance(&guard);
            held.push((resource.enter(guard), resource));
        }
        let write = |(guard, resource): &(Rc<Guard>, Rc<Resource<Guard>>)| resource.write(guard);
        held.iter().for_each(write);
        self.actor.work_inside().await;
        // Also when they are lost: then it is the token that protects the resources.
        held.iter().for_each(write);
        for (guard, resource) in held {
            let guard = resource.leave(guard);
            self.actor.let_go(guard, Guard::release).await;
        }
    }
}

impl Worker {
    /// Some of the locks, in any order.
    fn some_keys(&mut self) -> Vec<String> {
        let mut locks: Vec<_> = (0..LOCKS).collect();
        for index in (1..locks.len()).rev() {
            locks.swap(
                index,
                self.actor.random.within(0..index as u64 + 1) as usize,
            );
        }
        locks.truncate(self.actor.random.within(1..LOCKS) as usize);
        locks.into_iter().map(name).collect()
    }

    /// Works at each as it is granted, and may go before the last.
    async fn one_by_one(&mut self, client: &Client, keys: Vec<String>) -> Result<(), LockError> {
        let mut each = lock_each(client, keys)?;
        while let Some(granted) = each.next().await {
            self.hold(vec![granted?]).await;
            if self.actor.random.within(0..4) == 0 {
                break;
            }
        }
        Ok(())
    }
}
