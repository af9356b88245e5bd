//! The re-entrant mutex in simulation: several tasks share each owner, and enter again while they are
//! inside.

use std::rc::Rc;

use lockkeeper::{FencingToken, ReentrantGuard};

use super::*;
use crate::harness::simulation::{
    Actor, Contender, Fenced, Holding, Resource, Scenario, Simulation, assert_replays, compete,
    or_cancelled, simulate,
};

#[test]
fn no_seed_lets_two_owners_in() {
    let total = simulate::<Owners>(1_000);
    total.assert_more_than_runs("holdings");
    total.assert_more_than_runs("again");
    total.assert_some(&["lost", "refused", "late"]);
}

#[cfg(all(feature = "file", feature = "server", feature = "client"))]
#[test]
fn no_hurt_connection_breaks_the_lock() {
    let total = crate::harness::simulation::simulate_over_a_wire::<Owners>(6);
    total.assert_more_than_runs("holdings");
    total.assert_more_than_runs("connections");
}

#[test]
fn a_seed_replays() {
    assert_replays::<Owners>(30);
}

/// Tasks of some owners of one lock.
struct Owners(Rc<Resource<Inside>>);

impl Scenario for Owners {
    fn start(simulation: &mut Simulation) -> Self {
        let resource = Rc::new(Resource::new(&simulation.counters));
        let mut number = 0;
        for _ in 0..simulation.random.within(1..4) {
            let mutex = ReentrantMutex::new(&simulation.client(), LOCK).unwrap();
            for _ in 0..simulation.random.within(1..3) {
                let owner = mutex.owner();
                number += 1;
                for _ in 0..simulation.random.within(1..4) {
                    let worker = Worker {
                        owner: owner.clone(),
                        number,
                        resource: resource.clone(),
                        actor: simulation.actor(),
                    };
                    simulation.spawn(compete(worker, 2..6));
                }
            }
        }
        Self(resource)
    }

    fn check(&self) {
        self.0.check();
    }
}

/// One entry, of the owner with this number.
struct Inside {
    owner: u64,
    guard: ReentrantGuard,
}

impl Holding for Inside {
    fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    fn is_compatible(&self, other: &Self) -> bool {
        self.owner == other.owner
    }
}

impl Fenced for Inside {
    fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }
}

/// One task of an owner.
struct Worker {
    owner: Owner,
    number: u64,
    resource: Rc<Resource<Inside>>,
    actor: Actor,
}

impl Contender for Worker {
    type Granted = ReentrantGuard;

    fn actor(&mut self) -> &mut Actor {
        &mut self.actor
    }

    async fn contend(&mut self) -> Result<Option<ReentrantGuard>, LockError> {
        let limit = self.actor.duration(10_000);
        let outcome = match self.actor.random.within(0..5) {
            0 => self.owner.try_lock().await,
            1 => self.owner.lock_timeout(limit).await.map(Some),
            2 => or_cancelled(self.owner.lock(), self.actor.clock.sleep(limit)).await,
            _ => self.owner.lock().await.map(Some),
        };
        Ok(self.unless_refused(outcome))
    }

    async fn insist(&mut self) -> Result<Option<ReentrantGuard>, LockError> {
        loop {
            let outcome = self.owner.lock().await.map(Some);
            if let Some(guard) = self.unless_refused(outcome) {
                return Ok(Some(guard));
            }
            self.actor.rest(500).await;
        }
    }

    async fn hold(&mut self, guard: ReentrantGuard) {
        let outer = self.enter(guard);
        self.resource.write(&outer);
        self.actor.work_inside().await;
        let mut entries = vec![outer];
        for _ in 0..self.actor.random.within(0..3) {
            if let Ok(Some(guard)) = self.contend().await {
                entries.push(self.enter(guard));
            }
            self.actor.work_inside().await;
        }
        while !entries.is_empty() {
            // In any order; also when the lock is lost: then it is the token that protects.
            let next = self.actor.random.within(0..entries.len() as u64) as usize;
            let entry = entries.remove(next);
            self.resource.write(&entry);
            let guard = self.resource.leave(entry).guard;
            self.actor.let_go(guard, ReentrantGuard::release).await;
        }
    }
}

impl Worker {
    fn enter(&self, guard: ReentrantGuard) -> Rc<Inside> {
        self.actor.counters.assert_granted(guard.is_held());
        let (owner, token) = (self.number, guard.fencing_token());
        let mut is_again = false;
        for entry in self.resource.holders().iter() {
            if entry.owner == owner {
                is_again = true;
                assert_eq!(
                    entry.fencing_token(),
                    token,
                    "entered anew beside guards of an older holding"
                );
            }
        }
        let entry = Inside { owner, guard };
        if is_again {
            assert_eq!(self.resource.newest(), Some(token));
        } else if self.resource.newest() != Some(token) {
            self.resource.advance(&entry);
        }
        self.actor.count(match is_again {
            true => "again",
            false => "holdings",
        });
        self.resource.enter(entry)
    }

    /// Returns the guard, if any. A refusal is right only while a guard of the same owner is still inside, under a
    /// lock that is lost.
    fn unless_refused(
        &self,
        outcome: Result<Option<ReentrantGuard>, LockError>,
    ) -> Option<ReentrantGuard> {
        match outcome {
            Ok(entered) => return entered,
            Err(LockError::Lost(_)) => {
                let inside = self.resource.holders();
                let mut own = inside.iter().filter(|entry| entry.owner == self.number);
                assert!(
                    own.next().is_some_and(|entry| !entry.is_held()),
                    "refused, and nobody is inside"
                );
                self.actor.count("refused");
            }
            Err(LockError::Timeout { .. }) => {}
            Err(error) => assert!(error.is_session_end(), "{error}"),
        }
        None
    }
}
