//! Conversion of a writer to a reader and back.

use lockkeeper::testing::RequestKind;
use lockkeeper::{LockError, LockEvent, LockOptions, LostReason, lock_events};
use testkit::on_every_backend;

use super::*;

on_every_backend! {
    async fn a_downgrade_keeps_the_place_and_the_token(env: Env) {
        let world = World::new(env).await;
        let writer = lock(&world).await.write().await.unwrap();
        let (token, at) = (writer.fencing_token(), writer.path().clone());
        let reader = writer.downgrade().await.unwrap();
        assert_eq!(reader.fencing_token(), token);
        assert_eq!(reader.path().as_str(), at.as_str().replace("__WRIT__", "__READ__"));
        assert_eq!(world.children().await, [reader.path().name()]);
        assert!(reader.is_held());
        let another = take(&lock(&world).await, Read).await;
        reader.release().await.unwrap();
        another.release().await.unwrap();
        world.until_count(0).await;
    }

    async fn a_downgrade_lets_the_readers_in_up_to_the_next_writer(env: Env) {
        let world = World::new(env).await;
        let writer = lock(&world).await.write().await.unwrap();
        let [one, other, next, late] = queue_up_all(&world, [Read, Read, Write, Read]).await;
        let reader = writer.downgrade().await.unwrap();
        let readers = [granted(one).await, granted(other).await];
        assert!(readers.iter().all(|guard| guard.is_held()) && reader.is_held());
        assert!(!next.is_finished() && !late.is_finished());
        reader.release().await.unwrap();
        for guard in readers {
            assert!(!next.is_finished());
            guard.release().await.unwrap();
        }
        let next = granted(next).await;
        assert!(!late.is_finished());
        next.release().await.unwrap();
        assert!(granted(late).await.is_held());
    }

    async fn a_sole_reader_becomes_the_writer(env: Env) {
        let world = World::new(env).await;
        let reader = lock(&world).await.read().await.unwrap();
        let (token, at) = (reader.fencing_token(), reader.path().clone());
        let writer = upgraded(reader.try_upgrade().await.unwrap());
        assert!(writer.fencing_token() > token);
        assert_eq!(writer.path().as_str(), at.as_str().replace("__READ__", "__WRIT__"));
        let [waiter] = queue_up_all(&world, [Read]).await;
        assert!(lock(&world).await.try_read_with(LockOptions::new().synced()).await.unwrap().is_none());
        assert!(!waiter.is_finished());
        let newest = writer.fencing_token();
        writer.release().await.unwrap();
        let next = granted(waiter).await;
        assert!(next.fencing_token() > newest);
        next.release().await.unwrap();
        world.until_count(0).await;
    }

    async fn an_upgrade_beside_another_reader_is_refused_without_a_write(env: Env) {
        let world = World::new(env).await;
        let reading = lock(&world).await;
        let reader = reading.read().await.unwrap();
        let other = take(&lock(&world).await, Read).await;
        let (token, at) = (reader.fencing_token(), reader.path().clone());
        let before = world.traffic_of(reading.client());
        let reader = refused_upgrade(reader.try_upgrade().await.unwrap());
        let cost = world.traffic_of(reading.client()) - before;
        let kinds = [RequestKind::Any, RequestKind::Sync, RequestKind::GetQueue].map(|kind| cost.requests(kind));
        assert_eq!(kinds, [2, 1, 1]);
        assert_eq!((reader.fencing_token(), reader.path()), (token, &at));
        assert!(reader.is_held() && other.is_held());
        other.release().await.unwrap();
        let writer = upgraded(reader.try_upgrade().await.unwrap());
        assert!(writer.is_held());
    }

    async fn an_upgrade_with_another_queued_is_refused(env: Env) {
        let world = World::new(env).await;
        let reader = lock(&world).await.read().await.unwrap();
        let [writer] = queue_up_all(&world, [Write]).await;
        let reader = refused_upgrade(reader.try_upgrade().await.unwrap());
        assert!(reader.is_held() && !writer.is_finished());
        reader.release().await.unwrap();
        assert!(granted(writer).await.is_held());
    }

    async fn there_and_back_again(env: Env) {
        let world = World::new(env).await;
        let mut reader = lock(&world).await.read().await.unwrap();
        let at = reader.path().clone();
        let mut tokens = vec![reader.fencing_token()];
        for _ in 0..3 {
            let writer = upgraded(reader.try_upgrade().await.unwrap());
            tokens.push(writer.fencing_token());
            reader = writer.downgrade().await.unwrap();
            assert_eq!(Some(&reader.fencing_token()), tokens.last());
            assert_eq!(reader.path(), &at);
        }
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
        reader.release().await.unwrap();
        world.until_count(0).await;
    }

    async fn a_conversion_keeps_the_holders_metadata(env: Env) {
        let world = World::new(env).await;
        let options = LockOptions::new().label("billing");
        let writer = lock(&world).await.write_with(options).await.unwrap();
        writer.keep_alive().await.unwrap();
        let reader = writer.downgrade().await.unwrap();
        reader.keep_alive().await.unwrap();
        let entry = lockkeeper::queue(&world.observer, LOCK).await.unwrap().remove(0);
        let metadata = entry.metadata.unwrap();
        assert_eq!(metadata, reader.metadata());
        assert_eq!(metadata.label.as_deref(), Some("billing"));
        assert_eq!(metadata.kept_alive, Some(2));
    }

    async fn a_conversion_is_no_loss_and_has_its_own_events(env: Env) {
        let world = World::new(env).await;
        let (sink, mut events) = lock_events();
        let reading = lock(&world).await;
        let reader = reading.read_with(LockOptions::new().events(sink)).await.unwrap();
        assert!(matches!(events.next().await, Some(LockEvent::Acquired { .. })));
        let writer = upgraded(reader.try_upgrade().await.unwrap());
        let token = writer.fencing_token();
        let reader = writer.downgrade().await.unwrap();
        settled(&world, &[reading]).await;
        assert!(reader.is_held());
        reader.release().await.unwrap();
        assert!(matches!(events.next().await, Some(LockEvent::Upgraded { fencing_token: new }) if new == token));
        assert!(matches!(events.next().await, Some(LockEvent::Downgraded)));
        assert!(matches!(events.next().await, Some(LockEvent::Released)));
        assert!(events.next().await.is_none());
    }

    async fn a_removal_after_a_conversion_is_noticed(env: Env) {
        let world = World::new(env).await;
        let reader = lock(&world).await.read().await.unwrap();
        let writer = upgraded(reader.try_upgrade().await.unwrap());
        world.revoke(writer.path()).await;
        assert_eq!(writer.lost().await, LostReason::Revoked);
        let writer = lock(&world).await.write().await.unwrap();
        world.revoke(writer.path()).await;
        assert_eq!(writer.downgrade().await.unwrap_err(), LockError::Lost(LostReason::Revoked));
        let reader = lock(&world).await.read().await.unwrap();
        world.revoke(reader.path()).await;
        assert_eq!(reader.try_upgrade().await.unwrap_err(), LockError::Lost(LostReason::Revoked));
        world.until_count(0).await;
    }

    async fn a_lost_lock_is_not_converted(env: Env) {
        let world = World::new(env).await;
        let (reading, writing) = (lock(&world).await, lock(&world).await);
        let reader = reading.read().await.unwrap();
        world.expire(reading.client()).await.unwrap();
        let reason = reader.lost().await;
        assert_eq!(reader.try_upgrade().await.unwrap_err(), LockError::Lost(reason));
        let writer = writing.write().await.unwrap();
        writing.client().close().await.unwrap();
        let refusal = writer.downgrade().await.unwrap_err();
        assert_eq!(refusal, LockError::Lost(LostReason::SessionClosed));
        world.until_count(0).await;
    }
}
