//! Contenders that arrive, leave or are lost during a conversion.

use std::pin::pin;
use std::time::Duration;

use lockkeeper::testing::{RequestKind, TestStore};
use lockkeeper::{ConnectOptions, LockError, LostReason};
use testkit::on_every_backend;
use tokio::task::JoinHandle;

use super::gate::Gate;
use super::*;

/// Returns the only reader, which is about to convert behind a gate, and its attempt.
async fn about_to_convert(
    gate: &Gate,
    world: &World,
) -> (TestStore, JoinHandle<Result<Upgrade, LockError>>) {
    let store = gate.store(&world.env);
    let reader = lock_behind(&store).await.read().await.unwrap();
    let attempt = tokio::spawn(reader.try_upgrade());
    gate.until_come(1).await;
    (store, attempt)
}

async fn lock_behind(store: &TestStore) -> RwLock {
    let options = ConnectOptions::new().session_timeout(LONG);
    lock_of(&store.client_with(options).await.unwrap())
}

/// Lost messages of an operation on a guard: requests, then replies.
const LOSSES: [Losses; 11] = [
    (&[], &[]),
    (&[RequestKind::Multi], &[]),
    (&[], &[RequestKind::Multi]),
    (&[], &[RequestKind::Multi, RequestKind::Multi]),
    (
        &[RequestKind::Multi],
        &[RequestKind::Multi, RequestKind::Exists],
    ),
    (
        &[],
        &[RequestKind::Multi, RequestKind::Exists, RequestKind::Exists],
    ),
    (
        &[RequestKind::GetData],
        &[RequestKind::GetData, RequestKind::Multi],
    ),
    (
        &[],
        &[
            RequestKind::Multi,
            RequestKind::GetData,
            RequestKind::GetData,
            RequestKind::Exists,
        ],
    ),
    (&[RequestKind::Sync], &[RequestKind::GetQueue]),
    (
        &[],
        &[
            RequestKind::Sync,
            RequestKind::GetQueue,
            RequestKind::GetQueue,
        ],
    ),
    (
        &[RequestKind::Exists],
        &[
            RequestKind::GetQueue,
            RequestKind::Multi,
            RequestKind::GetQueue,
        ],
    ),
];

on_every_backend! {
    async fn a_writer_that_comes_between_the_look_and_the_conversion_has_the_upgrade_refused(env: Env) {
        let world = World::new(env).await;
        let gate = Gate::new(RequestKind::Multi);
        let (_store, attempt) = about_to_convert(&gate, &world).await;
        let waiting = lock(&world).await;
        let writer = queue_up(&world, &waiting, Write).await;
        settled(&world, &[waiting]).await;
        gate.let_through(2);
        let reader = refused_upgrade(attempt.await.unwrap().unwrap());
        gate.until_come(2).await;
        assert!(reader.is_held() && !writer.is_finished());
        assert!(world.children().await.contains(&reader.path().name().to_owned()));
        reader.release().await.unwrap();
        granted(writer).await.release().await.unwrap();
        world.until_count(0).await;
    }

    async fn a_reader_that_comes_between_the_look_and_the_conversion_has_the_upgrade_refused(env: Env) {
        let world = World::new(env).await;
        let gate = Gate::new(RequestKind::Multi);
        let (_store, attempt) = about_to_convert(&gate, &world).await;
        let other = take(&lock(&world).await, Read).await;
        gate.let_through(2);
        let reader = refused_upgrade(attempt.await.unwrap().unwrap());
        assert!(reader.is_held() && other.is_held());
        other.release().await.unwrap();
        gate.let_through(3);
        let writer = upgraded(reader.try_upgrade().await.unwrap());
        assert!(writer.is_held());
    }

    async fn readers_that_see_a_refused_upgrade_go_on_when_it_is_taken_back(env: Env) {
        let world = World::new(env).await;
        let gate = Gate::new(RequestKind::Multi);
        let (_store, attempt) = about_to_convert(&gate, &world).await;
        let early = take(&lock(&world).await, Read).await;
        gate.let_through(1);
        gate.until_come(2).await;
        // This one still sees the writer of the conversion.
        let late = queue_up(&world, &lock(&world).await, Read).await;
        let [writer, last] = queue_up_all(&world, [Write, Read]).await;
        assert!(!late.is_finished());
        gate.let_through(2);
        let reader = refused_upgrade(attempt.await.unwrap().unwrap());
        let late = granted(late).await;
        assert!(!writer.is_finished() && !last.is_finished());
        for reader in [early, late, reader.into_guard()] {
            reader.release().await.unwrap();
        }
        granted(writer).await.release().await.unwrap();
        granted(last).await.release().await.unwrap();
        world.until_count(0).await;
    }

    async fn a_contender_after_the_conversion_waits_for_the_new_writer(env: Env) {
        let world = World::new(env).await;
        // The first look passes, and the second, after the conversion, is held back.
        let gate = Gate::new(RequestKind::GetQueue);
        gate.let_through(1);
        let (_store, attempt) = about_to_convert(&gate, &world).await;
        gate.until_come(2).await;
        let [reader, writer] = queue_up_all(&world, [Read, Write]).await;
        assert!(!reader.is_finished());
        gate.let_through(2);
        let holder = upgraded(attempt.await.unwrap().unwrap());
        assert!(!reader.is_finished() && !writer.is_finished());
        let newest = holder.fencing_token();
        holder.release().await.unwrap();
        let reader = granted(reader).await;
        assert!(reader.fencing_token() > newest);
        reader.release().await.unwrap();
        assert!(granted(writer).await.is_held());
    }

    async fn a_foreign_write_to_the_node_just_before_the_conversion_stays(env: Env) {
        let world = World::new(env).await;
        let gate = Gate::new(RequestKind::Multi);
        let (_store, attempt) = about_to_convert(&gate, &world).await;
        let name = world.children().await.remove(0);
        let session = world.observing().await;
        session.set_data(&path(&format!("{LOCK}/{name}")), "a word", None).await.unwrap();
        // The first is refused, because the node's version has changed since the read.
        gate.let_through(2);
        let writer = upgraded(attempt.await.unwrap().unwrap());
        let (data, _) = session.get_data(writer.path()).await.unwrap();
        assert_eq!(data, "a word");
    }

    async fn of_two_readers_that_upgrade_at_once_neither_is_upgraded(env: Env) {
        let world = World::new(env).await;
        for _ in 0..20 {
            let one = lock(&world).await.read().await.unwrap();
            let other = lock(&world).await.read().await.unwrap();
            let (one, other) = tokio::join!(one.try_upgrade(), other.try_upgrade());
            refused_upgrade(one.unwrap()).release().await.unwrap();
            refused_upgrade(other.unwrap()).release().await.unwrap();
        }
        world.until_count(0).await;
    }

    async fn readers_that_come_and_upgrade_as_they_please_never_write_beside_another(env: Env) {
        let world = World::new(env).await;
        let inside = std::sync::Arc::new(tokio::sync::RwLock::new(()));
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let (lock, inside) = (lock(&world).await, inside.clone());
            tasks.push(tokio::spawn(async move {
                let mut had = 0;
                for _ in 0..30 {
                    let reader = lock.read().await.unwrap();
                    let shared = inside.try_read().expect("no writer is inside");
                    tokio::task::yield_now().await;
                    drop(shared);
                    match reader.try_upgrade().await.unwrap() {
                        Upgrade::Upgraded(writer) => {
                            let alone = inside.try_write().expect("nobody is inside");
                            tokio::task::yield_now().await;
                            drop(alone);
                            had += 1;
                            let reader = writer.downgrade().await.unwrap();
                            let shared = inside.try_read().expect("no writer is inside");
                            drop(shared);
                            reader.release().await.unwrap();
                        }
                        Upgrade::Refused(reader) => reader.release().await.unwrap(),
                    }
                }
                had
            }));
        }
        let mut had = 0;
        for task in tasks {
            had += task.await.unwrap();
        }
        assert!(had > 0, "somebody was alone at some time");
        world.until_count(0).await;
    }

    async fn conversions_survive_lost_requests_and_replies(env: Env) {
        let world = World::new(env).await;
        for losses in LOSSES {
            let lock = lock(&world).await;
            let reader = lock.read().await.unwrap();
            let token = reader.fencing_token();
            lose(&world, lock.client(), losses);
            let writer = upgraded(reader.try_upgrade().await.unwrap());
            world.heal();
            let new = writer.fencing_token();
            assert!(new > token && writer.is_held(), "{losses:?}");
            assert_eq!(world.children().await, [writer.path().name()], "{losses:?}");
            lose(&world, lock.client(), losses);
            let reader = writer.downgrade().await.unwrap();
            assert_eq!(reader.fencing_token(), new);
            assert_eq!(world.children().await, [reader.path().name()], "{losses:?}");
            world.heal();
            lock.client().close().await.unwrap();
            world.until_count(0).await;
        }
    }

    async fn a_refused_upgrade_survives_lost_requests_and_replies(env: Env) {
        let world = World::new(env).await;
        for losses in LOSSES {
            let gate = Gate::new(RequestKind::Multi);
            let store = gate.store(&world.env);
            let reading = lock_behind(&store).await;
            let reader = reading.read().await.unwrap();
            let token = reader.fencing_token();
            lose(&store, reading.client(), losses);
            let attempt = tokio::spawn(reader.try_upgrade());
            gate.until_come(1).await;
            let other = take(&lock(&world).await, Read).await;
            gate.let_through(u32::MAX);
            let reader = refused_upgrade(attempt.await.unwrap().unwrap());
            assert!(reader.is_held() && other.is_held(), "{losses:?}");
            assert_eq!(reader.fencing_token(), token);
            let mut names = [reader.path().name(), other.path().name()];
            names.sort();
            let mut found = world.children().await;
            found.sort();
            assert_eq!(found, names, "{losses:?}");
            reader.release().await.unwrap();
            other.release().await.unwrap();
            world.until_count(0).await;
        }
    }

    async fn a_conversion_that_is_dropped_midway_leaves_nothing(env: Env) {
        let world = World::new(env).await;
        for losses in LOSSES {
            for side in [Read, Write] {
                for polls in 0.. {
                    let lock = lock(&world).await;
                    let guard = match side {
                        Read => Had::Reader(lock.read().await.unwrap()),
                        Write => Had::Writer(lock.write().await.unwrap()),
                    };
                    world.delay_replies(lock.client(), Duration::from_millis(1));
                    lose(&world, lock.client(), losses);
                    let is_done = match guard {
                        Had::Reader(reader) => polled(reader.try_upgrade(), polls).await.is_some(),
                        Had::Writer(writer) => polled(writer.downgrade(), polls).await.is_some(),
                    };
                    world.until_count(0).await;
                    lock.client().close().await.unwrap();
                    if is_done {
                        break;
                    }
                }
            }
        }
    }

    async fn the_node_is_removed_by_another_client_midway(env: Env) {
        let world = World::new(env).await;
        // Before the conversion.
        let gate = Gate::new(RequestKind::Multi);
        let (_store, attempt) = about_to_convert(&gate, &world).await;
        let name = world.children().await.remove(0);
        world.revoke(&path(&format!("{LOCK}/{name}"))).await;
        gate.let_through(1);
        let refusal = attempt.await.unwrap().unwrap_err();
        assert_eq!(refusal, LockError::Lost(LostReason::Revoked));
        // After the conversion, before the second look.
        let gate = Gate::new(RequestKind::GetQueue);
        gate.let_through(1);
        let (_store, attempt) = about_to_convert(&gate, &world).await;
        gate.until_come(2).await;
        let name = world.children().await.remove(0);
        assert!(name.contains("__WRIT__"));
        world.revoke(&path(&format!("{LOCK}/{name}"))).await;
        gate.let_through(2);
        let refusal = attempt.await.unwrap().unwrap_err();
        assert_eq!(refusal, LockError::Lost(LostReason::Revoked));
        world.until_count(0).await;
    }

    async fn the_session_expires_midway(env: Env) {
        let world = World::new(env).await;
        let reading = lock(&world).await;
        let reader = reading.read().await.unwrap();
        world.disconnect(reading.client());
        let mut attempt = pin!(reader.try_upgrade());
        assert!(polled(&mut attempt, 1).await.is_none());
        world.expire(reading.client()).await.unwrap();
        world.reconnect(reading.client());
        let refusal = attempt.await.unwrap_err();
        assert!(matches!(refusal, LockError::Lost(_)), "{refusal}");
        world.until_count(0).await;
    }
}
