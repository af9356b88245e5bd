//! What several locks cost: few round trips however many they are, and hand-overs that cost the same
//! however many wait.

use lockkeeper::testing::Traffic;
use lockkeeper::{Mutex, Session};

use super::*;
use crate::support::on_every_backend;

const SIZES: [usize; 3] = [2, 100, 1_000];

/// How many hand-overs are looked at: a renewal of the session may fall into one of them.
const HAND_OVERS: usize = 5;

/// Waits until nothing is under way in a session.
async fn quiet(world: &World, session: &Session) -> Traffic {
    loop {
        let before = world.traffic_of(session);
        session.exists(&path("/")).await.unwrap();
        tokio::task::yield_now().await;
        let after = world.traffic_of(session);
        let between = after - before;
        if (between.requests(On::Any), between.replies, between.events) == (1, 1, 0) {
            return after;
        }
    }
}

/// Requests, events and bytes of the cheapest hand-over of two locks at which so many wait.
async fn cost_of_a_hand_over(world: &World, waiters: usize) -> (u64, u64, u64) {
    const TWO: [&str; 2] = ["/many/a", "/many/b"];
    let client = world.client().await;
    let mut holder = Some(lock_all(&client, TWO).await.unwrap());
    let (send, mut grants) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..waiters + HAND_OVERS {
        let (client, send) = (client.clone(), send.clone());
        tokio::spawn(async move {
            // When the test is over nobody wants the locks any more.
            match number % 4 {
                0 => drop(send.send(lock_all(&client, ["/many/b", "/many/a"]).await)),
                _ => drop(send.send(lock_all(&client, TWO).await)),
            }
        });
    }
    world.until_each(&TWO, waiters + HAND_OVERS + 1).await;
    let session = client.current_session();
    let mut costs = Vec::new();
    for hand_over in 0..HAND_OVERS + 2 {
        let before = quiet(world, &session).await;
        holder.take().unwrap().release().await.unwrap();
        holder = Some(grants.recv().await.unwrap().unwrap());
        let cost = quiet(world, &session).await - before;
        // The first ones leave no mark yet: their holders have not waited.
        if hand_over >= 2 {
            assert_eq!(
                cost.events, 2,
                "one waiter wakes at each lock, of {waiters}"
            );
            costs.push((cost.requests(On::Any), cost.events, cost.bytes));
        }
    }
    client.close().await.unwrap();
    world.until_each(&TWO, 0).await;
    costs.into_iter().min().unwrap()
}

on_every_backend! {
    async fn free_locks_take_two_round_trips_however_many_they_are(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        for count in [1, 2, 50] {
            let keys: Vec<_> = (0..count).map(|n| format!("/cost/{n}")).collect();
            // Queues that stay: an empty container may be reaped at any moment.
            for key in &keys {
                world.make(key).await;
            }
            let before = quiet(&world, &client.current_session()).await;
            let guard = lock_all(&client, &keys).await.unwrap();
            let cost = world.traffic_of(&client) - before;
            assert_eq!(cost.requests(On::Multi), 1);
            match world.env.is_zookeeper() {
                // Each queue is asked about, all at the same time.
                false => assert_eq!(cost.requests(On::Any), 1 + count),
                // 3.8 does not say the zxid of the multi, which is read together with the lists.
                true => {
                    assert_eq!(cost.requests(On::MultiRead), 1);
                    assert_eq!(cost.requests(On::Any), 2);
                }
            }
            let before = quiet(&world, &client.current_session()).await;
            guard.release().await.unwrap();
            let cost = world.traffic_of(&client) - before;
            assert_eq!(cost.requests(On::Any), count, "one delete for each, all at once");
        }
    }

    async fn missing_queues_are_made_once(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let before = world.traffic_of(&client);
        let keys: Vec<_> = (0..10).map(|n| format!("/cost/{n}")).collect();
        let guard = lock_all(&client, &keys).await.unwrap();
        let cost = world.traffic_of(&client) - before;
        // Refused, looked at, made with the parent of all, repeated.
        assert_eq!(cost.requests(On::Multi), 2);
        assert!(cost.requests(On::Create) <= 3 * 10, "{cost:?}");
        guard.release().await.unwrap();
    }

    async fn a_hand_over_costs_the_same_however_many_wait(env: Env) {
        let world = World::new(env).await;
        let mut costs = Vec::new();
        for waiters in SIZES {
            costs.push(cost_of_a_hand_over(&world, waiters).await);
        }
        for cost in &costs {
            assert_eq!((cost.0, cost.1), (costs[0].0, costs[0].1), "{costs:?}");
            // The numbers in names and marks have more digits in a longer queue.
            assert!(cost.2 <= costs[0].2 + 64, "{costs:?}");
        }
        crate::support::report(format_args!("a hand-over of two locks: {costs:?}"));
    }

    async fn a_try_writes_nothing_at_locks_that_are_held(env: Env) {
        let world = World::new(env).await;
        let holder = lock_all(&world.client().await, KEYS).await.unwrap();
        let client = world.client().await;
        for _ in 0..10 {
            let before = world.traffic_of(&client);
            let tried = lockkeeper::try_lock_many(&client, KEYS).await.unwrap();
            assert_eq!((tried.acquired.len(), tried.contended.len()), (0, 3));
            let cost = world.traffic_of(&client) - before;
            assert_eq!(cost.requests(On::MultiRead), 1);
            assert_eq!(cost.requests(On::Any), 1);
        }
        let other = Mutex::new(&client, KEYS[0]).unwrap();
        let (_, stat) = world.observing().await.get_data(other.path()).await.unwrap();
        assert_eq!(stat.cversion, 1, "only its holder has come");
        holder.release().await.unwrap();
    }

    async fn a_try_costs_one_look_and_one_entry(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        // Queues that stay: an empty container may be reaped at any moment.
        for key in KEYS {
            world.make(key).await;
        }
        let holder = Mutex::new(&world.client().await, KEYS[1]).unwrap();
        let holder = holder.lock().await.unwrap();
        let before = quiet(&world, &client.current_session()).await;
        let tried = lockkeeper::try_lock_many(&client, KEYS).await.unwrap();
        let cost = world.traffic_of(&client) - before;
        assert_eq!((tried.acquired.len(), tried.contended.len()), (2, 1));
        assert_eq!(cost.requests(On::Multi), 1);
        match world.env.is_zookeeper() {
            false => assert_eq!(cost.requests(On::Any), 4, "a look, a multi, who is ahead of each"),
            true => assert_eq!(cost.requests(On::Any), 3, "a look, a multi, its lists"),
        }
        drop(tried);
        holder.release().await.unwrap();
    }
}
