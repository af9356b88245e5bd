//! Observers of an election that are not candidates.

use lockkeeper::{ConnectOptions, LeaderChange};
use lockkeeper_store::CreateMode;
use testkit::on_every_backend;

use super::*;

on_every_backend! {
    async fn an_observer_sees_each_leader_and_its_data(env: Env) {
        let world = World::new(env).await;
        let watching = Election::new(&world.observer, LOCK).unwrap();
        let mut changes = watching.observe();
        assert_eq!(next(&mut changes).await, LeaderChange::Vacant, "at once");
        let one = election(&world).await.campaign("a").await.unwrap();
        let change = next(&mut changes).await;
        let LeaderChange::Elected(leader) = &change else { panic!("{change:?}") };
        assert_eq!((leader.epoch, leader.data.as_deref()), (one.epoch(), Some("a")));
        assert_eq!(watching.leader().await.unwrap().as_ref(), Some(leader));

        one.set_data("b").await.unwrap();
        let change = next(&mut changes).await;
        let LeaderChange::DataChanged(leader) = &change else { panic!("{change:?}") };
        assert_eq!((leader.epoch, leader.data.as_deref()), (one.epoch(), Some("b")));

        let campaign = stand(&world, &election(&world).await, "c").await;
        one.resign().await.unwrap();
        let two = elected(campaign).await;
        let change = next(&mut changes).await;
        let LeaderChange::Elected(leader) = &change else { panic!("{change:?}") };
        assert_eq!((leader.epoch, leader.data.as_deref()), (two.epoch(), Some("c")));
        two.resign().await.unwrap();
        assert_eq!(next(&mut changes).await, LeaderChange::Vacant);
    }

    async fn the_first_item_tells_of_a_leader_that_was_there_before(env: Env) {
        let world = World::new(env).await;
        let leadership = election(&world).await.campaign("a").await.unwrap();
        let mut changes = Election::new(&world.observer, LOCK).unwrap().observe();
        let change = next(&mut changes).await;
        assert_eq!(change.leader().map(|leader| leader.epoch), Some(leadership.epoch()));
        assert!(matches!(change, LeaderChange::Elected(_)));
    }

    async fn fast_changes_may_be_seen_together_but_the_last_is_not_missed(env: Env) {
        let world = World::new(env).await;
        let one = election(&world).await;
        let mut changes = Election::new(&world.observer, LOCK).unwrap().observe();
        assert_eq!(next(&mut changes).await, LeaderChange::Vacant);
        let mut leadership = one.campaign("term 0").await.unwrap();
        for term in 1..10 {
            leadership.resign().await.unwrap();
            leadership = one.campaign(format!("term {term}")).await.unwrap();
            for step in 0..5 {
                leadership.set_data(format!("term {term}, step {step}")).await.unwrap();
            }
        }
        let change = until_shown(&mut changes, Some("term 9, step 4")).await;
        assert_eq!(change.leader().unwrap().epoch, leadership.epoch());
    }

    async fn epochs_are_told_in_their_order(env: Env) {
        let world = World::new(env).await;
        let mut changes = Election::new(&world.observer, LOCK).unwrap().observe();
        let elections = [election(&world).await, election(&world).await];
        let terms = tokio::spawn(async move {
            for term in 0..40 {
                let leadership = elections[term % 2].campaign(term.to_string()).await.unwrap();
                leadership.resign().await.unwrap();
            }
            let last = elections[0].campaign("last").await.unwrap();
            (elections, last)
        });
        let mut told = Vec::new();
        loop {
            let change = next(&mut changes).await;
            let Some(leader) = change.leader() else { continue };
            told.push(leader.epoch);
            if leader.data.as_deref() == Some("last") {
                break;
            }
        }
        assert!(told.is_sorted_by(|a, b| a < b), "{told:?}");
        drop(terms.await.unwrap());
    }

    async fn an_observer_looks_again_after_a_reconnection(env: Env) {
        let world = World::new(env).await;
        let watching = election(&world).await;
        let mut changes = watching.observe();
        let one = election(&world).await.campaign("a").await.unwrap();
        until_shown(&mut changes, Some("a")).await;
        for (round, next) in ["b", "c", "d"].into_iter().enumerate() {
            world.disconnect(watching.client());
            one.set_data(next).await.unwrap();
            world.reconnect(watching.client());
            let change = until_shown(&mut changes, Some(next)).await;
            assert!(matches!(change, LeaderChange::DataChanged(_)), "round {round}");
        }
        world.disconnect(watching.client());
        one.resign().await.unwrap();
        world.reconnect(watching.client());
        assert_eq!(next(&mut changes).await, LeaderChange::Vacant);
        world.disconnect(watching.client());
        let _two = election(&world).await.campaign("e").await.unwrap();
        world.reconnect(watching.client());
        until_shown(&mut changes, Some("e")).await;
    }

    async fn a_reconnection_alone_is_nothing_new(env: Env) {
        let world = World::new(env).await;
        let watching = election(&world).await;
        let mut changes = watching.observe();
        let one = election(&world).await.campaign("a").await.unwrap();
        until_shown(&mut changes, Some("a")).await;
        for _ in 0..3 {
            world.disconnect(watching.client());
            world.reconnect(watching.client());
            one.keep_alive().await.unwrap();
        }
        one.set_data("b").await.unwrap();
        let change = next(&mut changes).await;
        assert_eq!(change.leader().unwrap().data.as_deref(), Some("b"), "nothing was told between");
    }

    async fn an_observer_outlives_its_session(env: Env) {
        let world = World::new(env).await;
        let watching = election(&world).await;
        let mut changes = watching.observe();
        let one = election(&world).await.campaign("a").await.unwrap();
        until_shown(&mut changes, Some("a")).await;
        world.expire(watching.client()).await.unwrap();
        one.resign().await.unwrap();
        assert_eq!(next(&mut changes).await, LeaderChange::Vacant);
        world.expire(watching.client()).await.unwrap();
        let _two = election(&world).await.campaign("b").await.unwrap();
        until_shown(&mut changes, Some("b")).await;
    }

    async fn an_observer_that_is_itself_the_leader_sees_its_own_expiry(env: Env) {
        let world = World::new(env).await;
        let one = election(&world).await;
        let mut changes = one.observe();
        let _lost = one.campaign("a").await.unwrap();
        until_shown(&mut changes, Some("a")).await;
        world.expire(one.client()).await.unwrap();
        assert_eq!(next(&mut changes).await, LeaderChange::Vacant);
        let _again = one.campaign("b").await.unwrap();
        until_shown(&mut changes, Some("b")).await;
    }

    async fn an_observer_ends_with_its_client(env: Env) {
        let world = World::new(env).await;
        let options = ConnectOptions::new().session_timeout(LONG);
        let watching = Election::new(&world.env.client_with(options).await, LOCK).unwrap();
        let mut changes = watching.observe();
        assert_eq!(next(&mut changes).await, LeaderChange::Vacant);
        watching.client().close().await.unwrap();
        let end = changes.next().await.unwrap().unwrap_err();
        assert!(matches!(end, LockError::Store(Error::SessionClosed { .. })), "{end}");
        assert!(changes.next().await.is_none());
    }

    async fn an_observer_lives_through_the_end_of_the_parent(env: Env) {
        let world = World::new(env).await;
        let mut changes = Election::new(&world.observer, LOCK).unwrap().observe();
        assert_eq!(next(&mut changes).await, LeaderChange::Vacant);
        for term in ["a", "b", "c"] {
            let leadership = election(&world).await.campaign(term).await.unwrap();
            until_shown(&mut changes, Some(term)).await;
            leadership.resign().await.unwrap();
            assert_eq!(next(&mut changes).await, LeaderChange::Vacant);
            // The server may have removed it already.
            let _ = world.observing().await.delete(&path(LOCK), None).await;
        }
    }

    async fn the_next_leaders_are_found_when_many_at_the_head_go_at_once(env: Env) {
        let world = World::new(env).await;
        let mut changes = Election::new(&world.observer, LOCK).unwrap().observe();
        let dying = election(&world).await;
        let first = dying.campaign("first").await.unwrap();
        let mut campaigns = Vec::new();
        for place in 0..20 {
            campaigns.push(stand(&world, &dying, &place.to_string()).await);
        }
        let survivor = stand(&world, &election(&world).await, "survivor").await;
        until_shown(&mut changes, Some("first")).await;
        world.expire(dying.client()).await.unwrap();
        let change = until_shown(&mut changes, Some("survivor")).await;
        assert_eq!(change.leader().unwrap().epoch, elected(survivor).await.epoch());
        assert!(!first.is_held());
    }

    async fn a_foreign_leader_is_observed(env: Env) {
        let world = World::new(env).await;
        let mut changes = Election::new(&world.observer, LOCK).unwrap().observe();
        assert_eq!(next(&mut changes).await, LeaderChange::Vacant);
        world.make(LOCK).await;
        let session = world.observing().await;
        let name = path(&format!("{LOCK}/_c_5e8a-latch-"));
        let mode = CreateMode::EphemeralSequential;
        let (node, _) = session.create(&name, "10.0.0.7", mode).await.unwrap();
        let change = next(&mut changes).await;
        assert_eq!(change.leader().unwrap().raw, "10.0.0.7");
        session.set_data(&node, "10.0.0.8", None).await.unwrap();
        let change = next(&mut changes).await;
        assert!(matches!(&change, LeaderChange::DataChanged(leader) if leader.raw == "10.0.0.8"));
    }
}
