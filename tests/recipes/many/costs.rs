//! Several locks take few round trips, however many they are. Hand-overs cost the same however many wait.

use lockkeeper::Mutex;
use testkit::{on_every_backend, on_every_znode_store};

use super::*;
use crate::harness::costs::{Cost, HAND_OVERS, Queue, assert_flat, cost, quiet, sizes};

async fn cost_of_a_hand_over(world: &World, waiters: usize) -> Cost {
    const TWO: [&str; 2] = ["/many/a", "/many/b"];
    let client = world.client().await;
    let session = client.current_session();
    let held = vec![lock_all(&client, TWO).await.unwrap()];
    let waits = (0..waiters + HAND_OVERS).map(|number| {
        let client = client.clone();
        let keys = match number % 4 {
            0 => ["/many/b", "/many/a"],
            _ => TWO,
        };
        async move { lock_all(&client, keys).await }
    });
    let queue = Queue::of(&session, TWO[0], held, waits).await;
    let mut queue = queue.warmed_up(MultiGuard::release).await;
    let mut costs = Vec::new();
    for _ in 0..HAND_OVERS {
        let before = quiet(world, &session).await;
        queue.hand_over(MultiGuard::release).await;
        let cost = cost(quiet(world, &session).await - before);
        assert_eq!(cost.1, 2, "one waiter wakes at each lock, of {waiters}");
        costs.push(cost);
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
            // Keeps the queues, because an empty container may be removed at any moment.
            for key in &keys {
                world.make(key).await;
            }
            let before = quiet(&world, &client.current_session()).await;
            let guard = lock_all(&client, &keys).await.unwrap();
            let cost = world.traffic_of(&client) - before;
            assert_eq!(cost.requests(RequestKind::Multi), 1);
            match world.env.is_zookeeper() {
                // Asks about each queue, concurrently.
                false => assert_eq!(cost.requests(RequestKind::Any), 1 + count),
                // 3.8 does not return the multi's zxid, so it is read together with the lists.
                true => {
                    assert_eq!(cost.requests(RequestKind::MultiRead), 1);
                    assert_eq!(cost.requests(RequestKind::Any), 2);
                }
            }
            let before = quiet(&world, &client.current_session()).await;
            guard.release().await.unwrap();
            let cost = world.traffic_of(&client) - before;
            assert_eq!(cost.requests(RequestKind::Any), count, "one delete for each, all at once");
        }
    }

    async fn a_hand_over_costs_the_same_however_many_wait(env: Env) {
        let world = World::new(env).await;
        let mut costs = Vec::new();
        for &waiters in sizes(&world.env) {
            costs.push(cost_of_a_hand_over(&world, waiters).await);
        }
        assert_flat(&costs, 64);
        testkit::report(format_args!("a hand-over of two locks: {costs:?}"));
    }

    async fn a_try_costs_one_look_and_one_entry(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        // Keeps the queues, because an empty container may be removed at any moment.
        for key in KEYS {
            world.make(key).await;
        }
        let holder = Mutex::new(&world.client().await, KEYS[1]).unwrap();
        let holder = holder.lock().await.unwrap();
        let before = quiet(&world, &client.current_session()).await;
        let tried = lockkeeper::try_lock_many(&client, KEYS).await.unwrap();
        let cost = world.traffic_of(&client) - before;
        assert_eq!((tried.acquired.len(), tried.contended.len()), (2, 1));
        assert_eq!(cost.requests(RequestKind::Multi), 1);
        match world.env.is_zookeeper() {
            false => assert_eq!(cost.requests(RequestKind::Any), 4, "a look, a multi, who is ahead of each"),
            true => assert_eq!(cost.requests(RequestKind::Any), 3, "a look, a multi, its lists"),
        }
        drop(tried);
        holder.release().await.unwrap();
    }
}

on_every_znode_store! {
    async fn missing_queues_are_made_once(env: Env) {
        let world = World::new(env).await;
        let client = world.client().await;
        let before = world.traffic_of(&client);
        let keys: Vec<_> = (0..10).map(|n| format!("/cost/{n}")).collect();
        let guard = lock_all(&client, &keys).await.unwrap();
        let cost = world.traffic_of(&client) - before;
        // The multi is refused, the client looks and creates the common parent, and repeats it.
        assert_eq!(cost.requests(RequestKind::Multi), 2);
        assert!(cost.requests(RequestKind::Create) <= 3 * 10, "{cost:?}");
        guard.release().await.unwrap();
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
            assert_eq!(cost.requests(RequestKind::MultiRead), 1);
            assert_eq!(cost.requests(RequestKind::Any), 1);
        }
        let other = Mutex::new(&client, KEYS[0]).unwrap();
        let (_, stat) = world.observing().await.get_data(other.path()).await.unwrap();
        assert_eq!(stat.cversion, 1, "only its holder has come");
        holder.release().await.unwrap();
    }
}
