//! A test for each known bug of other elections, listed in docs/known-bugs.md.

use std::sync::Arc;

use lockkeeper::testing::RequestKind;
use lockkeeper::{FencingGate, LostReason, Role};
use testkit::on_every_backend;
use tokio::sync::mpsc;

use super::*;

on_every_backend! {
    // CURATOR-724
    async fn the_parent_is_reaped_while_a_candidate_is_disconnected(env: Env) {
        let world = World::new(env).await;
        let one = election(&world).await;
        one.campaign("before").await.unwrap().resign().await.unwrap();
        let mut changes = Election::new(&world.observer, LOCK).unwrap().observe();
        world.disconnect(one.client());
        let (began, mut terms) = mpsc::unbounded_channel();
        let running = tokio::spawn({
            let one = one.clone();
            async move {
                one.run("after", |leadership: Arc<Leadership>| {
                    began.send(leadership).unwrap();
                    std::future::pending::<()>()
                })
                .await
            }
        });
        one.state().wait_for(|role| role == Role::Candidate).await.unwrap();
        // The server may have removed it already.
        let _ = world.observing().await.delete(&path(LOCK), None).await;
        world.reconnect(one.client());
        assert!(terms.recv().await.unwrap().is_held());
        until_shown(&mut changes, Some("after")).await;
        assert!(!running.is_finished());
        running.abort();
    }

    // CURATOR-644, CURATOR-645
    async fn two_candidates_that_reconnect_yield_to_each_other_for_ever(env: Env) {
        let world = World::new(env).await;
        let (one, two) = (election(&world).await, election(&world).await);
        let leading = one.campaign("one").await.unwrap();
        let campaign = stand(&world, &two, "two").await;
        let before = world.children().await;
        let sent = world.traffic();
        for round in 0..10 {
            for client in [one.client(), two.client()] {
                world.disconnect(client);
                if round % 2 == 0 {
                    world.reconnect(client);
                }
            }
            world.reconnect(two.client());
            world.reconnect(one.client());
        }
        // Both have looked since, because their later requests are answered.
        for client in [one.client(), two.client()] {
            client.current_session().exists(&path(LOCK)).await.unwrap();
        }
        assert!(leading.is_held() && !campaign.is_finished());
        assert_eq!(one.state().current(), Role::Leader { epoch: leading.epoch() });
        assert_eq!(two.state().current(), Role::Candidate);
        let (mut now, mut then) = (world.children().await, before);
        now.sort();
        then.sort();
        assert_eq!(now, then, "nobody has left the line to stand anew");
        assert_eq!((world.traffic() - sent).requests(RequestKind::Enqueue), 0);
        leading.resign().await.unwrap();
        assert!(elected(campaign).await.is_held());
    }

    // CURATOR-644, with the reply to the create lost as well
    async fn a_candidate_that_reconnects_stands_twice(env: Env) {
        let world = World::new(env).await;
        let leader = election(&world).await.campaign("leader").await.unwrap();
        let one = election(&world).await;
        world.lose_reply(one.client(), RequestKind::Enqueue);
        let campaign = stand(&world, &one, "one").await;
        for _ in 0..5 {
            world.disconnect(one.client());
            world.reconnect(one.client());
        }
        one.client().current_session().exists(&path(LOCK)).await.unwrap();
        assert_eq!(world.children().await.len(), 2);
        leader.resign().await.unwrap();
        let leadership = elected(campaign).await;
        assert_eq!(world.children().await, [leadership.path().name()]);
    }

    // CURATOR-620, CURATOR-696
    async fn after_an_expiry_the_old_node_is_believed(env: Env) {
        let world = World::new(env).await;
        let one = Election::new(&world.client_for(BRIEF).await, LOCK).unwrap();
        let old = one.campaign("old").await.unwrap();
        world.disconnect(one.client());
        assert_eq!(old.lost().await, LostReason::LeaseExpired);
        assert_eq!(one.state().current(), Role::Bystander);
        world.reconnect(one.client());
        // The session may have survived. Either way the new leadership has another znode.
        let new = loop {
            match one.campaign("new").await {
                Ok(leadership) => break leadership,
                Err(error) => assert!(error.is_session_end(), "{error}"),
            }
        };
        assert!(old.path() != new.path() && old.epoch() < new.epoch() && !old.is_held());
        assert_eq!(one.state().current(), Role::Leader { epoch: new.epoch() });
    }

    // Every latch that reports a loss only by a callback.
    async fn the_old_leader_goes_on_when_the_next_one_leads(env: Env) {
        let world = World::new(env).await;
        let mut gate = FencingGate::default();
        let one = Election::new(&world.client_for(BRIEF).await, LOCK).unwrap();
        let stopped = one.campaign("stopped").await.unwrap();
        let mut state = one.state();
        gate.admit(stopped.epoch()).unwrap();
        let campaign = stand(&world, &election(&world).await, "next").await;
        world.pause(one.client());
        let next = elected(campaign).await;
        // Known at the first check, before any event arrives.
        assert!(!stopped.is_held() && !state.current().is_leader());
        gate.admit(next.epoch()).unwrap();
        assert!(gate.admit(stopped.epoch()).is_err());
        world.resume(one.client());
        assert_eq!(state.wait_for(|role| !role.is_leader()).await, Some(Role::Bystander));
    }

    // ZOOKEEPER-4698
    async fn an_observer_loses_the_change_that_came_while_it_was_away(env: Env) {
        let world = World::new(env).await;
        let watching = election(&world).await;
        let mut changes = watching.observe();
        let one = election(&world).await.campaign("one").await.unwrap();
        until_shown(&mut changes, Some("one")).await;
        let campaign = stand(&world, &election(&world).await, "two").await;
        world.disconnect(watching.client());
        one.resign().await.unwrap();
        let two = elected(campaign).await;
        two.set_data("two, ready").await.unwrap();
        world.reconnect(watching.client());
        let change = until_shown(&mut changes, Some("two, ready")).await;
        assert_eq!(change.leader().unwrap().epoch, two.epoch());
    }
}
