//! What a hand-over costs: one wake, and as many requests and bytes for a thousand waiters as for two.

use lockkeeper::testing::{On, Traffic};
use lockkeeper::{Client, ConnectOptions, Guard, LockError, Mutex, Session, connect_with};
use tokio::sync::mpsc;

use crate::common::*;
use crate::support::{Frame, Proxy, on_every_backend, unique, within_reason, zookeeper};

pub(crate) const SIZES: [usize; 3] = [2, 100, 1_000];

/// Some who wait for a lock, all through one session, and the one who holds it.
struct Queue {
    mutex: Mutex,
    holder: Option<Guard>,
    grants: mpsc::UnboundedReceiver<Result<Guard, LockError>>,
}

impl Queue {
    /// A queue in which each has seen its place, and that has handed over before.
    async fn of(client: &Client, waiters: usize) -> Self {
        let mutex = Mutex::new(client, LOCK).unwrap();
        let holder = Some(mutex.lock().await.unwrap());
        let (send, grants) = mpsc::unbounded_channel();
        let mut queue = Self {
            mutex,
            holder,
            grants,
        };
        for _ in 0..waiters + HAND_OVERS {
            let (mutex, send) = (queue.mutex.clone(), send.clone());
            // When the test is over nobody wants the lock any more.
            tokio::spawn(async move { send.send(mutex.lock().await).map_err(drop) });
        }
        let session = client.current_session();
        until(&session, LOCK, |names| {
            names.len() == waiters + HAND_OVERS + 1
        })
        .await;
        for _ in 0..2 {
            queue.hand_over().await;
        }
        queue
    }

    async fn hand_over(&mut self) {
        self.holder.take().unwrap().release().await.unwrap();
        self.holder = Some(self.grants.recv().await.unwrap().unwrap());
    }

    fn session(&self) -> Session {
        self.mutex.client().current_session()
    }
}

/// How many hand-overs are looked at: a renewal of the session may fall into one of them.
pub(crate) const HAND_OVERS: usize = 5;

/// Waits until nothing is under way in a session.
pub(crate) async fn quiet(world: &World, session: &Session) -> Traffic {
    loop {
        let before = world.traffic_of(session);
        session.exists(&path(LOCK)).await.unwrap();
        tokio::task::yield_now().await;
        let after = world.traffic_of(session);
        let between = after - before;
        if (between.requests(On::Any), between.replies, between.events) == (1, 1, 0) {
            return after;
        }
    }
}

/// Requests, events and bytes of the cheapest hand-over in a queue of this size.
async fn cost_of_a_hand_over(world: &World, waiters: usize) -> (u64, u64, u64) {
    let client = world.client().await;
    let mut queue = Queue::of(&client, waiters).await;
    let mut costs = Vec::new();
    for _ in 0..HAND_OVERS {
        let before = quiet(world, &queue.session()).await;
        queue.hand_over().await;
        let cost = world.traffic_of(&client) - before;
        assert_eq!(cost.events, 1, "one waiter wakes, of {waiters}");
        costs.push((cost.requests(On::Any), cost.events, cost.bytes));
    }
    client.close().await.unwrap();
    world.until_count(0).await;
    costs.into_iter().min().unwrap()
}

on_every_backend! {
    async fn a_hand_over_costs_the_same_however_many_wait(env: Env) {
        let world = World::new(env).await;
        let mut costs = Vec::new();
        for waiters in SIZES {
            costs.push(cost_of_a_hand_over(&world, waiters).await);
        }
        let (requests, _, bytes) = costs[0];
        match world.env.is_embedded() {
            true => assert_eq!(requests, 1, "the release"),
            false => assert_eq!(requests, 2, "the release, and a look of the next"),
        }
        for cost in &costs {
            assert_eq!((cost.0, cost.1), (requests, 1), "{costs:?}");
            // The numbers in names and marks have more digits in a longer queue.
            assert!(cost.2 <= bytes + 16, "{costs:?}");
        }
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

/// A client whose frames are counted.
pub(crate) async fn wired(proxy: &Proxy) -> Client {
    let url = format!("zookeeper://{}/{}", proxy.hosts(), unique("wire"));
    let options = ConnectOptions::new().create_chroot().session_timeout(LONG);
    connect_with(url.as_str(), options).await.unwrap()
}

/// What went over the wire since the last call, but for looks at a single node.
pub(crate) async fn frames(proxy: &Proxy, session: &Session) -> Vec<Frame> {
    const EXISTS: i32 = 3;
    const EVENT: i32 = -1;
    // All before it has been counted when this is answered; itself it may have been or not.
    session.exists(&path(LOCK)).await.unwrap();
    let mut frames = proxy.take_frames();
    let asked = |frame: &&Frame| frame.to_server && frame.operation != EXISTS;
    let asked: Vec<_> = frames.iter().filter(asked).map(|frame| frame.xid).collect();
    frames.retain(|frame| frame.xid == EVENT || asked.contains(&frame.xid));
    frames
}

pub(crate) fn operations(frames: &[Frame]) -> Vec<i32> {
    frames
        .iter()
        .filter(|frame| frame.to_server)
        .map(|frame| frame.operation)
        .collect()
}

#[tokio::test]
async fn a_free_lock_takes_one_round_trip_on_zookeeper_and_its_release_another() {
    const CREATE2: i32 = 15;
    const GET_CHILDREN: i32 = 8;
    const DELETE: i32 = 2;
    within_reason(async {
        let proxy = Proxy::to(zookeeper().address());
        let client = wired(&proxy).await;
        let session = client.session().await.unwrap();
        let mutex = Mutex::new(&client, LOCK).unwrap();
        mutex.lock().await.unwrap().release().await.unwrap();

        frames(&proxy, &session).await;
        // Both are sent before the first answer comes.
        proxy.hold_replies();
        let locking = tokio::spawn(async move { mutex.lock().await });
        tokio::task::yield_now().await;
        proxy.wait_for(|frame| frame.to_server && frame.operation == GET_CHILDREN);
        proxy.mend();
        let guard = granted(locking).await;
        let acquire = frames(&proxy, &session).await;
        assert_eq!(operations(&acquire), [CREATE2, GET_CHILDREN]);

        guard.release().await.unwrap();
        assert_eq!(operations(&frames(&proxy, &session).await), [DELETE]);
    })
    .await;
}

// The wire is waited for in this thread while the waiter goes on in another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_says_it_is_alive_has_nobody_list_the_queue_again() {
    const DELETE: i32 = 2;
    const EXISTS: i32 = 3;
    const SET_DATA: i32 = 5;
    const MULTI_READ: i32 = 22;
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
        // The waiter's look at the holder's node: that of `frames` names a shorter path.
        let entry = holder.path().as_str().len();
        let looks =
            |frame: &Frame| frame.to_server && frame.operation == EXISTS && frame.bytes > entry;
        proxy.wait_for(looks);
        frames(&proxy, &session).await;

        holder.keep_alive().await.unwrap();
        // It is woken, and looks again.
        proxy.wait_for(looks);
        holder.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
        let asked = operations(&frames(&proxy, &session).await);
        assert_eq!(asked[..3], [SET_DATA, DELETE, MULTI_READ]);
    })
    .await;
}

#[tokio::test]
async fn the_bytes_of_a_hand_over_on_the_wire_do_not_grow() {
    within_reason(async {
        let mut sizes = Vec::new();
        for waiters in SIZES {
            let proxy = Proxy::to(zookeeper().address());
            let client = wired(&proxy).await;
            let mut queue = Queue::of(&client, waiters).await;
            let session = queue.session();
            let mut cheapest = usize::MAX;
            for _ in 0..HAND_OVERS {
                frames(&proxy, &session).await;
                queue.hand_over().await;
                let bytes = frames(&proxy, &session)
                    .await
                    .iter()
                    .map(|frame| frame.bytes)
                    .sum();
                cheapest = cheapest.min(bytes);
            }
            sizes.push(cheapest);
        }
        assert!(
            sizes.iter().all(|size| *size <= sizes[0] + 16),
            "{SIZES:?} wait: {sizes:?} bytes"
        );
    })
    .await;
}
