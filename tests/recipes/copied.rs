//! Recipes keep data on persistent znodes. Copied to another store, another parent or another recipe's queue, it must
//! never let a second holder in.

use std::sync::Arc;

use bytes::Bytes;
use lockkeeper::{
    Client, ConnectOptions, Guard, LockEvent, LockEvents, LockOptions, Mutex, lock_events,
};
use lockkeeper_store::{Backend, Connector, CreateMode, Session};
use serde_json::{Map, Value, json};
use testkit::{Intercept, intercepted, on_every_backend, on_every_znode_store};
use tokio::task::JoinHandle;

use crate::common::*;
use crate::semaphore::{Ground, LEASES, LOCKS, PERMITS, QUOTA};

const SOURCE: &str = "/source/orders";

/// Another program's znode in a queue with forged data. It keeps the queue, a container, from being removed.
const STAYS: &str = "/lock/orders/stays";

/// More than a copied queue has contenders, so that the copied marker exceeds them all.
const HAND_OVERS: usize = 6;

/// Hands a lock over several times. Returns the data on its parent.
async fn data_after_hand_overs(world: &World, lock: &str) -> Bytes {
    let _last = hand_overs(world, lock).await;
    read(&world.observing().await, lock).await
}

async fn hand_overs(world: &World, lock: &str) -> Guard {
    let mutex = Mutex::new(&world.client().await, lock).unwrap();
    let mut holder = mutex.lock().await.unwrap();
    for _ in 0..HAND_OVERS {
        let (waiter, _) = waiting(&mutex).await;
        holder.release().await.unwrap();
        holder = granted(waiter).await;
    }
    holder
}

async fn read(session: &Session, at: &str) -> Bytes {
    session.get_data(&path(at)).await.unwrap().0
}

/// Copies a persistent znode's path and data like any client would.
async fn copy(session: &Session, data: &Bytes, to: &str) {
    let to = path(to);
    let above = to.parent().unwrap();
    let made = session.create_all(&above, CreateMode::Persistent).await;
    made.unwrap();
    let made = session.create(&to, data.clone(), CreateMode::Persistent);
    made.await.unwrap();
}

/// Starts a wait, and returns once it has seen its place in the queue.
async fn waiting(mutex: &Mutex) -> (Waiter, LockEvents) {
    let (sink, mut events) = lock_events();
    let (mutex, options) = (mutex.clone(), LockOptions::new().events(sink));
    let waiter = tokio::spawn(async move { mutex.lock_with(options).await });
    queued(&mut events).await;
    (waiter, events)
}

async fn queued(events: &mut LockEvents) {
    let event = events.next().await;
    assert!(matches!(event, Some(LockEvent::Queued { .. })), "{event:?}");
}

/// Asserts that the waiter has looked again and still waits for one.
async fn still_waits(events: &mut LockEvents) {
    let event = events.next().await;
    let advanced = matches!(event, Some(LockEvent::Advanced { position: 1 }));
    assert!(advanced, "beside the holder: {event:?}");
}

/// Contends for [`LOCK`] with three clients. When the second gives up, the third looks again and must find the first.
pub(crate) async fn the_third_waits_for_the_first(world: &World) {
    the_third_of_waits_for_the_first([(); 3].map(|()| world.client()), world).await;
}

async fn the_third_of_waits_for_the_first<F>(clients: [F; 3], world: &World)
where
    F: Future<Output = Client>,
{
    let mut mutexes = Vec::new();
    for client in clients {
        mutexes.push(Mutex::new(&client.await, LOCK).unwrap());
    }
    let holder = mutexes[0].lock().await.unwrap();
    let (second, _events) = waiting(&mutexes[1]).await;
    let (third, mut events) = waiting(&mutexes[2]).await;
    second.abort();
    still_waits(&mut events).await;
    holder.release().await.unwrap();
    granted(third).await.release().await.unwrap();
    until_left(world).await;
}

async fn until_left(world: &World) {
    let nobody = |names: &[String]| names.iter().all(|name| STAYS.ends_with(name));
    until(&world.observing().await, LOCK, nobody).await;
}

/// Replaces the data of [`LOCK`] with changed data of a hand-over that claims that many have left.
async fn forge(world: &World, change: impl FnOnce(&mut Map<String, Value>)) {
    world.make(LOCK).await;
    let session = world.observing().await;
    // A queue's parent gets a marker only if a contender creates it.
    session.delete(&path(LOCK), None).await.unwrap();
    let last = hand_overs(world, LOCK).await;
    let made = session
        .create(&path(STAYS), "", CreateMode::Persistent)
        .await;
    made.unwrap();
    last.release().await.unwrap();
    until_left(world).await;
    let written = read(&session, LOCK).await;
    let mut marker: Map<String, Value> = serde_json::from_slice(&written).unwrap();
    marker.insert("released".to_owned(), json!(1_000));
    change(&mut marker);
    let forged = serde_json::to_vec(&marker).unwrap();
    session.set_data(&path(LOCK), forged, None).await.unwrap();
}

on_every_backend! {
    async fn a_queue_is_copied_to_another_store(env: Env) {
        let source = World::new(env.another().await).await;
        let data = data_after_hand_overs(&source, LOCK).await;
        let world = World::new(env).await;
        copy(&world.observing().await, &data, LOCK).await;
        the_third_waits_for_the_first(&world).await;
    }

    async fn a_queue_is_copied_to_another_path(env: Env) {
        let world = World::new(env).await;
        let data = data_after_hand_overs(&world, SOURCE).await;
        copy(&world.observing().await, &data, LOCK).await;
        the_third_waits_for_the_first(&world).await;
    }

    // After a hand-over the marker is genuine and lower than every existing entry.
    async fn a_waiter_gives_up_behind_a_holder_that_has_waited(env: Env) {
        let world = World::new(env).await;
        let [first, second, third, fourth] = [
            world.mutex().await,
            world.mutex().await,
            world.mutex().await,
            world.mutex().await,
        ];
        let outgoing = world.mutex().await.lock().await.unwrap();
        let (first, _) = waiting(&first).await;
        let (second, _) = waiting(&second).await;
        let (third, _) = waiting(&third).await;
        let (fourth, mut events) = waiting(&fourth).await;
        outgoing.release().await.unwrap();
        granted(first).await.release().await.unwrap();
        let holder = granted(second).await;
        third.abort();
        still_waits(&mut events).await;
        holder.release().await.unwrap();
        granted(fourth).await.release().await.unwrap();
    }
}

on_every_znode_store! {
    async fn a_semaphore_is_copied_to_another_store(env: Env) {
        let source = Ground::new(env.another().await, 1).await;
        let mut holder = source.hold(1).await;
        let mut next = source.queue_up(&source.semaphore().await, 1).await;
        for _ in 0..HAND_OVERS {
            let waiter = source.queue_up(&source.semaphore().await, 1).await;
            holder.release().await.unwrap();
            holder = next.await.unwrap().unwrap();
            next = waiter;
        }
        let ground = Ground::new(env, 1).await;
        let (from, to) = (source.observing().await, ground.observing().await);
        to.delete(&path(PERMITS), None).await.unwrap();
        to.delete(&path(QUOTA), None).await.unwrap();
        for at in [QUOTA, LOCKS, LEASES, PERMITS] {
            copy(&to, &read(&from, at).await, at).await;
        }

        let holder = ground.hold(1).await;
        let mut waiters: Vec<(JoinHandle<_>, LockEvents)> = Vec::new();
        for _ in 0..3 {
            let (sink, mut events) = lock_events();
            let options = LockOptions::new().events(sink);
            let waiter = ground.queue_up_with(&ground.semaphore().await, 1, options).await;
            queued(&mut events).await;
            waiters.push((waiter, events));
        }
        // The first waits for permits, the others for the one before.
        waiters[1].0.abort();
        still_waits(&mut waiters[2].1).await;
        holder.release().await.unwrap();
        for (waiter, _) in [waiters.remove(0), waiters.remove(1)] {
            waiter.await.unwrap().unwrap().release().await.unwrap();
        }
    }

    async fn a_marker_names_another_store(env: Env) {
        let world = World::new(env).await;
        forge(&world, |marker| drop(marker.insert("store".to_owned(), json!("another")))).await;
        the_third_waits_for_the_first(&world).await;
    }

    async fn a_marker_names_another_parent(env: Env) {
        let world = World::new(env).await;
        forge(&world, |marker| drop(marker.insert("parent".to_owned(), json!(1)))).await;
        the_third_waits_for_the_first(&world).await;
    }

    async fn a_marker_names_neither(env: Env) {
        let world = World::new(env).await;
        forge(&world, |marker| marker.retain(|name, _| name != "store" && name != "parent")).await;
        the_third_waits_for_the_first(&world).await;
    }

    async fn a_marker_is_another_recipes(env: Env) {
        let world = World::new(env).await;
        forge(&world, |marker| drop(marker.insert("queue".to_owned(), json!("semaphore")))).await;
        the_third_waits_for_the_first(&world).await;
    }

    async fn a_marker_is_of_another_version(env: Env) {
        let world = World::new(env).await;
        forge(&world, |marker| drop(marker.insert("v".to_owned(), json!(1_000)))).await;
        the_third_waits_for_the_first(&world).await;
    }

    async fn a_store_has_no_id(env: Env) {
        let world = World::new(env).await;
        forge(&world, |marker| drop(marker.remove("store"))).await;
        let connector = intercepted(world.env.connector().clone(), || Nameless);
        let clients = [(); 3].map(|()| nameless(connector.clone()));
        the_third_of_waits_for_the_first(clients, &world).await;
    }

    async fn a_release_overwrites_nothing_that_was_written_since(env: Env) {
        let world = World::new(env).await;
        let [first, second] = [world.mutex().await, world.mutex().await];
        let outgoing = world.mutex().await.lock().await.unwrap();
        let (first, _) = waiting(&first).await;
        let (second, _) = waiting(&second).await;
        outgoing.release().await.unwrap();
        let holder = granted(first).await;
        let session = world.observing().await;
        session.set_data(&path(LOCK), "10.0.0.1", None).await.unwrap();
        holder.release().await.unwrap();
        let last = granted(second).await;
        assert_eq!(read(&session, LOCK).await, "10.0.0.1");
        last.release().await.unwrap();
    }

    async fn a_marker_of_another_recipe_stays(env: Env) {
        let world = World::new(env).await;
        forge(&world, |marker| drop(marker.insert("queue".to_owned(), json!("semaphore")))).await;
        let session = world.observing().await;
        let before = read(&session, LOCK).await;
        assert_eq!(data_after_hand_overs(&world, LOCK).await, before);
    }
}

async fn nameless(connector: Arc<dyn Connector>) -> Client {
    let options = ConnectOptions::new().session_timeout(LONG);
    let client = Client::open(connector, "nameless".to_owned(), options);
    client.await.unwrap()
}

/// A store without an id, for a client that may neither read nor create it.
struct Nameless;

impl Intercept for Nameless {
    fn store_id<'a>(&self, _inner: &'a Arc<dyn Backend>) -> Option<&'a str> {
        None
    }
}
