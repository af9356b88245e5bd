//! Round trips of free permits, and hand-overs as cheap for a thousand waiters as for two.

use lockkeeper::testing::{RequestKind, Traffic};
use lockkeeper::{LockOptions, Session, lock_events};
use testkit::{on_every_backend, on_every_znode_store};

use super::*;
use crate::harness::costs::{HAND_OVERS, Queue, quiet, sizes};

const PERMITS_HELD: u32 = 3;

/// The measured hand-overs and two before, with enough waiters left at each.
const ALL_HAND_OVERS: usize = HAND_OVERS + 2;

/// A queue after a first hand-over. Each has seen its place.
async fn queue(client: &Client, waiters: usize) -> Queue<Permit> {
    let semaphore = Semaphore::new(client, QUOTA, PERMITS_HELD).unwrap();
    let mut held = Vec::new();
    for _ in 0..PERMITS_HELD {
        held.push(semaphore.acquire().await.unwrap());
    }
    let wait = |_| {
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await }
    };
    let waits = (0..waiters + ALL_HAND_OVERS).map(wait);
    let queue = Queue::of(&client.current_session(), LOCKS, held, waits).await;
    queue.warmed_up(Permit::release).await
}

/// Waits until all woken waiters have looked and sleep. Returns the traffic so far, and the bytes of one request of
/// this function.
async fn still(world: &World, session: &Session) -> (Traffic, u64) {
    let mut last = quiet(world, session).await;
    let mut in_a_row = 0;
    loop {
        let next = quiet(world, session).await;
        let between = next - last;
        last = next;
        in_a_row += 1;
        if between.requests(RequestKind::Any) > 1 || between.events > 0 {
            in_a_row = 0;
        }
        if in_a_row == 20 {
            return (last, between.bytes);
        }
    }
}

/// The traffic and bytes of the cheapest hand-over in a queue of this size.
async fn cost_of_a_hand_over(world: &World, waiters: usize, events: u64) -> (Traffic, u64) {
    let client = world.client().await;
    let mut queue = queue(&client, waiters).await;
    let session = client.current_session();
    let mut costs = Vec::new();
    for _ in 0..HAND_OVERS {
        let (before, _) = still(world, &session).await;
        queue.hand_over(Permit::release).await;
        // The next waiter's look at the remaining permits is part of the hand-over.
        let (after, own) = still(world, &session).await;
        let cost = after - before;
        assert_eq!(cost.events, events, "of {waiters}");
        costs.push((cost, cost.bytes - own * cost.requests(RequestKind::Exists)));
    }
    client.close().await.unwrap();
    until(&world.observing().await, LOCKS, <[String]>::is_empty).await;
    costs.into_iter().min_by_key(|(_, bytes)| *bytes).unwrap()
}

on_every_backend! {
    async fn free_permits_take_one_request_of_a_store_that_counts_them(env: Env) {
        let counts = !env.is_zookeeper();
        let ground = Ground::new(env, 3).await;
        let semaphore = ground.semaphore().await;
        let client = semaphore.client();
        // Creates the parents, and detects the features of the store.
        let _held = semaphore.acquire().await.unwrap();
        if !counts {
            // Otherwise ZooKeeper would remove the empty queue, a container, between two requests.
            ground.make(&format!("{LOCKS}/stays")).await;
        }
        for wanted in [1, 2] {
            let before = ground.traffic_of(client);
            let permit = semaphore.acquire_many(wanted).await.unwrap();
            let cost = ground.traffic_of(client) - before;
            assert_eq!(cost.requests(RequestKind::Multi), 1);
            assert_eq!(cost.requests(RequestKind::Any), if counts { 1 } else { 3 });
            permit.release().await.unwrap();
        }
    }

    async fn a_head_that_has_waited_behind_another_tries_nothing_in_vain(env: Env) {
        let counts = !env.is_zookeeper();
        let ground = Ground::new(env, 1).await;
        let holder = ground.hold(1).await;
        let first = ground.queue_up(&ground.semaphore().await, 1).await;
        let semaphore = ground.semaphore().await;
        let session = semaphore.client().current_session();
        let before = ground.traffic_of(&session);
        // With events, a contender wakes when it becomes the head, before a permit is free.
        let (sink, _events) = lock_events();
        let second = ground.queue_up_with(&semaphore, 1, LockOptions::new().events(sink)).await;
        still(&ground, &session).await;
        first.abort();
        until(&ground.observing().await, LOCKS, |names| names.len() == 1).await;
        still(&ground, &session).await;
        holder.release().await.unwrap();
        permitted(second).await.release().await.unwrap();
        let cost = ground.traffic_of(&session) - before;
        if counts {
            assert_eq!(cost.requests(RequestKind::Multi), 2, "a try before it queued, and the grant");
        }
    }

    async fn the_head_alone_watches_the_leases(env: Env) {
        let ground = Ground::new(env, 3).await;
        let mut holder = ground.hold(3).await;
        let mut waiting = Vec::new();
        for _ in 0..5 {
            let semaphore = ground.semaphore().await;
            let request = ground.queue_up(&semaphore, 3).await;
            quiet(&ground, &semaphore.client().current_session()).await;
            waiting.push((semaphore.client().clone(), request));
        }
        let before: Vec<_> = waiting.iter().map(|(client, _)| ground.traffic_of(client)).collect();
        // A returned permit or a changed number does not concern those behind the head.
        holder.split(1).unwrap().release().await.unwrap();
        ground.observing_semaphore().set_permits(4).await.unwrap();
        let mut woken = Vec::new();
        for (place, (client, _)) in waiting.iter().enumerate() {
            client.current_session().exists(&path(QUOTA)).await.unwrap();
            if (ground.traffic_of(client) - before[place]).events > 0 {
                woken.push(place);
            }
        }
        assert_eq!(woken, [0]);
        assert!(holder.is_held());
    }
}

on_every_znode_store! {
    async fn a_hand_over_costs_the_same_however_many_wait(env: Env) {
        let counts = !env.is_zookeeper();
        let world = World::new(env).await;
        let mut costs = Vec::new();
        // A store that waits for the leases wakes the head when it can take a permit. Otherwise the head and the one
        // behind it wake.
        let events = if counts { 1 } else { 2 };
        for &waiters in sizes(&world.env) {
            costs.push(cost_of_a_hand_over(&world, waiters, events).await);
        }
        let (first, bytes) = costs[0];
        for (cost, size) in &costs {
            for on in [RequestKind::Multi, RequestKind::MultiRead, RequestKind::Delete, RequestKind::GetChildren, RequestKind::GetData] {
                assert_eq!(cost.requests(on), first.requests(on), "{on:?}: {costs:?}");
            }
            assert_eq!(cost.requests(RequestKind::Multi), 1, "one grant");
            if counts {
                let all = cost.requests(RequestKind::Any) - cost.requests(RequestKind::Exists);
                assert_eq!(all, 2, "the release and the grant: {cost:?}");
            } else {
                let reads = cost.requests(RequestKind::MultiRead);
                assert_eq!(reads, 3, "the permits, and by each that wakes its own entry and the marker");
            }
            // Numbers in names and marks have more digits in a longer queue.
            assert!(*size <= bytes + 32, "{costs:?}");
        }
    }

    async fn the_only_waiter_asks_a_store_that_counts_permits_for_nothing_but_these(env: Env) {
        let counts = !env.is_zookeeper();
        let ground = Ground::new(env, 1).await;
        let holder = ground.hold(1).await;
        let semaphore = ground.semaphore().await;
        let before = ground.traffic_of(semaphore.client());
        let waiting = ground.queue_up(&semaphore, 1).await;
        quiet(&ground, &semaphore.client().current_session()).await;
        holder.release().await.unwrap();
        permitted(waiting).await.release().await.unwrap();
        let cost = ground.traffic_of(semaphore.client()) - before;
        if counts {
            assert_eq!(cost.requests(RequestKind::Multi), 2, "a try, and the grant");
            for look in [RequestKind::MultiRead, RequestKind::GetChildren, RequestKind::GetData] {
                assert_eq!(cost.requests(look), 0, "{look:?}");
            }
        }
    }
}

mod on_the_wire {
    use super::*;
    use crate::harness::wire_costs::{assert_wire_bytes_flat, frames, op, operations, wired};
    use testkit::{Proxy, differential_server, within_reason};

    #[tokio::test]
    async fn free_permits_take_two_round_trips_on_zookeeper_and_their_release_another() {
        within_reason(async {
            // This server keeps empty containers. On a busy machine others remove them between two requests.
            let proxy = Proxy::to(differential_server().address());
            let client = wired(&proxy).await;
            let session = client.session().await.unwrap();
            let semaphore = Semaphore::new(&client, QUOTA, 2).unwrap();
            semaphore.acquire().await.unwrap().release().await.unwrap();

            frames(&proxy, &session).await;
            // All of the first trip is sent before the first answer arrives.
            proxy.hold_replies();
            let acquiring = tokio::spawn(async move { semaphore.acquire().await });
            tokio::task::yield_now().await;
            proxy.wait_for(|frame| frame.to_server && frame.operation == op::MULTI_READ);
            proxy.mend();
            let permit = permitted(acquiring).await;
            let acquire = operations(&frames(&proxy, &session).await);
            assert_eq!(
                acquire,
                [op::CREATE2, op::GET_CHILDREN, op::MULTI_READ, op::MULTI]
            );

            permit.release().await.unwrap();
            assert_eq!(operations(&frames(&proxy, &session).await), [op::DELETE]);
        })
        .await;
    }

    #[tokio::test]
    async fn the_bytes_of_a_hand_over_on_the_wire_do_not_grow() {
        within_reason(assert_wire_bytes_flat(queue, Permit::release, 64)).await;
    }
}
