//! Our mutex and another library's lock.

use lockkeeper::{Guard, LockEvent, LockOptions, Mutex, lock_events, queue};

use crate::common::*;
use crate::peer::{As, Contender, Process, enter, grants, work};

pub(crate) async fn last(world: &World) -> String {
    let entries = queue(&world.observer, LOCK).await.unwrap();
    entries.last().unwrap().path.name().to_owned()
}

pub(crate) async fn last_but_one(world: &World) -> String {
    let entries = queue(&world.observer, LOCK).await.unwrap();
    entries[entries.len() - 2].path.name().to_owned()
}

pub(crate) async fn theirs_waits_behind_ours(world: &World, mut theirs: Contender) {
    let guard = world.mutex().await.lock().await.unwrap();
    assert_eq!(theirs.queue_up().await, guard.path().name());
    work(world, guard).await;
    theirs.held_next().await;
    theirs.release().await;
    assert!(world.children().await.is_empty());
}

/// We wait for their holder's znode, and hold once it is gone. A try fails.
pub(crate) async fn ours_waits_behind_theirs(world: &World, mut theirs: Contender) {
    let holder = theirs.acquire().await;
    let mutex = world.mutex().await;
    assert!(mutex.try_lock().await.unwrap().is_none());
    let (sink, mut events) = lock_events();
    let options = LockOptions::new().events(sink);
    let waiter = world.queue_up_with(&mutex, options).await;
    let Some(LockEvent::Queued { position: 1, ahead }) = events.next().await else {
        panic!("it does not wait");
    };
    assert_eq!(ahead.name(), holder);
    theirs.release().await;
    work(world, granted(waiter).await).await;
    assert!(world.children().await.is_empty());
}

/// Three of their contenders alternate with four Lockkeeper contenders. Each waits for the one before, is woken only by
/// its release, and then holds.
pub(crate) async fn a_queue_is_served_in_order(world: &World, process: &Process, recipe: &str) {
    let first = world.mutex().await.lock().await.unwrap();
    let mut ahead = first.path().name().to_owned();
    let mut waiting = Vec::new();
    for turn in 0..3 {
        let mut theirs = process
            .contender(&format!("theirs-{turn}"), recipe, LOCK)
            .await;
        assert_eq!(theirs.queue_up().await, ahead);
        let mutex = world.mutex().await;
        let ours = world.queue_up(&mutex).await;
        ahead = last(world).await;
        waiting.push((theirs, mutex, ours));
    }
    let order = queue(&world.observer, LOCK).await.unwrap();
    let foreign = order.iter().map(|entry| entry.metadata.is_none());
    assert!(foreign.eq([false, true, false, true, false, true, false]));
    assert!(order.is_sorted_by_key(|entry| entry.sequence));
    assert!(order.is_sorted_by_key(|entry| entry.fencing_token));

    work(world, first).await;
    for (turn, (mut theirs, mutex, ours)) in waiting.into_iter().enumerate() {
        assert_eq!(theirs.held_next().await, order[2 * turn + 1].path.name());
        assert!(!ours.is_finished());
        let left = queue(&world.observer, LOCK).await.unwrap();
        assert_eq!(left, order[2 * turn + 1..]);
        assert_eq!(world.traffic_of(mutex.client()).events, 0);
        theirs.release().await;
        let guard = granted(ours).await;
        assert_eq!(*guard.path(), order[2 * turn + 2].path);
        assert_eq!(world.traffic_of(mutex.client()).events, 1);
        work(world, guard).await;
    }
    assert!(world.children().await.is_empty());
    let granted: Vec<_> = grants(world)
        .await
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let names: Vec<_> = order.iter().map(|entry| entry.path.name()).collect();
    assert_eq!(granted, names);
}

pub(crate) async fn cycles(world: &World, mutex: &Mutex, count: usize) {
    for _ in 0..count {
        work(world, mutex.lock().await.unwrap()).await;
    }
}

/// All lock and release as fast as they can. No two pass the gate together, and they are served in order of arrival.
pub(crate) async fn there_is_never_a_second_holder(world: &World, theirs: [Contender; 2]) {
    const EACH: usize = 40;
    let ours = [world.mutex().await, world.mutex().await];
    let [mut one, mut two] = theirs;
    tokio::join!(
        cycles(world, &ours[0], EACH),
        cycles(world, &ours[1], EACH),
        one.cycles(EACH),
        two.cycles(EACH),
    );
    let grants = grants(world).await;
    assert_eq!(grants.len(), 4 * EACH);
    assert!(grants.is_sorted_by_key(|(_, token)| *token), "{grants:?}");
    assert!(world.children().await.is_empty());
}

/// Their session ends while they hold, then ours. Each time the next one gets the lock.
pub(crate) async fn the_dead_hand_over(world: &World, process: Process, mut next: Contender) {
    let mut holder = process.contender("mortal", "mutex", LOCK).await;
    holder.acquire().await;
    let mutex = world.mutex().await;
    let ours = world.queue_up(&mutex).await;
    assert_eq!(next.queue_up().await, last_but_one(world).await);
    process.kill();
    let guard: Guard = granted(ours).await;
    world.env.expire(mutex.client()).await;
    next.held_next().await;
    next.release().await;
    drop(guard);
    assert!(world.children().await.is_empty());
}

/// Our holder reports that it is still working, and waiters keep waiting.
pub(crate) async fn a_busy_holder_keeps_them_out(world: &World, mut theirs: Contender) {
    let guard = world.mutex().await.lock().await.unwrap();
    let inside = enter(world, As::Only, guard.path(), guard.fencing_token()).await;
    assert_eq!(theirs.queue_up().await, guard.path().name());
    guard.keep_alive().await.unwrap();
    inside.leave().await;
    guard.release().await.unwrap();
    // They may have looked once more, because they report waiting before they watch.
    theirs.until_held().await;
    theirs.release().await;
}
