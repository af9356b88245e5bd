//! Order of readers and writers.

use std::time::Duration;

use lockkeeper::testing::RequestKind;
use lockkeeper::{LockError, LockOptions, Mutex, RwLock};
use testkit::{on_every_backend, on_every_znode_store};

use super::*;

const SHORT: Duration = Duration::from_millis(30);

on_every_backend! {
    async fn readers_hold_together_and_a_writer_alone(env: Env) {
        let world = World::new(env).await;
        let (one, other) = (take(&lock(&world).await, Read).await, take(&lock(&world).await, Read).await);
        assert!(one.is_held() && other.is_held());
        let [writer] = queue_up_all(&world, [Write]).await;
        one.release().await.unwrap();
        world.until_count(2).await;
        assert!(!writer.is_finished(), "a reader is left");
        other.release().await.unwrap();
        let writer = granted(writer).await;
        let [reader, next] = queue_up_all(&world, [Read, Write]).await;
        assert!(!reader.is_finished() && !next.is_finished());
        writer.release().await.unwrap();
        granted(reader).await.release().await.unwrap();
        granted(next).await.release().await.unwrap();
        world.until_count(0).await;
    }

    async fn grants_come_in_the_order_of_queueing(env: Env) {
        let world = World::new(env).await;
        let first = take(&lock(&world).await, Write).await;
        let sides = [Read, Read, Write, Write, Read, Write, Read, Read];
        let mut waiters = queue_up_all(&world, sides).await.into_iter();
        let mut holders = vec![first];
        let mut newest = holders[0].fencing_token();
        for group in [2, 1, 1, 1, 1, 2] {
            assert!(waiters.as_slice().iter().all(|waiter| !waiter.is_finished()));
            for holder in holders.drain(..) {
                holder.release().await.unwrap();
            }
            for _ in 0..group {
                let holder = granted(waiters.next().unwrap()).await;
                assert!(holder.fencing_token() > newest);
                newest = holder.fencing_token();
                holders.push(holder);
            }
            assert!(holders.iter().all(|holder| holder.is_held()));
        }
    }

    async fn no_stream_of_readers_keeps_a_writer_waiting(env: Env) {
        let world = World::new(env).await;
        let reader = take(&lock(&world).await, Read).await;
        let writer = queue_up(&world, &lock(&world).await, Write).await;
        // It could share the lock with the first reader, but the writer was there before it.
        let late = queue_up(&world, &lock(&world).await, Read).await;
        settled(&world, &[lock(&world).await]).await;
        assert!(!late.is_finished());
        reader.release().await.unwrap();
        let writer = granted(writer).await;
        assert!(!late.is_finished());
        writer.release().await.unwrap();
        assert!(granted(late).await.is_held());
    }

    async fn no_stream_of_writers_keeps_a_reader_waiting(env: Env) {
        let world = World::new(env).await;
        let mut writer = take(&lock(&world).await, Write).await;
        let [before, reader, after] = queue_up_all(&world, [Write, Read, Write]).await;
        writer.release().await.unwrap();
        writer = granted(before).await;
        let [last] = queue_up_all(&world, [Write]).await;
        writer.release().await.unwrap();
        let reader = granted(reader).await;
        assert!(!after.is_finished() && !last.is_finished());
        reader.release().await.unwrap();
        granted(after).await.release().await.unwrap();
        assert!(granted(last).await.is_held());
    }

    async fn a_timed_out_wait_leaves_nothing(env: Env) {
        let world = World::new(env).await;
        let writer = lock(&world).await.write_timeout(LONG).await.unwrap();
        let waiting = lock(&world).await;
        for refusal in [
            waiting.read_timeout(SHORT).await.unwrap_err(),
            waiting.write_timeout(SHORT).await.unwrap_err(),
        ] {
            assert_timed_out(&refusal, LOCK, SHORT);
        }
        world.until_count(1).await;
        writer.release().await.unwrap();
        let reader = waiting.read_timeout(LONG).await.unwrap();
        reader.release().await.unwrap();
        world.until_count(0).await;
    }

    async fn a_writer_that_gives_up_lets_the_readers_behind_it_in(env: Env) {
        let world = World::new(env).await;
        let first = take(&lock(&world).await, Read).await;
        let [writer, one, other] = queue_up_all(&world, [Write, Read, Read]).await;
        writer.abort();
        assert!(granted(one).await.is_held() && granted(other).await.is_held() && first.is_held());
    }

    async fn tries_acquire_free_sides(env: Env) {
        let world = World::new(env).await;
        let lock = lock(&world).await;
        let one = lock.try_read().await.unwrap().unwrap();
        let other = lock.try_read_with(LockOptions::new().synced()).await.unwrap().unwrap();
        assert!(lock.try_write().await.unwrap().is_none());
        assert!(lock.try_write_with(LockOptions::new().synced()).await.unwrap().is_none());
        one.release().await.unwrap();
        other.release().await.unwrap();
        let writer = lock.try_write_with(LockOptions::new().synced()).await.unwrap().unwrap();
        assert!(lock.try_read().await.unwrap().is_none());
        assert!(lock.try_write().await.unwrap().is_none());
        writer.release().await.unwrap();
        let options = || LockOptions::new().label("a try");
        let writer = lock.try_write_with(options()).await.unwrap().unwrap();
        assert_eq!(writer.metadata().label.as_deref(), Some("a try"));
        writer.release().await.unwrap();
        let reader = lock.try_read_with(options()).await.unwrap().unwrap();
        assert_eq!(reader.metadata().label.as_deref(), Some("a try"));
        reader.release().await.unwrap();
        world.until_count(0).await;
    }

    async fn a_try_to_read_is_refused_while_a_writer_waits(env: Env) {
        let world = World::new(env).await;
        let _reader = take(&lock(&world).await, Read).await;
        let [_writer] = queue_up_all(&world, [Write]).await;
        assert!(lock(&world).await.try_read_with(LockOptions::new().synced()).await.unwrap().is_none());
        world.until_count(2).await;
    }

    async fn a_try_of_a_taken_lock_costs_one_read_and_no_write(env: Env) {
        let world = World::new(env).await;
        let lock = lock(&world).await;
        let before = |world: &World| world.traffic_of(lock.client());
        for (holder, reads_too) in [(Read, false), (Write, true)] {
            let holder = take(&super::lock(&world).await, holder).await;
            let start = before(&world);
            assert!(lock.try_write().await.unwrap().is_none());
            if reads_too {
                assert!(lock.try_read().await.unwrap().is_none());
            }
            let cost = before(&world) - start;
            let tries = 1 + u64::from(reads_too);
            assert_eq!((cost.requests(RequestKind::Any), cost.requests(RequestKind::GetQueue)), (tries, tries));

            let start = before(&world);
            assert!(lock.try_write_with(LockOptions::new().synced()).await.unwrap().is_none());
            let cost = before(&world) - start;
            let kinds = [RequestKind::Any, RequestKind::Sync, RequestKind::GetQueue].map(|kind| cost.requests(kind));
            assert_eq!(kinds, [2, 1, 1]);
            holder.release().await.unwrap();
        }
    }

    async fn one_of_many_concurrent_tries_to_write_acquires_and_the_others_leave_nothing(env: Env) {
        let world = World::new(env).await;
        let mut tries = Vec::new();
        for _ in 0..12 {
            let lock = lock(&world).await;
            tries.push(tokio::spawn(async move { lock.try_write().await.unwrap() }));
        }
        let mut had = Vec::new();
        for attempt in tries {
            had.extend(attempt.await.unwrap());
        }
        assert_eq!(had.len(), 1);
        world.until_count(1).await;
    }

    async fn a_path_of_another_recipe_is_refused_both_ways(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let (lock, mutex) = (lock_of(&client), Mutex::new(&client, LOCK).unwrap());
        for side in [Read, Write] {
            let holder = take(&lock, side).await;
            for refusal in [mutex.lock().await.unwrap_err(), mutex.try_lock().await.unwrap_err()] {
                assert_eq!(wrong_kind(refusal), ("mutex", "a read-write lock"));
            }
            holder.release().await.unwrap();
        }
        let holder = mutex.lock().await.unwrap();
        for refusal in [
            lock.read().await.unwrap_err(),
            lock.write().await.unwrap_err(),
            lock.try_read().await.unwrap_err(),
            lock.try_write().await.unwrap_err(),
        ] {
            assert_eq!(wrong_kind(refusal), ("read-write lock", "a mutex"));
        }
        world.until_count(1).await;
        holder.release().await.unwrap();
    }

    async fn a_full_queue_refuses_at_once_and_keeps_nothing(env: Env) {
        let world = World::new(env).await;
        let _readers = [take(&lock(&world).await, Read).await, take(&lock(&world).await, Read).await];
        let lock = lock(&world).await;
        let limit = |limit| LockOptions::new().queue_limit(limit);
        // A reader does not wait for readers.
        lock.read_with(limit(0)).await.unwrap().release().await.unwrap();
        let refusal = lock.write_with(limit(1)).await.unwrap_err();
        assert_eq!(refusal, LockError::QueueFull { path: path(LOCK), ahead: 2, limit: 1 });
        world.until_count(2).await;
        let _writer = queue_up_with(&world, &lock, Write, limit(2)).await;
        let refusal = lock.read_with(limit(2)).await.unwrap_err();
        assert_eq!(refusal, LockError::QueueFull { path: path(LOCK), ahead: 3, limit: 2 });
        world.until_count(3).await;
    }

    async fn the_clones_of_a_lock_are_one(env: Env) {
        let world = World::new(env).await;
        let lock: RwLock = lock(&world).await;
        let holder = take(&lock, Write).await;
        let waiter = queue_up(&world, &lock.clone(), Read).await;
        holder.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
        world.until_count(0).await;
    }
}

on_every_znode_store! {
    async fn names_are_curators(env: Env) {
        let world = World::new(env).await;
        let writer = take(&lock(&world).await, Write).await;
        let [_reader] = queue_up_all(&world, [Read]).await;
        let mut names = world.children().await;
        names.sort_by_key(|name| lockkeeper_store::sequence_of(name));
        for (name, (mark, number)) in names.iter().zip([("-__WRIT__", "0000000000"), ("-__READ__", "0000000001")]) {
            let (uuid, tail) = name.strip_prefix("_c_").unwrap().split_once(mark).unwrap();
            assert_eq!((uuid.len(), tail), (36, number));
        }
        writer.release().await.unwrap();
    }
}

fn wrong_kind(refusal: LockError) -> (&'static str, &'static str) {
    match refusal {
        LockError::WrongKind { expected, kind, .. } => (expected, kind),
        other => panic!("{other}"),
    }
}
