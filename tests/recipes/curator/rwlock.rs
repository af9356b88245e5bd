//! Our read-write lock and Curator's InterProcessReadWriteLock.

use super::curator;
use crate::common::*;
use crate::kazoo::kazoo;
use crate::mixed::rwlock::*;
use crate::peer::beside_others;

const SIDES: [&str; 2] = ["read", "write"];

beside_others! {
    async fn a_mixed_queue_is_served_in_order(world: World) {
        a_queue_is_served_in_order(&world, &curator(&world), SIDES).await;
    }

    async fn a_writer_is_alone(world: World) {
        a_writer_is_always_alone(&world, &curator(&world), SIDES).await;
    }

    async fn our_downgrade_keeps_a_writer_of_curators_out(world: World) {
        our_downgrade_keeps_the_place(&world, &curator(&world), SIDES).await;
    }

    async fn our_upgrade_fails_beside_a_reader_of_curators(world: World) {
        our_upgrade_is_for_the_sole_holder(&world, &curator(&world), SIDES).await;
    }

    async fn curator_downgrades_without_waiters(world: World) {
        let process = curator(&world);
        let mut theirs = process.contender("curator", "write", LOCK).await;
        theirs.acquire().await;
        theirs.send("downgrade");
        theirs.until_held().await;
        let reader = rwlock(&world).await.read().await.unwrap();
        let inside = enter_reader(&world, &reader).await;
        let writer = queue_writer(&world).await;
        theirs.release().await;
        assert!(!writer.is_finished());
        inside.leave().await;
        reader.release().await.unwrap();
        write(&world, writer.await.unwrap().unwrap()).await;
    }

    async fn curator_and_ours_and_kazoo_under_their_names_share_a_path(world: World) {
        world.make(LOCK).await;
        let (java, python) = (curator(&world), kazoo(&world));
        let mut one = java.contender("one", "write", LOCK).await;
        let mut two = python.contender("two", "curator-write", LOCK).await;
        let mut three = python.contender("three", "curator-read", LOCK).await;
        let ours = async {
            let lock = rwlock(&world).await;
            for _ in 0..20 {
                read(&world, lock.read().await.unwrap()).await;
                write(&world, lock.write().await.unwrap()).await;
            }
        };
        tokio::join!(ours, one.cycles(20), two.cycles(20), three.cycles(20));
        assert!(world.children().await.is_empty());
    }
}
