//! The semaphore in simulation: the number of permits changes under the contenders.

use std::cell::Cell;
use std::rc::Rc;

use futures_executor::block_on;
use lockkeeper::{Session, Store};

use super::*;
use crate::harness::simulation::{
    Actor, Contender, Holding, Resource, Scenario, Simulation, assert_replays, compete,
    or_cancelled, simulate,
};

#[test]
fn no_seed_grants_more_permits_than_there_are() {
    let total = simulate::<Permits>(1_000);
    total.assert_more_than_runs("grants");
    assert!(total["permits"] > total["grants"]);
}

#[cfg(all(feature = "file", feature = "server", feature = "client"))]
#[test]
fn no_hurt_connection_grants_more_permits_than_there_are() {
    let total = crate::harness::simulation::simulate_over_a_wire::<Permits>(6);
    total.assert_more_than_runs("grants");
    total.assert_more_than_runs("connections");
}

#[test]
fn a_seed_replays() {
    assert_replays::<Permits>(50);
}

/// Contenders for permits, and, in every second run, an administrator.
struct Permits(Rc<Observer>);

impl Scenario for Permits {
    fn start(simulation: &mut Simulation) -> Self {
        let permits = simulation.random.within(1..6) as u32;
        let held = Resource::new(&simulation.counters);
        let observer = Observer::new(&simulation.base, permits, held);
        for client in simulation.clients(2..6) {
            for _ in 0..simulation.random.within(1..4) {
                let worker = Worker {
                    semaphore: Semaphore::open(&client, QUOTA).unwrap(),
                    observer: observer.clone(),
                    actor: simulation.actor(),
                };
                simulation.spawn(compete(worker, 2..8));
            }
        }
        if simulation.random.within(0..2) == 0 {
            let actor = simulation.actor();
            simulation.spawn(change(observer.clone(), actor));
        }
        Self(observer)
    }

    fn check(&self) {
        self.0.check();
    }

    fn queues() -> Vec<String> {
        [LOCKS, LEASES].map(str::to_owned).to_vec()
    }
}

impl Holding for Permit {
    fn is_held(&self) -> bool {
        lockkeeper::LockGuard::is_held(self)
    }

    /// The observer counts them in the store.
    fn is_compatible(&self, _other: &Self) -> bool {
        true
    }
}

/// The store as it is, without faults, and the contenders that believe to hold.
struct Observer {
    session: Session,
    semaphore: Semaphore,
    /// The highest number that was stored since the last check.
    highest: Cell<usize>,
    /// Number that were held at the last check.
    before: Cell<usize>,
    held: Resource<Permit>,
}

impl Observer {
    fn new(base: &Store, permits: u32, held: Resource<Permit>) -> Rc<Self> {
        let client = block_on(base.connect()).unwrap();
        let semaphore = Semaphore::new(&client, QUOTA, permits).unwrap();
        assert_eq!(block_on(semaphore.permits()), Ok(permits));
        Rc::new(Self {
            session: client.current_session(),
            semaphore,
            highest: Cell::new(permits as usize),
            before: Cell::new(0),
            held,
        })
    }

    fn set(&self, permits: u32) {
        self.check();
        block_on(self.semaphore.set_permits(permits)).unwrap();
        self.highest.set(permits as usize);
        self.check();
    }

    /// Fails if more are held than there are, but for those that were before the number was lowered, or if a
    /// holder's lease is not there.
    fn check(&self) {
        let leases = block_on(children(&self.session, LEASES));
        let (count, allowed) = (leases.len(), self.highest.get().max(self.before.get()));
        assert!(count <= allowed, "{count} are held of {allowed}");
        self.before.set(count);
        for permit in self.held.holders().iter().filter(|one| one.is_held()) {
            for path in permit.paths() {
                assert!(
                    leases.iter().any(|lease| lease == path.name()),
                    "{path} is believed to be held, and others may have it"
                );
            }
        }
    }
}

/// Changes the number now and then, up and down.
async fn change(observer: Rc<Observer>, mut actor: Actor) {
    for _ in 0..actor.random.within(1..12) {
        actor.rest(5_000).await;
        observer.set(actor.random.within(1..7) as u32);
    }
}

struct Worker {
    semaphore: Semaphore,
    observer: Rc<Observer>,
    actor: Actor,
}

impl Contender for Worker {
    type Granted = Permit;

    fn actor(&mut self) -> &mut Actor {
        &mut self.actor
    }

    async fn contend(&mut self) -> Result<Option<Permit>, LockError> {
        let limit = self.actor.duration(10_000);
        let count = self.actor.random.within(1..5) as u32;
        let semaphore = &self.semaphore;
        let outcome = match self.actor.random.within(0..5) {
            0 => semaphore.try_acquire_many(count).await,
            1 => {
                let options = LockOptions::new().timeout(limit);
                semaphore.acquire_with(count, options).await.map(Some)
            }
            2 => {
                let cancel = self.actor.clock.sleep(limit);
                or_cancelled(semaphore.acquire_many(count), cancel).await
            }
            _ => semaphore.acquire_many(count).await.map(Some),
        };
        match outcome {
            Err(LockError::TooManyPermits { .. }) => Ok(None),
            other => other,
        }
    }

    async fn insist(&mut self) -> Result<Option<Permit>, LockError> {
        self.semaphore.acquire().await.map(Some)
    }

    async fn hold(&mut self, mut permit: Permit) {
        self.actor.counters.assert_granted(permit.is_held());
        self.actor.count("grants");
        let part = permit.split(1);
        let enter = |part| self.observer.held.enter(part);
        let parts: Vec<_> = part.into_iter().chain([permit]).map(enter).collect();
        self.observer.check();
        let longest = self.actor.longest_stay();
        for part in parts {
            self.actor.counters.add("permits", u64::from(part.count()));
            self.actor.rest(longest).await;
            let part = self.observer.held.leave(part);
            self.actor.let_go(part, Permit::release).await;
        }
    }
}
