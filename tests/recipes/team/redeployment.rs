//! All workers are restarted while locks are held and awaited.

use lockkeeper::{Client, Error, FencingGate, Guard, LockError, LostReason};
use testkit::on_every_backend;

use super::{mutex, until_empty, until_queued};
use crate::common::*;

const PATHS: [&str; 3] = ["/lock/jobs/a", "/lock/jobs/b", "/lock/jobs/c"];

const WAITERS: usize = 4;

/// Workers with a session each. One holds each path if it was free, and the others wait.
struct Fleet {
    clients: Vec<Client>,
    guards: Vec<Guard>,
    waits: Vec<(usize, Waiter)>,
}

impl Fleet {
    /// Starts a wait for each path, and returns once all are queued behind `ahead` others.
    async fn queue_up(world: &World, ahead: usize) -> Self {
        let mut fleet = Self {
            clients: Vec::new(),
            guards: Vec::new(),
            waits: Vec::new(),
        };
        for (number, at) in PATHS.iter().enumerate() {
            for _ in 0..WAITERS {
                let client = world.client().await;
                let mutex = mutex(&client, at);
                fleet.clients.push(client);
                fleet
                    .waits
                    .push((number, tokio::spawn(async move { mutex.lock().await })));
            }
            until_queued(world, at, ahead + WAITERS).await;
        }
        fleet
    }

    async fn deploy(world: &World) -> Self {
        let mut guards = Vec::new();
        let mut holders = Vec::new();
        for at in PATHS {
            let client = world.client().await;
            guards.push(mutex(&client, at).lock().await.unwrap());
            holders.push(client);
        }
        let mut fleet = Self::queue_up(world, 1).await;
        fleet.clients.append(&mut holders);
        fleet.guards = guards;
        fleet
    }

    /// Asserts that each waiter gets its turn after those of `gates`, and releases.
    async fn has_its_turns(self, gates: &mut [FencingGate]) {
        // Concurrently, because each path has a separate order.
        let mut turns = tokio::task::JoinSet::new();
        for (number, wait) in self.waits {
            turns.spawn(async move {
                let guard = granted(wait).await;
                assert!(guard.is_held());
                let token = guard.fencing_token();
                guard.release().await.unwrap();
                (number, token)
            });
        }
        let mut had = turns.join_all().await;
        had.sort_unstable();
        assert_eq!(had.len(), PATHS.len() * WAITERS);
        for (number, token) in had {
            gates[number].admit(token).unwrap();
        }
        for client in self.clients {
            client.close().await.unwrap();
        }
    }
}

/// Returns the gates of the resources behind the paths.
fn seen(guards: &[Guard]) -> Vec<FencingGate> {
    let admitted = guards.iter().map(|guard| {
        let mut gate = FencingGate::default();
        gate.admit(guard.fencing_token()).unwrap();
        gate
    });
    admitted.collect()
}

async fn nothing_is_left(world: &World) {
    for at in PATHS {
        until_empty(world, at).await;
    }
}

on_every_backend! {
    async fn a_fleet_is_closed_and_the_next_one_started(env: Env) {
        let world = World::new(env).await;
        let old = Fleet::deploy(&world).await;
        let mut gates = seen(&old.guards);

        let closings: Vec<_> = old.clients.iter().map(|client| client.close()).collect();
        for closing in closings {
            closing.await.unwrap();
        }
        nothing_is_left(&world).await;
        for guard in &old.guards {
            assert!(!guard.is_held());
            assert_eq!(guard.lost().await, LostReason::SessionClosed);
        }
        for (_, wait) in old.waits {
            let refusal = refused(wait).await;
            let closed = matches!(refusal, LockError::Store(Error::SessionClosed { .. }));
            assert!(closed, "{refusal}");
        }

        let new = Fleet::deploy(&world).await;
        for (gate, guard) in gates.iter_mut().zip(&new.guards) {
            gate.admit(guard.fencing_token()).unwrap();
        }
        let Fleet { clients, guards, waits } = new;
        drop(guards);
        Fleet { clients, guards: Vec::new(), waits }.has_its_turns(&mut gates).await;
        nothing_is_left(&world).await;
    }

    async fn the_next_fleet_waits_before_the_old_one_is_closed(env: Env) {
        let world = World::new(env).await;
        let old = Fleet::deploy(&world).await;
        let mut gates = seen(&old.guards);
        let new = Fleet::queue_up(&world, 1 + WAITERS).await;
        assert!(new.waits.iter().all(|(_, wait)| !wait.is_finished()));

        // One after another, like a rolling deployment: waiters first, holders last.
        for client in &old.clients {
            client.close().await.unwrap();
        }
        new.has_its_turns(&mut gates).await;
        for (gate, guard) in gates.iter_mut().zip(&old.guards) {
            assert!(!guard.is_held());
            assert!(gate.admit(guard.fencing_token()).is_err(), "newer ones were seen");
        }
        nothing_is_left(&world).await;
    }

    async fn a_fleet_crashes_and_the_next_one_takes_over(env: Env) {
        let world = World::new(env).await;
        let old = Fleet::deploy(&world).await;
        let mut gates = seen(&old.guards);
        // The store receives nothing from them any more, not even a release.
        for client in &old.clients {
            world.disconnect(client);
        }
        let new = Fleet::queue_up(&world, 1 + WAITERS).await;
        for client in &old.clients {
            world.expire(client).await.unwrap();
        }
        new.has_its_turns(&mut gates).await;

        for client in &old.clients {
            world.reconnect(client);
        }
        for (gate, guard) in gates.iter_mut().zip(&old.guards) {
            assert_eq!(guard.lost().await, LostReason::SessionExpired);
            assert!(gate.admit(guard.fencing_token()).is_err(), "newer ones were seen");
        }
        for (_, wait) in old.waits {
            let refusal = refused(wait).await;
            assert!(refusal.is_session_end(), "{refusal}");
        }
        nothing_is_left(&world).await;
    }
}
