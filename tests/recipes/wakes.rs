//! Hand-overs of the mutex: one wake, and equal requests and bytes for a thousand waiters as for two.

use lockkeeper::{Client, Guard, Mutex};
use testkit::on_every_backend;

use crate::common::*;
use crate::harness::costs::{Cost, HAND_OVERS, Queue, assert_flat, cost, quiet, sizes};

/// A queue after a first hand-over. Each has seen its place.
async fn queue(client: &Client, waiters: usize) -> Queue<Guard> {
    let mutex = Mutex::new(client, LOCK).unwrap();
    let held = vec![mutex.lock().await.unwrap()];
    let wait = |_| {
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    };
    let waits = (0..waiters + HAND_OVERS).map(wait);
    let queue = Queue::of(&client.current_session(), LOCK, held, waits).await;
    queue.warmed_up(Guard::release).await
}

async fn cost_of_a_hand_over(world: &World, waiters: usize) -> Cost {
    let client = world.client().await;
    let mut queue = queue(&client, waiters).await;
    let mut costs = Vec::new();
    for _ in 0..HAND_OVERS {
        let before = quiet(world, &client.current_session()).await;
        queue.hand_over(Guard::release).await;
        let cost = cost(world.traffic_of(&client) - before);
        assert_eq!(cost.1, 1, "one waiter wakes, of {waiters}");
        costs.push(cost);
    }
    client.close().await.unwrap();
    world.until_count(0).await;
    costs.into_iter().min().unwrap()
}

on_every_backend! {
    async fn a_hand_over_costs_the_same_however_many_wait(env: Env) {
        let world = World::new(env).await;
        let mut costs = Vec::new();
        for &waiters in sizes(&world.env) {
            costs.push(cost_of_a_hand_over(&world, waiters).await);
        }
        let (requests, events) = assert_flat(&costs, 16);
        match world.env.has_index() {
            true => assert_eq!(requests, 1, "the release"),
            false => assert_eq!(requests, 2, "the release, and a look of the next"),
        }
        assert_eq!(events, 1, "{costs:?}");
    }

    async fn the_death_of_a_waiter_wakes_only_the_next(env: Env) {
        let world = World::new(env).await;
        let holder = world.mutex().await.lock().await.unwrap();
        let dying = world.mutex().await;
        let mut waiters = Vec::new();
        for place in 0..6 {
            let mutex = if place == 2 { dying.clone() } else { world.mutex().await };
            let waiter = world.queue_up(&mutex).await;
            quiet(&world, &mutex.client().current_session()).await;
            waiters.push((mutex.client().clone(), waiter));
        }
        let before: Vec<_> = waiters.iter().map(|(client, _)| world.traffic_of(client)).collect();
        world.expire(dying.client()).await.unwrap();
        world.until_count(6).await;
        let mut woken = Vec::new();
        for (place, (client, _)) in waiters.iter().enumerate().filter(|(place, _)| *place != 2) {
            client.current_session().exists(&path(LOCK)).await.unwrap();
            if (world.traffic_of(client) - before[place]).events > 0 {
                woken.push(place);
            }
        }
        assert_eq!(woken, [3]);
        assert!(holder.is_held());
    }
}

mod on_the_wire {
    use super::*;
    use crate::harness::wire_costs::{assert_wire_bytes_flat, frames, op, operations, wired};
    use testkit::{Frame, Proxy, differential_server, within_reason, zookeeper};

    #[tokio::test]
    async fn a_free_lock_takes_one_round_trip_on_zookeeper_and_its_release_another() {
        within_reason(async {
            // This server keeps empty containers. On a busy machine others remove them between two requests.
            let proxy = Proxy::to(differential_server().address());
            let client = wired(&proxy).await;
            let session = client.session().await.unwrap();
            let mutex = Mutex::new(&client, LOCK).unwrap();
            mutex.lock().await.unwrap().release().await.unwrap();

            frames(&proxy, &session).await;
            // Both are sent before the first answer arrives.
            proxy.hold_replies();
            let locking = tokio::spawn(async move { mutex.lock().await });
            tokio::task::yield_now().await;
            proxy.wait_for(|frame| frame.to_server && frame.operation == op::GET_CHILDREN);
            proxy.mend();
            let guard = granted(locking).await;
            let acquire = frames(&proxy, &session).await;
            assert_eq!(operations(&acquire), [op::CREATE2, op::GET_CHILDREN]);

            guard.release().await.unwrap();
            assert_eq!(operations(&frames(&proxy, &session).await), [op::DELETE]);
        })
        .await;
    }

    // This thread waits for the wire while the waiter runs on another.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_keep_alive_makes_no_waiter_list_the_queue() {
        within_reason(async {
            let proxy = Proxy::to(zookeeper().address());
            let client = wired(&proxy).await;
            let session = client.session().await.unwrap();
            let mutex = Mutex::new(&client, LOCK).unwrap();
            let holder = mutex.lock().await.unwrap();
            frames(&proxy, &session).await;
            let waiter = tokio::spawn({
                let mutex = mutex.clone();
                async move { mutex.lock().await }
            });
            // The waiter's look at the holder's node. The request of `frames` names a shorter path.
            let entry = holder.path().as_str().len();
            let looks = |frame: &Frame| {
                frame.to_server && frame.operation == op::EXISTS && frame.bytes > entry
            };
            proxy.wait_for(looks);
            frames(&proxy, &session).await;

            holder.keep_alive().await.unwrap();
            proxy.wait_for(looks);
            holder.release().await.unwrap();
            granted(waiter).await.release().await.unwrap();
            let asked = operations(&frames(&proxy, &session).await);
            assert_eq!(asked[..3], [op::SET_DATA, op::DELETE, op::MULTI_READ]);
        })
        .await;
    }

    #[tokio::test]
    async fn the_bytes_of_a_hand_over_on_the_wire_do_not_grow() {
        within_reason(assert_wire_bytes_flat(queue, Guard::release, 16)).await;
    }
}
