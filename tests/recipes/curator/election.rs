//! Our election and Curator's LeaderLatch.

use std::time::Duration;

use super::{curator, curator_for};
use crate::common::*;
use crate::kazoo::kazoo;
use crate::mixed::election::*;
use crate::mixed::rwlock::queue_up;
use crate::peer::beside_others;

beside_others! {
    async fn they_lead_in_the_order_in_which_they_came(world: World) {
        they_lead_in_order(&world, &curator(&world), "latch").await;
    }

    async fn there_is_only_one_leader(world: World) {
        let process = curator(&world);
        let one = process.contender("one", "latch", LOCK).await;
        let two = process.contender("two", "latch", LOCK).await;
        there_is_never_a_second_leader(&world, [one, two]).await;
    }

    async fn a_dead_leader_of_curators_is_followed_by_ours(world: World) {
        let mortal = curator_for(&world, Duration::from_secs(4));
        let mut leader = mortal.contender("leader", "latch", LOCK).await;
        leader.acquire().await;
        let ours = election(&world).await;
        assert!(ours.try_campaign("me").await.unwrap().is_none());
        let ours = queue_up(&world, async move { ours.campaign("me").await }).await;
        mortal.kill();
        lead(&world, ours.await.unwrap().unwrap()).await;
    }

    async fn curator_and_ours_and_kazoo_under_their_names_share_a_path(world: World) {
        world.make(LOCK).await;
        let (java, python) = (curator(&world), kazoo(&world));
        let one = java.contender("one", "latch", LOCK).await;
        let two = python.contender("two", "curator-election", LOCK).await;
        there_is_never_a_second_leader(&world, [one, two]).await;
    }
}
