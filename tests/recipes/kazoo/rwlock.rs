//! Our read-write lock, and kazoo's ReadLock and WriteLock.

use super::kazoo;
use crate::common::*;
use crate::mixed::rwlock::*;
use crate::peer::beside_others;

const RENAMED: [&str; 2] = ["curator-read", "curator-write"];

beside_others! {
    async fn a_mixed_queue_is_served_in_order(world: World) {
        a_queue_is_served_in_order(&world, &kazoo(&world), RENAMED).await;
    }

    // Also under kazoo's own names, because `__lock__` keeps all our entries out.
    async fn a_writer_is_alone(world: World, sides in [RENAMED, ["read", "write"]]) {
        world.make(LOCK).await;
        a_writer_is_always_alone(&world, &kazoo(&world), sides).await;
    }

    async fn our_downgrade_keeps_a_writer_of_kazoos_out(world: World, sides in [RENAMED, ["read", "write"]]) {
        our_downgrade_keeps_the_place(&world, &kazoo(&world), sides).await;
    }

    async fn our_upgrade_fails_beside_a_reader_of_kazoos(world: World, sides in [RENAMED, ["read", "write"]]) {
        our_upgrade_is_for_the_sole_holder(&world, &kazoo(&world), sides).await;
    }

    async fn readers_share_under_kazoos_own_names_only_if_ours_came_first(world: World) {
        let process = kazoo(&world);
        let ours = rwlock(&world).await.read().await.unwrap();
        let mut theirs = process.contender("kazoo", "read", LOCK).await;
        theirs.acquire().await;
        ours.release().await.unwrap();
        // Our lock takes `__rlock__` for an exclusive holder.
        let waiter = queue_reader(&world).await;
        assert!(rwlock(&world).await.try_read().await.unwrap().is_none());
        theirs.release().await;
        read(&world, waiter.await.unwrap().unwrap()).await;
    }
}
