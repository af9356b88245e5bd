//! What permits cost: round trips of free ones, and hand-overs as cheap for a thousand waiters as for two.

use lockkeeper::Session;
use lockkeeper::testing::{On, Traffic};
use tokio::sync::mpsc;

use super::*;
use crate::support::{Proxy, on_every_backend, within_reason, zookeeper};
use crate::wakes::{HAND_OVERS, SIZES, frames, operations, quiet, wired};

const PERMITS_HELD: u32 = 3;

/// Those that are looked at, and two before: at each there are enough who wait.
const ALL_HAND_OVERS: usize = HAND_OVERS + 2;

/// Some who wait for permits, all through one session, and those who hold.
struct Queue {
    semaphore: Semaphore,
    held: Vec<Permit>,
    grants: mpsc::UnboundedReceiver<Result<Permit, LockError>>,
}

impl Queue {
    /// A queue in which each has seen its place, and that has handed over before.
    async fn of(client: &Client, waiters: usize) -> Self {
        let semaphore = Semaphore::new(client, QUOTA, PERMITS_HELD).unwrap();
        let mut held = Vec::new();
        for _ in 0..PERMITS_HELD {
            held.push(semaphore.acquire().await.unwrap());
        }
        let (send, grants) = mpsc::unbounded_channel();
        let mut queue = Self {
            semaphore,
            held,
            grants,
        };
        for _ in 0..waiters + ALL_HAND_OVERS {
            let (semaphore, send) = (queue.semaphore.clone(), send.clone());
            // When the test is over nobody wants the permits any more.
            tokio::spawn(async move { send.send(semaphore.acquire().await).map_err(drop) });
        }
        let session = client.current_session();
        until(&session, LOCKS, |names| {
            names.len() == waiters + ALL_HAND_OVERS
        })
        .await;
        for _ in 0..2 {
            queue.hand_over().await;
        }
        queue
    }

    async fn hand_over(&mut self) {
        self.held.remove(0).release().await.unwrap();
        self.held.push(self.grants.recv().await.unwrap().unwrap());
    }
}

/// Waits until all who were woken have looked, and sleep. Answers what has gone through, and the
/// bytes of one question of its own.
async fn still(world: &World, session: &Session) -> (Traffic, u64) {
    let mut last = quiet(world, session).await;
    let mut in_a_row = 0;
    loop {
        let next = quiet(world, session).await;
        let between = next - last;
        last = next;
        in_a_row += 1;
        if between.requests(On::Any) > 1 || between.events > 0 {
            in_a_row = 0;
        }
        if in_a_row == 20 {
            return (last, between.bytes);
        }
    }
}

/// What goes through for the hand-over in a queue of this size that costs least, and its bytes.
async fn cost_of_a_hand_over(world: &World, waiters: usize) -> (Traffic, u64) {
    let client = world.client().await;
    let mut queue = Queue::of(&client, waiters).await;
    let session = client.current_session();
    let mut costs = Vec::new();
    for _ in 0..HAND_OVERS {
        let (before, _) = still(world, &session).await;
        queue.hand_over().await;
        // The next one's look at what is left for it belongs to the hand-over.
        let (after, own) = still(world, &session).await;
        let cost = after - before;
        assert_eq!(
            cost.events, 2,
            "the head wakes, and the one behind it, of {waiters}"
        );
        costs.push((cost, cost.bytes - own * cost.requests(On::Exists)));
    }
    client.close().await.unwrap();
    until(&world.observing().await, LOCKS, <[String]>::is_empty).await;
    costs.into_iter().min_by_key(|(_, bytes)| *bytes).unwrap()
}

on_every_backend! {
    async fn a_hand_over_costs_the_same_however_many_wait(env: Env) {
        let world = World::new(env).await;
        let mut costs = Vec::new();
        for waiters in SIZES {
            costs.push(cost_of_a_hand_over(&world, waiters).await);
        }
        let (first, bytes) = costs[0];
        for (cost, size) in &costs {
            for on in [On::Multi, On::MultiRead, On::Delete, On::GetChildren, On::GetData] {
                assert_eq!(cost.requests(on), first.requests(on), "{on:?}: {costs:?}");
            }
            assert_eq!(cost.requests(On::Multi), 1, "one grant");
            // The numbers in names and marks have more digits in a longer queue.
            assert!(*size <= bytes + 32, "{costs:?}");
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
        // Neither a permit that comes back nor a changed number is news for those behind the head.
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

#[tokio::test]
async fn free_permits_take_two_round_trips_on_zookeeper_and_their_release_another() {
    const CREATE2: i32 = 15;
    const GET_CHILDREN: i32 = 8;
    const DELETE: i32 = 2;
    const MULTI: i32 = 14;
    const MULTI_READ: i32 = 22;
    within_reason(async {
        let proxy = Proxy::to(zookeeper().address());
        let client = wired(&proxy).await;
        let session = client.session().await.unwrap();
        let semaphore = Semaphore::new(&client, QUOTA, 2).unwrap();
        semaphore.acquire().await.unwrap().release().await.unwrap();

        frames(&proxy, &session).await;
        // All of the first trip is sent before the first answer comes.
        proxy.hold_replies();
        let acquiring = tokio::spawn(async move { semaphore.acquire().await });
        tokio::task::yield_now().await;
        proxy.wait_for(|frame| frame.to_server && frame.operation == MULTI_READ);
        proxy.mend();
        let permit = permitted(acquiring).await;
        let acquire = operations(&frames(&proxy, &session).await);
        assert_eq!(acquire, [CREATE2, GET_CHILDREN, MULTI_READ, MULTI]);

        permit.release().await.unwrap();
        assert_eq!(operations(&frames(&proxy, &session).await), [DELETE]);
    })
    .await;
}

/// Lets all who were woken look, each by a few requests.
async fn settle(session: &Session) {
    for _ in 0..20 {
        session.exists(&path(LOCK)).await.unwrap();
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_bytes_of_a_hand_over_on_the_wire_do_not_grow() {
    within_reason(async {
        let mut sizes = Vec::new();
        for waiters in SIZES {
            let proxy = Proxy::to(zookeeper().address());
            let client = wired(&proxy).await;
            let mut queue = Queue::of(&client, waiters).await;
            let session = client.current_session();
            let mut cheapest = usize::MAX;
            for _ in 0..HAND_OVERS {
                settle(&session).await;
                frames(&proxy, &session).await;
                queue.hand_over().await;
                settle(&session).await;
                let frames = frames(&proxy, &session).await;
                let bytes = frames.iter().map(|frame| frame.bytes).sum();
                cheapest = cheapest.min(bytes);
            }
            sizes.push(cheapest);
        }
        assert!(
            sizes.iter().all(|size| *size <= sizes[0] + 64),
            "{SIZES:?} wait: {sizes:?} bytes"
        );
    })
    .await;
}
