//! Our read-write lock and another library's, under the same names.

use lockkeeper::{LockError, ReadGuard, RwLock, Upgrade, WriteGuard};
use tokio::task::JoinHandle;

use crate::common::*;
use crate::peer::{As, Contender, Inside, Process, enter, grants};

pub(crate) async fn rwlock(world: &World) -> RwLock {
    RwLock::new(&world.client().await, LOCK).unwrap()
}

/// Starts one of our waits, and returns once its entry is in the queue.
pub(crate) async fn queue_up<T: Send + 'static>(
    world: &World,
    wait: impl Future<Output = Result<T, LockError>> + Send + 'static,
) -> JoinHandle<Result<T, LockError>> {
    world.queue_up_at(LOCK, wait).await
}

pub(crate) async fn queue_reader(world: &World) -> JoinHandle<Result<ReadGuard, LockError>> {
    let lock = rwlock(world).await;
    queue_up(world, async move { lock.read().await }).await
}

pub(crate) async fn queue_writer(world: &World) -> JoinHandle<Result<WriteGuard, LockError>> {
    let lock = rwlock(world).await;
    queue_up(world, async move { lock.write().await }).await
}

pub(crate) async fn enter_reader(world: &World, guard: &ReadGuard) -> Inside {
    enter(world, As::Reader, guard.path(), guard.fencing_token()).await
}

pub(crate) async fn enter_writer(world: &World, guard: &WriteGuard) -> Inside {
    enter(world, As::Only, guard.path(), guard.fencing_token()).await
}

pub(crate) async fn read(world: &World, guard: ReadGuard) {
    enter_reader(world, &guard).await.leave().await;
    guard.release().await.unwrap();
}

pub(crate) async fn write(world: &World, guard: WriteGuard) {
    enter_writer(world, &guard).await.leave().await;
    guard.release().await.unwrap();
}

/// Our writer holds, with readers and writers of both sides behind it. All readers up to the next writer share
/// the lock.
pub(crate) async fn a_queue_is_served_in_order(
    world: &World,
    process: &Process,
    [reads, writes]: [&str; 2],
) {
    let first = rwlock(world).await.write().await.unwrap();
    let inside = enter_writer(world, &first).await;
    let mut names = vec![first.path().name().to_owned()];

    let mut theirs_1 = process.contender("reader-1", reads, LOCK).await;
    names.push(theirs_1.queue_up_in(world, LOCK).await);
    let ours_2 = queue_reader(world).await;
    let mut theirs_3 = process.contender("writer-3", writes, LOCK).await;
    names.push(theirs_3.queue_up_in(world, LOCK).await);
    let ours_4 = queue_reader(world).await;
    let mut theirs_5 = process.contender("reader-5", reads, LOCK).await;
    theirs_5.queue_up_in(world, LOCK).await;
    let ours_6 = queue_writer(world).await;
    let mut theirs_7 = process.contender("writer-7", writes, LOCK).await;
    names.push(theirs_7.queue_up_in(world, LOCK).await);

    inside.leave().await;
    first.release().await.unwrap();
    // Both hold before either leaves.
    theirs_1.until_held().await;
    let reader = ours_2.await.unwrap().unwrap();
    let inside = enter_reader(world, &reader).await;
    theirs_1.release().await;
    inside.leave().await;
    reader.release().await.unwrap();

    theirs_3.until_held().await;
    assert!(!ours_4.is_finished());
    theirs_3.release().await;

    let reader = ours_4.await.unwrap().unwrap();
    let inside = enter_reader(world, &reader).await;
    theirs_5.until_held().await;
    assert!(!ours_6.is_finished());
    inside.leave().await;
    reader.release().await.unwrap();
    theirs_5.release().await;

    write(world, ours_6.await.unwrap().unwrap()).await;
    theirs_7.until_held().await;
    theirs_7.release().await;
    assert!(world.children().await.is_empty());

    let grants = grants(world).await;
    let granted = [0, 1, 3, 7].map(|place| grants[place].0.clone());
    assert_eq!(granted[0], names[0]);
    assert_eq!(granted[2..], names[2..]);
    assert_eq!(grants.len(), 8);
}

/// All lock and release as fast as they can. Only one writer passes the gate at a time, and writers are served in order
/// of arrival.
pub(crate) async fn a_writer_is_always_alone(
    world: &World,
    process: &Process,
    [reads, writes]: [&str; 2],
) {
    const EACH: usize = 20;
    let ours_read = async |lock: RwLock| {
        for _ in 0..EACH {
            read(world, lock.read().await.unwrap()).await;
        }
    };
    let ours_write = async |lock: RwLock| {
        for _ in 0..EACH {
            write(world, lock.write().await.unwrap()).await;
        }
    };
    let theirs = async |mut contender: Contender| contender.cycles(EACH).await;
    tokio::join!(
        ours_read(rwlock(world).await),
        ours_read(rwlock(world).await),
        ours_write(rwlock(world).await),
        theirs(process.contender("reader-1", reads, LOCK).await),
        theirs(process.contender("reader-2", reads, LOCK).await),
        theirs(process.contender("writer", writes, LOCK).await),
    );
    let grants = grants(world).await;
    assert_eq!(grants.len(), 6 * EACH);
    let writers = grants.iter().filter(|(name, _)| name.contains("__WRIT__"));
    assert!(writers.is_sorted_by_key(|(_, token)| *token), "{grants:?}");
    assert!(world.children().await.is_empty());
}

/// Our writer becomes a reader and keeps its place. Readers behind it get in, but no writer.
pub(crate) async fn our_downgrade_keeps_the_place(
    world: &World,
    process: &Process,
    [reads, writes]: [&str; 2],
) {
    let writer = rwlock(world).await.write().await.unwrap();
    let inside = enter_writer(world, &writer).await;
    let mut their_reader = process.contender("reader", reads, LOCK).await;
    their_reader.queue_up_in(world, LOCK).await;
    let mut their_writer = process.contender("writer", writes, LOCK).await;
    their_writer.queue_up_in(world, LOCK).await;

    inside.leave().await;
    let reader = writer.downgrade().await.unwrap();
    let inside = enter_reader(world, &reader).await;
    their_reader.until_held().await;
    their_reader.release().await;
    inside.leave().await;
    reader.release().await.unwrap();
    let last = their_writer.until_held().await;
    their_writer.release().await;
    let order = grants(world).await;
    assert_eq!(order.len(), 4);
    assert_eq!(order[3].0, last);
}

/// Our reader becomes the writer only if none of their contenders holds or waits.
pub(crate) async fn our_upgrade_is_for_the_sole_holder(
    world: &World,
    process: &Process,
    [reads, writes]: [&str; 2],
) {
    let reader = rwlock(world).await.read().await.unwrap();
    let mut their_reader = process.contender("reader", reads, LOCK).await;
    their_reader.acquire().await;
    let Upgrade::Refused(reader) = reader.try_upgrade().await.unwrap() else {
        panic!("they hold, too");
    };
    let mut their_writer = process.contender("writer", writes, LOCK).await;
    their_writer.queue_up_in(world, LOCK).await;
    their_reader.release().await;
    let Upgrade::Refused(reader) = reader.try_upgrade().await.unwrap() else {
        panic!("they wait");
    };
    read(world, reader).await;
    their_writer.until_held().await;
    their_writer.release().await;

    let reader = rwlock(world).await.read().await.unwrap();
    let Upgrade::Upgraded(writer) = reader.try_upgrade().await.unwrap() else {
        panic!("nobody else is there");
    };
    let inside = enter_writer(world, &writer).await;
    their_reader.queue_up_in(world, LOCK).await;
    inside.leave().await;
    writer.release().await.unwrap();
    their_reader.until_held().await;
    their_reader.release().await;
    assert!(world.children().await.is_empty());
}
