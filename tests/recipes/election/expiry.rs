//! Expired sessions of leaders, candidates and observers.

use std::sync::Arc;

use lockkeeper::{LostReason, Role};
use testkit::on_every_backend;
use tokio::sync::mpsc;

use super::*;

on_every_backend! {
    async fn a_candidate_that_expires_leaves_the_line_and_its_object_says_so(env: Env) {
        let world = World::new(env).await;
        let leader = election(&world).await.campaign("leader").await.unwrap();
        let (candidate, behind) = (election(&world).await, election(&world).await);
        let mut state = candidate.state();
        let campaign = stand(&world, &candidate, "candidate").await;
        assert_eq!(state.changed().await, Some(Role::Candidate));
        let next = stand(&world, &behind, "behind").await;
        world.expire(candidate.client()).await.unwrap();
        let error = campaign.await.unwrap().unwrap_err();
        assert!(error.is_session_end(), "{error}");
        assert_eq!(state.changed().await, Some(Role::Bystander));
        world.until_count(2).await;
        assert_eq!(behind.state().current(), Role::Candidate);
        let epoch = leader.epoch();
        leader.resign().await.unwrap();
        assert!(elected(next).await.epoch() > epoch, "nobody waits for one that is gone");
    }

    async fn an_observer_sees_leaders_expire_and_no_candidate(env: Env) {
        let world = World::new(env).await;
        let watching = election(&world).await;
        let mut changes = watching.observe();
        assert_eq!(next(&mut changes).await, LeaderChange::Vacant);
        let (first, second, third) = (election(&world).await, election(&world).await, election(&world).await);
        let one = first.campaign("one").await.unwrap();
        let shown = next(&mut changes).await;
        assert_eq!(shown.leader().unwrap().epoch, one.epoch());
        let lost = stand(&world, &second, "two").await;
        let campaign = stand(&world, &third, "three").await;
        world.expire(second.client()).await.unwrap();
        lost.await.unwrap().unwrap_err();
        world.until_count(2).await;
        world.expire(first.client()).await.unwrap();
        let three = elected(campaign).await;
        let change = until_shown(&mut changes, Some("three")).await;
        assert_eq!(change.leader().unwrap().epoch, three.epoch());
        assert!(three.epoch() > one.epoch());
        world.expire(third.client()).await.unwrap();
        assert_eq!(next(&mut changes).await, LeaderChange::Vacant);
        assert_eq!(one.lost().await, LostReason::SessionExpired);
        assert_eq!(three.lost().await, LostReason::SessionExpired);
    }

    async fn an_observer_that_expires_with_the_leader_sees_the_next(env: Env) {
        let world = World::new(env).await;
        let watching = election(&world).await;
        let mut changes = watching.observe();
        let leading = election(&world).await;
        let _lost = leading.campaign("a").await.unwrap();
        until_shown(&mut changes, Some("a")).await;
        let campaign = stand(&world, &election(&world).await, "b").await;
        world.disconnect(watching.client());
        world.expire(watching.client()).await.unwrap();
        world.expire(leading.client()).await.unwrap();
        let next_leader = elected(campaign).await;
        world.reconnect(watching.client());
        let change = until_shown(&mut changes, Some("b")).await;
        assert_eq!(change.leader().unwrap().epoch, next_leader.epoch());
    }

    async fn a_run_whose_candidacy_expires_stands_again_at_the_end_of_the_line(env: Env) {
        let world = World::new(env).await;
        let leader = election(&world).await.campaign("leader").await.unwrap();
        let one = election(&world).await;
        let (began, mut terms) = mpsc::unbounded_channel();
        let running = tokio::spawn({
            let one = one.clone();
            async move {
                one.run("one", |leadership: Arc<Leadership>| {
                    began.send(leadership).unwrap();
                    std::future::pending::<()>()
                })
                .await
            }
        });
        world.until_count(2).await;
        let before = world.children().await;
        let other = stand(&world, &election(&world).await, "other").await;
        world.expire(one.client()).await.unwrap();
        // One of the first two still leads. The other one's entry is replaced by one behind the third.
        let is_back = |names: &[String]| {
            let kept = names.iter().filter(|name| before.contains(name));
            names.len() == 3 && kept.count() == 1
        };
        until(&world.observing().await, LOCK, is_back).await;
        leader.resign().await.unwrap();
        elected(other).await.resign().await.unwrap();
        assert!(terms.recv().await.unwrap().is_held());
        running.abort();
    }

    async fn a_leader_that_is_cut_off_until_it_expires_is_succeeded_and_told(env: Env) {
        let world = World::new(env).await;
        let leading = election(&world).await;
        let mut state = leading.state();
        let lost = leading.campaign("one").await.unwrap();
        state.wait_for(Role::is_leader).await.unwrap();
        let mut changes = election(&world).await.observe();
        until_shown(&mut changes, Some("one")).await;
        let campaign = stand(&world, &election(&world).await, "two").await;
        world.disconnect(leading.client());
        world.expire(leading.client()).await.unwrap();
        let next_leader = elected(campaign).await;
        assert!(next_leader.epoch() > lost.epoch());
        until_shown(&mut changes, Some("two")).await;
        world.reconnect(leading.client());
        assert_eq!(lost.lost().await, LostReason::SessionExpired);
        assert_eq!(state.wait_for(|role| role == Role::Bystander).await, Some(Role::Bystander));
        assert!(!lost.is_held() && next_leader.is_held());
    }
}
