//! Observing a queue from outside.

use lockkeeper::testing::RequestKind;
use lockkeeper::{ConnectOptions, Error, LockOptions, QueueEntry, Snapshots, observe, queue};
use testkit::on_every_backend;

use crate::common::*;
use crate::rwlock::gate::Gate;

fn labels(entries: &[QueueEntry]) -> Vec<String> {
    let label = |entry: &QueueEntry| entry.metadata.as_ref()?.label.clone();
    entries
        .iter()
        .map(|entry| label(entry).unwrap_or_default())
        .collect()
}

async fn until_shown(snapshots: &mut Snapshots, wanted: &[&str]) {
    loop {
        let entries = snapshots.next().await.expect("the stream goes on").unwrap();
        if labels(&entries) == wanted {
            return;
        }
    }
}

fn label(label: &str) -> LockOptions {
    LockOptions::new().label(label)
}

on_every_backend! {
    async fn a_queue_is_listed_in_order(env: Env) {
        let world = World::new(env).await;
        assert!(queue(&world.observer, LOCK).await.unwrap().is_empty(), "no node, no queue");
        let (first, second) = (world.mutex().await, world.mutex().await);
        let guard = first.lock_with(label("a")).await.unwrap();
        let _b = world.queue_up_with(&second, label("b")).await;
        let _c = world.queue_up_with(&first, label("c")).await;
        world.make(&format!("{LOCK}/config")).await;

        let entries = queue(&world.observer, LOCK).await.unwrap();
        assert_eq!(labels(&entries), ["a", "b", "c"]);
        assert_eq!(entries[0].path, *guard.path());
        assert_eq!(entries[0].fencing_token, guard.fencing_token());
        let sequences: Vec<_> = entries.iter().map(|entry| entry.sequence).collect();
        match world.env.is_etcd() {
            true => assert!(sequences.is_sorted()),
            false => assert_eq!(sequences, [0, 1, 2]),
        }
        let owners: Vec<_> = entries.iter().map(|entry| entry.owner).collect();
        let sessions = [&first, &second, &first].map(|mutex| mutex.client().current_session().id());
        assert_eq!(owners, sessions);
    }

    async fn more_than_one_request_can_read_are_listed(env: Env) {
        let world = World::new(env).await;
        let mutex = world.mutex().await;
        let _guard = mutex.lock().await.unwrap();
        let waiters: Vec<_> = (0..600)
            .map(|_| {
                let mutex = mutex.clone();
                tokio::spawn(async move { mutex.lock().await })
            })
            .collect();
        world.until_count(601).await;
        let entries = queue(&world.observer, LOCK).await.unwrap();
        assert_eq!(entries.len(), 601);
        assert!(entries.is_sorted_by_key(|entry| entry.sequence));
        waiters.iter().for_each(|waiter| waiter.abort());
        world.until_count(1).await;
    }

    async fn an_observer_sees_the_queue_now_and_at_each_change(env: Env) {
        let world = World::new(env).await;
        let mut snapshots = observe(&world.observer, LOCK).unwrap();
        assert_eq!(snapshots.next().await, Some(Ok(Vec::new())));
        let mutex = world.mutex().await;
        let guard = mutex.lock_with(label("a")).await.unwrap();
        until_shown(&mut snapshots, &["a"]).await;
        let waiter = world.queue_up_with(&mutex, label("b")).await;
        until_shown(&mut snapshots, &["a", "b"]).await;
        guard.release().await.unwrap();
        until_shown(&mut snapshots, &["b"]).await;
        granted(waiter).await.release().await.unwrap();
        until_shown(&mut snapshots, &[]).await;
    }

    async fn an_observer_reads_again_after_a_reconnection(env: Env) {
        let world = World::new(env).await;
        let observer = world.client().await;
        let mut snapshots = observe(&observer, LOCK).unwrap();
        let guard = world.mutex().await.lock_with(label("a")).await.unwrap();
        until_shown(&mut snapshots, &["a"]).await;
        world.disconnect(&observer);
        let waiting = world.mutex().await;
        let _waiter = world.queue_up_with(&waiting, label("b")).await;
        guard.release().await.unwrap();
        world.until_count(1).await;
        world.reconnect(&observer);
        until_shown(&mut snapshots, &["b"]).await;
    }

    async fn a_queue_that_is_created_while_its_absence_is_read_is_watched(env: Env) {
        let world = World::new(env).await;
        let gate = Gate::new(RequestKind::Exists);
        let store = gate.store(&world.env);
        let mut snapshots = observe(&store.client().await.unwrap(), LOCK).unwrap();
        let created = async {
            // The list was refused, and the watch for the creation is held back.
            gate.until_come(1).await;
            world.make(LOCK).await;
            gate.let_through(1);
        };
        let (first, ()) = tokio::join!(snapshots.next(), created);
        assert_eq!(first, Some(Ok(Vec::new())));
        let _guard = world.mutex().await.lock_with(label("a")).await.unwrap();
        until_shown(&mut snapshots, &["a"]).await;
    }

    async fn an_observer_outlives_its_session(env: Env) {
        let world = World::new(env).await;
        let observer = world.client().await;
        let mut snapshots = observe(&observer, LOCK).unwrap();
        let guard = world.mutex().await.lock_with(label("a")).await.unwrap();
        until_shown(&mut snapshots, &["a"]).await;
        world.expire(&observer).await.unwrap();
        guard.release().await.unwrap();
        until_shown(&mut snapshots, &[]).await;
        let _next = world.mutex().await.lock_with(label("b")).await.unwrap();
        until_shown(&mut snapshots, &["b"]).await;
    }

    async fn an_observer_ends_with_its_client(env: Env) {
        let world = World::new(env).await;
        let observer = world.env.client_with(ConnectOptions::new().session_timeout(LONG)).await;
        let mut snapshots = observe(&observer, LOCK).unwrap();
        assert_eq!(snapshots.next().await, Some(Ok(Vec::new())));
        observer.close().await.unwrap();
        let end = snapshots.next().await.unwrap().unwrap_err();
        assert!(matches!(end, Error::SessionClosed { .. }), "{end}");
        assert!(snapshots.next().await.is_none());
    }
}
