//! A test for each known bug of other read-write locks, listed in docs/known-bugs.md.

use lockkeeper::testing::RequestKind;
use lockkeeper::{LockError, queue};
use lockkeeper_store::CreateMode;
use testkit::on_every_backend;

use super::*;

on_every_backend! {
    // kazoo #649
    async fn a_reader_waits_for_a_later_writer(env: Env) {
        let world = World::new(env).await;
        let first = take(&lock(&world).await, Write).await;
        let [reader, later] = queue_up_all(&world, [Read, Write]).await;
        first.release().await.unwrap();
        let reader = granted(reader).await;
        assert!(!later.is_finished());
        reader.release().await.unwrap();
        assert!(granted(later).await.is_held());
    }

    // kazoo #649, with a reader that looked again when the writer was there
    async fn a_reader_that_reconnects_waits_for_a_later_writer(env: Env) {
        let world = World::new(env).await;
        let first = take(&lock(&world).await, Write).await;
        let waiting = lock(&world).await;
        let reader = queue_up(&world, &waiting, Read).await;
        let [later] = queue_up_all(&world, [Write]).await;
        world.disconnect(waiting.client());
        world.reconnect(waiting.client());
        settled(&world, std::slice::from_ref(&waiting)).await;
        first.release().await.unwrap();
        let reader = granted(reader).await;
        assert!(!later.is_finished());
        reader.release().await.unwrap();
        assert!(granted(later).await.is_held());
    }

    // CURATOR-276
    async fn a_queued_writer_gets_in_beside_the_downgraded_one(env: Env) {
        let world = World::new(env).await;
        let holder = lock(&world).await.write().await.unwrap();
        let waiting = lock(&world).await;
        let writer = queue_up(&world, &waiting, Write).await;
        settled(&world, std::slice::from_ref(&waiting)).await;
        let reader = holder.downgrade().await.unwrap();
        settled(&world, &[waiting]).await;
        assert!(reader.is_held() && !writer.is_finished());
        reader.release().await.unwrap();
        assert!(granted(writer).await.is_held());
    }

    // CURATOR-621
    async fn a_downgraded_writer_loses_its_place(env: Env) {
        let world = World::new(env).await;
        let holder = lock(&world).await.write().await.unwrap();
        let [writer] = queue_up_all(&world, [Write]).await;
        let reader = holder.downgrade().await.unwrap();
        let order = queue(&world.observer, LOCK).await.unwrap();
        assert_eq!(&order[0].path, reader.path());
        assert!(order[1].path.as_str().contains("__WRIT__"));
        assert!(reader.is_held() && !writer.is_finished());
    }

    // CURATOR-211, CURATOR-307
    async fn my_own_node_is_deleted_while_i_wait(env: Env) {
        let world = World::new(env).await;
        for side in [Read, Write] {
            let holder = take(&lock(&world).await, Write).await;
            let [removed, next] = queue_up_all(&world, [side, Write]).await;
            let mine = queue(&world.observer, LOCK).await.unwrap().remove(1).path;
            world.revoke(&mine).await;
            holder.release().await.unwrap();
            assert_eq!(refused(removed).await, LockError::EntryDeleted { entry: mine });
            granted(next).await.release().await.unwrap();
            world.until_count(0).await;
        }
    }

    // CURATOR-620, of a reader
    async fn a_node_of_my_name_belongs_to_another_session(env: Env) {
        let world = World::new(env).await;
        let holder = take(&lock(&world).await, Write).await;
        let [reader] = queue_up_all(&world, [Read]).await;
        let mine = queue(&world.observer, LOCK).await.unwrap().remove(1).path;
        world.revoke(&mine).await;
        let session = world.observing().await;
        session.create(&mine, "", CreateMode::Ephemeral).await.unwrap();
        holder.release().await.unwrap();
        assert_eq!(refused(reader).await, LockError::EntryDeleted { entry: mine });
    }

    // Curator
    async fn all_readers_watch_the_first_writer_and_list_again_after_it(env: Env) {
        let world = World::new(env).await;
        let first = take(&lock(&world).await, Write).await;
        let (one, other) = (lock(&world).await, lock(&world).await);
        let near = queue_up(&world, &one, Read).await;
        let [second] = queue_up_all(&world, [Write]).await;
        let far = queue_up(&world, &other, Read).await;
        settled(&world, &[one.clone(), other.clone()]).await;
        let before = [&one, &other].map(|lock| world.traffic_of(lock.client()));
        first.release().await.unwrap();
        let near = granted(near).await;
        settled(&world, std::slice::from_ref(&other)).await;
        let asked_by_near = world.traffic_of(one.client()) - before[0];
        assert_eq!(asked_by_near.events, 1);
        assert_eq!(asked_by_near.requests(RequestKind::GetChildren), 0);
        assert_eq!((world.traffic_of(other.client()) - before[1]).events, 0, "it waits for the second writer");
        near.release().await.unwrap();
        granted(second).await.release().await.unwrap();
        assert!(granted(far).await.is_held());
    }
}
