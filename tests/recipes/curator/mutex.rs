//! Our mutex and Curator's InterProcessMutex.

use std::time::Duration;

use lockkeeper::{lock_all, queue};
use lockkeeper_store::CreateMode;

use super::{curator, curator_for};
use crate::common::*;
use crate::kazoo::kazoo;
use crate::mixed;
use crate::peer::{As, beside_others, enter, work};

beside_others! {
    async fn curator_waits_behind_ours(world: World) {
        let process = curator(&world);
        let theirs = process.contender("curator", "mutex", LOCK).await;
        mixed::mutex::theirs_waits_behind_ours(&world, theirs).await;
    }

    async fn ours_waits_behind_curator(world: World) {
        let process = curator(&world);
        let theirs = process.contender("curator", "mutex", LOCK).await;
        mixed::mutex::ours_waits_behind_theirs(&world, theirs).await;
    }

    async fn a_mixed_queue_is_served_in_order(world: World) {
        mixed::mutex::a_queue_is_served_in_order(&world, &curator(&world), "mutex").await;
    }

    async fn a_holder_that_is_still_at_work_keeps_curator_out(world: World) {
        let process = curator(&world);
        let theirs = process.contender("curator", "mutex", LOCK).await;
        mixed::mutex::a_busy_holder_keeps_them_out(&world, theirs).await;
    }

    async fn there_is_never_a_second_holder(world: World) {
        let process = curator(&world);
        let one = process.contender("one", "mutex", LOCK).await;
        let two = process.contender("two", "mutex", LOCK).await;
        mixed::mutex::there_is_never_a_second_holder(&world, [one, two]).await;
    }

    async fn a_dead_holder_hands_over_to_the_next_of_either_library(world: World) {
        let mortal = curator_for(&world, Duration::from_secs(4));
        let process = curator(&world);
        let next = process.contender("next", "mutex", LOCK).await;
        mixed::mutex::the_dead_hand_over(&world, mortal, next).await;
    }

    async fn data_of_curators_entries_is_shown_unchanged(world: World) {
        let process = curator(&world);
        let mut theirs = process.contender("curator", "mutex", LOCK).await;
        let holder = theirs.acquire().await;
        let entries = queue(&world.observer, LOCK).await.unwrap();
        let [entry] = entries.as_slice() else {
            panic!("{entries:?}");
        };
        assert_eq!(entry.path.name(), holder);
        assert_eq!(entry.metadata, None);
        let address = std::str::from_utf8(&entry.data).unwrap();
        assert!(address.parse::<std::net::IpAddr>().is_ok(), "{address}");
        theirs.release().await;
    }

    async fn parents_that_curator_made_are_good_for_ours(world: World, how in ["container", "empty", "address"]) {
        let process = curator(&world);
        let mut theirs = process.contender("curator", "mutex", LOCK).await;
        theirs.send(&format!("make {how} {LOCK}"));
        theirs.answer_of("made").await;
        let session = world.observing().await;
        let (made, _) = session.get_data(&path(LOCK)).await.unwrap();
        assert_eq!(made.is_empty(), how != "address");

        let guard = world.mutex().await.lock().await.unwrap();
        assert_eq!(theirs.queue_up().await, guard.path().name());
        let ours = world.queue_up(&world.mutex().await).await;
        work(&world, guard).await;
        theirs.held_next().await;
        theirs.release().await;
        work(&world, granted(ours).await).await;
        // We must not change data that another program wrote there.
        let (left, _) = session.get_data(&path(LOCK)).await.unwrap();
        assert_eq!(left, made, "{how}");
    }

    async fn the_release_marker_wakes_no_contender_of_curators(world: World) {
        let process = curator(&world);
        let first = world.mutex().await.lock().await.unwrap();
        let second = world.queue_up(&world.mutex().await).await;
        let mut theirs = [
            process.contender("one", "mutex", LOCK).await,
            process.contender("two", "mutex", LOCK).await,
        ];
        for contender in &mut theirs {
            assert_eq!(contender.queue_up().await, mixed::mutex::last_but_one(&world).await);
        }
        let session = world.observing().await;
        let mark = async || session.get_data(&path(LOCK)).await.unwrap().0;
        let before = mark().await;
        first.release().await.unwrap();
        work(&world, granted(second).await).await;
        assert_ne!(mark().await, before, "who has waited leaves a mark");
        // Each looks only when the one ahead has left.
        for contender in &mut theirs {
            contender.held_next().await;
            contender.release().await;
        }
        assert!(world.children().await.is_empty());
    }

    async fn curator_and_ours_and_kazoo_under_their_names_share_a_path(world: World) {
        world.make(LOCK).await;
        let (java, python) = (curator(&world), kazoo(&world));
        let one = java.contender("one", "mutex", LOCK).await;
        let two = python.contender("two", "curator-lock", LOCK).await;
        mixed::mutex::there_is_never_a_second_holder(&world, [one, two]).await;
    }

    async fn curator_gets_in_beside_a_kazoo_under_its_own_names(world: World) {
        let (java, python) = (curator(&world), kazoo(&world));
        let mut kazoo = python.contender("kazoo", "lock", LOCK).await;
        kazoo.acquire().await;
        let mut curator = java.contender("curator", "mutex", LOCK).await;
        curator.send("acquire");
        let failure = curator.failure().await;
        assert!(failure.contains("beside others"), "{failure}");
    }

    async fn children_that_are_no_contenders_disturb_neither(world: World) {
        world.make(LOCK).await;
        let session = world.observing().await;
        let config = path(&format!("{LOCK}/config"));
        session.create(&config, "x", CreateMode::Persistent).await.unwrap();
        let process = curator(&world);
        let mut theirs = process.contender("curator", "mutex", LOCK).await;
        theirs.acquire().await;
        let ours = world.queue_up(&world.mutex().await).await;
        theirs.release().await;
        work(&world, granted(ours).await).await;
    }

    async fn several_locks_at_once_wait_for_curator_and_keep_it_waiting(world: World) {
        const OTHER: &str = "/lock/other";
        world.make(OTHER).await;
        let process = curator(&world);
        let mut holder = process.contender("holder", "mutex", LOCK).await;
        holder.acquire().await;
        let client = world.client().await;
        let both = tokio::spawn(async move { lock_all(&client, [LOCK, OTHER]).await });
        world.until_count(2).await;
        let [entry] = &queue(&world.observer, OTHER).await.unwrap()[..] else {
            panic!("it stands in both queues");
        };
        let mut next = process.contender("next", "mutex", OTHER).await;
        assert_eq!(next.queue_up().await, entry.path.name());
        assert!(!both.is_finished());
        holder.release().await;
        let both = both.await.unwrap().unwrap();
        let inside = enter(&world, As::Only, &entry.path, both.fencing_token()).await;
        inside.leave().await;
        both.release().await.unwrap();
        next.held_next().await;
        next.release().await;
    }
}
