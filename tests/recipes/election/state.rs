//! The role of an election object itself.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use lockkeeper::testing::TestStore;
use lockkeeper::{ConnectOptions, ElectionState, Role};
use testkit::on_every_backend;

use super::*;

/// Returns the changes up to this role.
async fn roles_until(state: &mut ElectionState, last: Role) -> Vec<Role> {
    let mut roles = Vec::new();
    while roles.last() != Some(&last) {
        roles.push(state.changed().await.expect("the election is there"));
    }
    roles
}

on_every_backend! {
    async fn a_state_follows_the_campaign(env: Env) {
        let world = World::new(env).await;
        let leader = election(&world).await.campaign("other").await.unwrap();
        let one = election(&world).await;
        let mut state = one.clone().state();
        assert_eq!(state.current(), Role::Bystander);
        let campaign = stand(&world, &one, "one").await;
        assert_eq!(state.changed().await, Some(Role::Candidate));
        leader.resign().await.unwrap();
        let leadership = elected(campaign).await;
        let leading = Role::Leader { epoch: leadership.epoch() };
        assert_eq!((state.changed().await, state.current()), (Some(leading), leading));
        let mut other = state.clone();
        let resigned = leadership.resign();
        assert_eq!(state.current(), Role::Bystander, "from the call on");
        resigned.await.unwrap();
        assert_eq!(state.changed().await, Some(Role::Bystander));
        assert_eq!(other.changed().await, Some(Role::Bystander), "each handle sees it");
    }

    async fn a_cancelled_campaign_ends_the_candidacy(env: Env) {
        let world = World::new(env).await;
        let _leader = election(&world).await.campaign("other").await.unwrap();
        let one = election(&world).await;
        let mut state = one.state();
        let campaign = stand(&world, &one, "one").await;
        assert_eq!(state.changed().await, Some(Role::Candidate));
        campaign.abort();
        assert_eq!(state.changed().await, Some(Role::Bystander));
    }

    async fn of_several_campaigns_of_one_object_the_best_counts(env: Env) {
        let world = World::new(env).await;
        let one = election(&world).await;
        let first = one.campaign("one").await.unwrap();
        let mut state = one.state();
        let campaign = stand(&world, &one, "again").await;
        assert_eq!(state.current(), Role::Leader { epoch: first.epoch() });
        first.resign().await.unwrap();
        let second = elected(campaign).await;
        let last = Role::Leader { epoch: second.epoch() };
        let roles = roles_until(&mut state, last).await;
        assert!(roles == [last] || roles == [Role::Candidate, last], "{roles:?}");
        assert_eq!(election(&world).await.state().current(), Role::Bystander, "another object's");
    }

    async fn every_loss_is_reported_without_a_request(env: Env) {
        let world = World::new(env).await;
        for end in ["expired", "closed", "cut off"] {
            let client = match end {
                "cut off" => world.client_for(BRIEF).await,
                _ => world.client().await,
            };
            let one = Election::new(&client, LOCK).unwrap();
            let mut state = one.state();
            let leadership = one.campaign(end).await.unwrap();
            state.wait_for(Role::is_leader).await.unwrap();
            match end {
                "expired" => world.expire(&client).await.unwrap(),
                "closed" => client.close().await.unwrap(),
                _ => world.disconnect(&client),
            }
            assert_eq!(state.changed().await, Some(Role::Bystander), "{end}");
            assert!(!leadership.is_held(), "{end}");
            if end == "cut off" {
                world.reconnect(&client);
            }
            drop(leadership);
            world.until_count(0).await;
        }
    }

    async fn a_state_ends_when_nothing_can_change_it(env: Env) {
        let world = World::new(env).await;
        let one = election(&world).await;
        let mut state = one.state();
        let leadership = one.campaign("one").await.unwrap();
        drop(one);
        assert!(state.changed().await.is_some_and(Role::is_leader), "the leadership is left");
        let mut ending = state.clone();
        let waiting = tokio::spawn(async move {
            assert_eq!(ending.changed().await, Some(Role::Bystander));
            ending.changed().await
        });
        leadership.resign().await.unwrap();
        assert_eq!(waiting.await.unwrap(), None);
        assert_eq!(state.wait_for(Role::is_leader).await, None);
    }

    async fn a_guard_that_was_taken_out_is_no_longer_counted(env: Env) {
        let world = World::new(env).await;
        let one = election(&world).await;
        let guard = one.campaign("one").await.unwrap().into_guard();
        assert_eq!(one.state().current(), Role::Bystander);
        assert!(guard.is_held());
        guard.release().await.unwrap();
        world.until_count(0).await;
    }
}

/// In virtual time, through a pause of the client: the state reports the loss in the same moment in which the lease
/// ends.
#[tokio::test]
async fn a_state_never_says_leader_when_the_leadership_is_lost() {
    let store = TestStore::new();
    let timeout = Duration::from_secs(10);
    let client = store
        .client_with(ConnectOptions::new().session_timeout(timeout))
        .await
        .unwrap();
    let one = Election::new(&client, LOCK).unwrap();
    let state = one.state();
    let leadership = one.campaign("one").await.unwrap();
    store.pause(&client);
    let step_length = client.current_session().timeout().unwrap() / 400;
    let mut was_leader = 0;
    for step in 0..400 {
        assert_eq!(
            state.current().is_leader(),
            leadership.is_held(),
            "step {step}"
        );
        was_leader += usize::from(leadership.is_held());
        // No task has run since, so the state is computed from the clock.
        store.clock().advance(step_length);
        assert_eq!(
            state.current().is_leader(),
            leadership.is_held(),
            "step {step}"
        );
    }
    assert_eq!(was_leader, 360, "until nine tenths of the timeout");
    store.resume(&client);
    store.settle().await;
    assert_eq!(state.current(), Role::Bystander);
}

/// A waker that owns another handle to the same state, like a task's waker might.
struct Owner(#[expect(dead_code, reason = "it is only dropped")] ElectionState);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_waker_that_is_dropped_may_drop_another_state() {
    let (ended, end) = std::sync::mpsc::channel();
    // On another thread, because a deadlock would block this one forever.
    std::thread::spawn(move || {
        let client = pollster::block_on(lockkeeper::connect("memory:election-wakers")).unwrap();
        let election = lockkeeper::Election::new(&client, "/election").unwrap();
        let mut state = election.state();
        let owner = || Waker::from(Arc::new(Owner(election.state())));
        let poll = |state: &mut ElectionState, waker: &Waker| {
            let changed = std::pin::pin!(state.changed());
            assert!(changed.poll(&mut Context::from_waker(waker)).is_pending());
        };
        poll(&mut state, &owner());
        // The next one replaces the waker.
        poll(&mut state, &owner());
        drop(state);
        ended.send(()).unwrap();
    });
    let ended = end.recv_timeout(Duration::from_secs(20));
    assert_eq!(ended, Ok(()), "it waits for itself");
}
