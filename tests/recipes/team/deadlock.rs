//! Two clients, each holding the lock that the other waits for.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper::{LockError, QueueEntry, SessionId, Snapshots, observe, queue};
use testkit::on_every_backend;

use super::{mutex, until_empty, until_queued};
use crate::common::*;

const A: &str = "/lock/accounts/a";
const B: &str = "/lock/accounts/b";

const SHORT: Duration = Duration::from_millis(50);

/// Returns sessions that wait for each other in a cycle, if any. A dashboard needs no more than this to show a
/// deadlock.
fn circle(queues: &[Vec<QueueEntry>]) -> Option<Vec<SessionId>> {
    let mut waits_for: BTreeMap<SessionId, Vec<SessionId>> = BTreeMap::new();
    for queue in queues {
        for pair in queue.windows(2) {
            waits_for
                .entry(pair[1].owner)
                .or_default()
                .push(pair[0].owner);
        }
    }
    let starts: Vec<_> = waits_for.keys().copied().collect();
    starts
        .into_iter()
        .find_map(|start| way_back(&waits_for, &mut vec![start]))
}

/// Finds a path from the first of `way` back to itself.
fn way_back(
    waits_for: &BTreeMap<SessionId, Vec<SessionId>>,
    way: &mut Vec<SessionId>,
) -> Option<Vec<SessionId>> {
    for next in waits_for.get(way.last()?)? {
        if *next == way[0] {
            return Some(way.clone());
        }
        if way.contains(next) {
            continue;
        }
        way.push(*next);
        if let Some(found) = way_back(waits_for, way) {
            return Some(found);
        }
        way.pop();
    }
    None
}

async fn until_shown(snapshots: &mut Snapshots, count: usize) -> Vec<QueueEntry> {
    loop {
        let entries = snapshots.next().await.expect("the stream goes on").unwrap();
        if entries.len() == count {
            return entries;
        }
    }
}

on_every_backend! {
    async fn a_deadlock_shows_in_the_queues_and_ends_when_one_gives_up(env: Env) {
        let world = World::new(env).await;
        let (one, two) = (world.client().await, world.client().await);
        let mut views = [A, B].map(|at| observe(&world.observer, at).unwrap());
        let a = mutex(&one, A).lock().await.unwrap();
        let b = mutex(&two, B).lock().await.unwrap();
        let one_waits = tokio::spawn({
            let b = mutex(&one, B);
            async move { b.lock().await }
        });
        let seen = [until_shown(&mut views[0], 1).await, until_shown(&mut views[1], 2).await];
        assert_eq!(circle(&seen), None, "one waits for two, and two for nobody yet");
        let two_waits = tokio::spawn({
            let a = mutex(&two, A);
            async move { a.lock().await }
        });

        let seen = [until_shown(&mut views[0], 2).await, seen[1].clone()];
        let mut stuck = circle(&seen).expect("each waits for the other");
        stuck.sort_unstable();
        let mut sessions = [&one, &two].map(|client| client.current_session().id());
        sessions.sort_unstable();
        assert_eq!(stuck, sessions);
        assert_eq!([seen[0][0].fencing_token, seen[1][0].fencing_token], [a.fencing_token(), b.fencing_token()]);
        assert!(!one_waits.is_finished() && !two_waits.is_finished());

        // One of them gives up and releases its lock.
        one_waits.abort();
        assert!(one_waits.await.unwrap_err().is_cancelled());
        let seen = [seen[0].clone(), until_shown(&mut views[1], 1).await];
        assert_eq!(circle(&seen), None);
        a.release().await.unwrap();
        granted(two_waits).await.release().await.unwrap();
        b.release().await.unwrap();
        until_empty(&world, A).await;
        until_empty(&world, B).await;
    }

    async fn with_timeouts_both_waits_end_and_nothing_is_left(env: Env) {
        let world = World::new(env).await;
        let (one, two) = (world.client().await, world.client().await);
        let a = mutex(&one, A).lock().await.unwrap();
        let b = mutex(&two, B).lock().await.unwrap();
        let (of_one, of_two) = (mutex(&one, B), mutex(&two, A));
        let (of_one, of_two) = tokio::join!(of_one.lock_timeout(SHORT), of_two.lock_timeout(SHORT));
        for (outcome, at) in [(of_one, B), (of_two, A)] {
            let refusal = outcome.unwrap_err();
            assert_timed_out(&refusal, at, SHORT);
        }
        // Only the waits have ended. The locks are still held and have no waiters.
        until_queued(&world, A, 1).await;
        until_queued(&world, B, 1).await;
        for (at, guard) in [(A, &a), (B, &b)] {
            assert!(guard.is_held());
            assert_eq!(queue(&world.observer, at).await.unwrap()[0].path, *guard.path());
        }
        a.release().await.unwrap();
        b.release().await.unwrap();
        until_empty(&world, A).await;
        until_empty(&world, B).await;
    }

    async fn the_first_to_time_out_lets_the_other_go_on(env: Env) {
        let world = World::new(env).await;
        let (one, two) = (world.client().await, world.client().await);
        let a = mutex(&one, A).lock().await.unwrap();
        let b = mutex(&two, B).lock().await.unwrap();
        let impatient = async {
            let refusal = mutex(&one, B).lock_timeout(SHORT).await.unwrap_err();
            assert!(matches!(refusal, LockError::Timeout { .. }), "{refusal}");
            a.release().await.unwrap();
        };
        let patient = mutex(&two, A);
        let (also_a, ()) = tokio::join!(patient.lock_timeout(LONG), impatient);
        let also_a = also_a.unwrap();
        assert!(also_a.is_held() && b.is_held());
        drop((also_a, b));
        until_empty(&world, A).await;
        until_empty(&world, B).await;
    }
}
