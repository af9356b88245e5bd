//! Leaders, their successors and a leader's data.

use std::time::Duration;

use lockkeeper::testing::RequestKind;
use lockkeeper::{Election, Error, FencingGate, LockError, LockOptions, LostReason, Mutex};
use lockkeeper_store::CreateMode;
use testkit::on_every_backend;

use super::*;
use crate::harness::cancel::{at_every_point, cancelled_behind};

/// Lost messages of each campaign: requests, then replies.
const LOSSES: [Losses; 6] = [
    (&[], &[]),
    (&[RequestKind::Enqueue], &[]),
    (&[], &[RequestKind::Enqueue]),
    (
        &[],
        &[
            RequestKind::Enqueue,
            RequestKind::GetChildren,
            RequestKind::Delete,
        ],
    ),
    (&[RequestKind::Delete], &[]),
    (&[], &[RequestKind::GetPredecessor, RequestKind::MultiRead]),
];

/// Cancels a campaign after this many polls, behind a leader that resigns once both are in line. Returns true if it was
/// won.
async fn cancelled_after(world: &World, losses: Losses, polls: usize) -> bool {
    let leader = election(world).await.campaign("first").await.unwrap();
    let candidate = election(world).await;
    let client = candidate.client();
    world.lose(client, losses);
    let resign = async || leader.resign().await.unwrap();
    let campaign = candidate.campaign("second");
    let outcome = cancelled_behind(campaign, polls, world.until_count(2), resign).await;
    let won = outcome.is_some();
    if let Some(leadership) = outcome {
        leadership.unwrap().resign().await.unwrap();
    }
    until_swept(world, client).await;
    won
}

on_every_backend! {
    async fn candidates_lead_in_the_order_of_their_arrival(env: Env) {
        let world = World::new(env).await;
        let first = election(&world).await;
        let mut leadership = first.campaign("0").await.unwrap();
        let mut campaigns = Vec::new();
        for place in 1..6 {
            campaigns.push(stand(&world, &election(&world).await, &place.to_string()).await);
        }
        let mut gate = FencingGate::default();
        for campaign in campaigns {
            assert!(!campaign.is_finished());
            let epoch = leadership.epoch();
            gate.admit(epoch).unwrap();
            leadership.resign().await.unwrap();
            leadership = elected(campaign).await;
            assert!(leadership.epoch() > epoch, "epochs only grow");
            let leader = first.leader().await.unwrap().expect("somebody leads");
            assert_eq!(leader.data, Some(leadership.data()));
            assert_eq!(leader.epoch, leadership.epoch());
            assert_eq!(leader.path, *leadership.path());
            assert_eq!(leader.owner, leadership.session().id());
        }
        assert_eq!(leadership.data(), "5");
    }

    async fn every_end_of_a_term_hands_over(env: Env) {
        let world = World::new(env).await;
        for end in ["resigned", "dropped", "expired", "closed", "cut off", "revoked", "guard"] {
            let leading = match end {
                "cut off" => Election::new(&world.client_for(BRIEF).await, LOCK).unwrap(),
                _ => election(&world).await,
            };
            let old = leading.campaign(end).await.unwrap();
            let epoch = old.epoch();
            let campaign = stand(&world, &election(&world).await, "next").await;
            let lost = match end {
                "resigned" => {
                    old.resign().await.unwrap();
                    None
                }
                "dropped" => {
                    drop(old);
                    None
                }
                "guard" => {
                    old.into_guard().release().await.unwrap();
                    None
                }
                "expired" => {
                    world.expire(leading.client()).await.unwrap();
                    Some((old, LostReason::SessionExpired))
                }
                "closed" => {
                    leading.client().close().await.unwrap();
                    Some((old, LostReason::SessionClosed))
                }
                "cut off" => {
                    world.disconnect(leading.client());
                    Some((old, LostReason::LeaseExpired))
                }
                _ => {
                    world.revoke(old.path()).await;
                    Some((old, LostReason::Revoked))
                }
            };
            let next = elected(campaign).await;
            assert!(next.epoch() > epoch, "{end}");
            if let Some((old, reason)) = lost {
                assert_eq!(old.lost().await, reason, "{end}");
                assert!(!old.is_held() && next.is_held(), "{end}");
            }
            next.resign().await.unwrap();
            if end == "cut off" {
                world.reconnect(leading.client());
            }
            world.until_count(0).await;
        }
    }

    async fn a_try_leads_only_without_other_candidates(env: Env) {
        let world = World::new(env).await;
        let (one, other) = (election(&world).await, election(&world).await);
        let leadership = one.try_campaign("one").await.unwrap().expect("nobody stands");
        assert_eq!(leadership.data(), "one");
        let before = world.traffic_of(other.client());
        assert!(other.try_campaign("other").await.unwrap().is_none());
        let cost = world.traffic_of(other.client()) - before;
        assert_eq!((cost.requests(RequestKind::Any), cost.requests(RequestKind::GetQueue)), (1, 1));
        leadership.resign().await.unwrap();
        assert!(other.try_campaign("other").await.unwrap().is_some());
    }

    async fn a_campaign_that_is_timed_out_leaves_the_line(env: Env) {
        let world = World::new(env).await;
        let _leadership = election(&world).await.campaign("one").await.unwrap();
        let after = Duration::from_millis(50);
        let outcome = election(&world).await.campaign_timeout("two", after).await;
        assert_timed_out(&outcome.unwrap_err(), LOCK, after);
        world.until_count(1).await;
    }

    async fn a_campaign_that_is_killed_at_any_point_leaves_nothing(env: Env) {
        let world = World::new(env).await;
        for losses in LOSSES {
            at_every_point(async |polls| cancelled_after(&world, losses, polls).await).await;
        }
    }

    async fn a_campaign_has_options(env: Env) {
        let world = World::new(env).await;
        let (one, other) = (election(&world).await, election(&world).await);
        let options = LockOptions::new().label("billing").field("data", "not this").field("zone", 7);
        let _leadership = one.campaign_with("this", options).await.unwrap();
        let leader = other.leader().await.unwrap().unwrap();
        let metadata = leader.metadata.unwrap();
        assert_eq!(leader.data.as_deref(), Some("this"));
        assert_eq!(metadata.label.as_deref(), Some("billing"));
        assert_eq!(metadata.other["zone"], 7);
        assert_eq!(metadata.pid, Some(std::process::id()));
        let refusal = other.campaign_with("other", LockOptions::new().queue_limit(0)).await;
        assert!(matches!(refusal, Err(LockError::QueueFull { ahead: 1, limit: 0, .. })));
        world.until_count(1).await;
    }

    async fn a_leader_changes_its_data(env: Env) {
        let world = World::new(env).await;
        let one = election(&world).await;
        let options = LockOptions::new().label("billing");
        let leadership = one.campaign_with("starting", options).await.unwrap();
        world.lose_request(one.client(), RequestKind::SetData);
        leadership.set_data("ready").await.unwrap();
        world.lose_reply(one.client(), RequestKind::SetData);
        leadership.keep_alive().await.unwrap();
        let leader = one.leader().await.unwrap().unwrap();
        assert_eq!((leadership.data(), leader.data.as_deref()), ("ready".into(), Some("ready")));
        let metadata = leader.metadata.unwrap();
        assert_eq!((metadata.label.as_deref(), metadata.kept_alive), (Some("billing"), Some(1)));

        // Of two concurrent changes, the later call wins whatever is lost.
        world.lose_request(one.client(), RequestKind::SetData);
        let (earlier, later) = tokio::join!(leadership.set_data("a"), leadership.set_data("b"));
        assert_eq!((earlier, later), (Ok(()), Ok(())));
        assert_eq!(leadership.data(), "b");
        assert_eq!(one.leader().await.unwrap().unwrap().data.as_deref(), Some("b"));
    }

    async fn refused_data_of_a_leader_is_not_published(env: Env) {
        let world = World::new(env).await;
        let one = election(&world).await;
        let leadership = one.campaign("short").await.unwrap();
        let refusal = leadership.set_data("x".repeat(2_000_000)).await;
        assert!(matches!(refusal, Err(LockError::Store(Error::TooLarge { .. }))), "{refusal:?}");
        assert_eq!(leadership.data(), "short");
        world.expire(one.client()).await.unwrap();
        let refusal = leadership.set_data("late").await;
        assert_eq!(refusal, Err(LockError::Lost(LostReason::SessionExpired)));
        let resigned = leadership.resign().await;
        assert_eq!(resigned, Err(LockError::Lost(LostReason::SessionExpired)));
    }

    async fn data_may_be_any_text(env: Env) {
        let world = World::new(env).await;
        let one = election(&world).await;
        for data in ["", "\"", "ä\n\0", r#"{"v":1}"#, "null"] {
            let leadership = one.campaign(data).await.unwrap();
            let leader = one.leader().await.unwrap().unwrap();
            assert_eq!((leader.data.as_deref(), leadership.data().as_str()), (Some(data), data));
            leadership.resign().await.unwrap();
        }
    }

    // Curator's LeaderLatch writes the participant's id verbatim.
    async fn a_foreign_leader_is_shown_as_such(env: Env) {
        let world = World::new(env).await;
        world.make(LOCK).await;
        let session = world.observing().await;
        let name = path(&format!("{LOCK}/_c_5e8a-latch-"));
        let mode = CreateMode::EphemeralSequential;
        let (node, stat) = session.create(&name, "10.0.0.7", mode).await.unwrap();
        let one = election(&world).await;
        let leader = one.leader().await.unwrap().expect("the stranger leads");
        assert_eq!((leader.data, leader.metadata), (None, None));
        assert_eq!((&leader.raw[..], leader.owner), (&b"10.0.0.7"[..], session.id()));
        let campaign = stand(&world, &one, "ours").await;
        session.delete(&node, None).await.unwrap();
        let leadership = elected(campaign).await;
        assert!(leadership.epoch().as_i64() > stat.czxid.0);
        assert!(leadership.path().name().contains("-latch-"));
    }

    async fn a_path_of_another_recipe_is_refused(env: Env) {
        let world = World::new(env).await;
        let _guard = world.mutex().await.lock().await.unwrap();
        let one = election(&world).await;
        let is_refused = |error: LockError| {
            assert!(matches!(error, LockError::WrongKind { kind: "a mutex", .. }), "{error}");
        };
        is_refused(one.leader().await.unwrap_err());
        is_refused(one.campaign("one").await.unwrap_err());
        is_refused(one.try_campaign("one").await.unwrap_err());
        is_refused(one.observe().next().await.unwrap().unwrap_err());
        is_refused(one.run("one", |_| async {}).await.unwrap_err());
        world.until_count(1).await;
        let mutex = Mutex::new(one.client(), "/elsewhere").unwrap();
        let other = Election::new(one.client(), "/elsewhere").unwrap();
        let _leadership = other.campaign("other").await.unwrap();
        assert!(matches!(mutex.lock().await, Err(LockError::WrongKind { kind: "an election", .. })));
    }

    async fn a_removal_is_noticed_without_a_waiter(env: Env) {
        let world = World::new(env).await;
        let one = election(&world).await;
        let mut state = one.state();
        let leadership = one.campaign("one").await.unwrap();
        let removed = leadership.path().clone();
        state.changed().await.unwrap();
        // The watch is armed once a later request is answered.
        one.client().current_session().exists(&removed).await.unwrap();
        world.revoke(&removed).await;
        state.wait_for(|role| !role.is_leader()).await.unwrap();
        assert!(!leadership.is_held());
        assert_eq!(leadership.lost().await, LostReason::Revoked);
        assert_eq!(leadership.resign().await, Err(LockError::Lost(LostReason::Revoked)));
    }
}
