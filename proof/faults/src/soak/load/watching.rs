//! Watches, observers, event streams and a warden, which must all be disarmed again.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{
    Client, Election, Error, LockError, LockEvent, LockEvents, LockOptions, Mutex, RevokeTarget,
    Revoker, Session, Warden, ZnodePath, list_locks, lock_events, observe as observe_queue,
    observe_locks, queue,
};
use lockkeeper_store::{CreateMode, WatchMode};
use testkit::Random;

use super::contend::rest;
use super::paths::{path, remove};
use super::{Load, violation};

/// Time for which a stream is read before it is dropped.
const GLANCE: Duration = Duration::from_millis(50);

/// Arms watches on existing and on ever-new znodes. Some fire, others are dropped.
pub(super) async fn watch(load: Arc<Load>, client: Client, mut random: Random) {
    while !load.is_finishing() {
        rest(&mut random, 20).await;
        let Ok(session) = client.session().await else {
            continue;
        };
        let name = path(&format!("/watched-{}", load.fresh()));
        let outcome = arm(&session, &name, &mut random).await;
        let is_interrupted = outcome.is_err();
        load.request("a watch", outcome);
        if is_interrupted {
            remove(&client, &name).await;
        }
    }
}

async fn arm(session: &Session, name: &ZnodePath, random: &mut Random) -> Result<(), Error> {
    let (_, created) = session.watch_exists(name).await?;
    if random.once_in(3) {
        return Ok(());
    }
    session.create(name, "1", CreateMode::Ephemeral).await?;
    let _ = created.await;
    let (_, _, changed) = session.watch_data(name).await?;
    let (_, _, unread) = session.watch_children(&path("/")).await?;
    let mode = match random.once_in(2) {
        true => WatchMode::Persistent,
        false => WatchMode::PersistentRecursive,
    };
    let mut following = session.add_watch(name, mode).await?;
    session.set_data(name, "2", None).await?;
    let _ = changed.await;
    let _ = tokio::time::timeout(GLANCE, following.next()).await;
    drop(unread);
    session.delete(name, None).await
}

/// Reads a list of locks or a queue, or follows one for a moment.
pub(super) async fn observe(load: Arc<Load>, client: Client, mut random: Random) {
    while !load.is_finishing() {
        rest(&mut random, 100).await;
        let outcome = glance(&client, &mut random).await;
        load.tally.add(&load.tally.ops, 1);
        match outcome {
            Ok(()) => {}
            // The lock has never been used, or has no holder.
            Err(LockError::Store(Error::NoNode { .. })) => {}
            Err(error) => load.failed("an observer", &error),
        }
    }
}

async fn glance(client: &Client, random: &mut Random) -> Result<(), LockError> {
    match random.within(0..6) {
        0 => drop(queue(client, "/mutex-0").await?),
        1 => drop(list_locks(client, "/fresh").await?),
        2 => {
            let mut snapshots = observe_queue(client, "/rwlock")?;
            let _ = tokio::time::timeout(GLANCE, snapshots.next()).await;
        }
        3 => {
            let mut changes = observe_locks(client, "/fresh")?;
            let read = async { while changes.next().await.is_some() {} };
            let _ = tokio::time::timeout(GLANCE, read).await;
        }
        4 => {
            let election = Election::new(client, "/election")?;
            let mut changes = election.observe();
            let read = async { while changes.next().await.is_some() {} };
            let _ = tokio::time::timeout(GLANCE, read).await;
        }
        _ => {
            let target = RevokeTarget::holder("/mutex-1")?;
            let revoker = Revoker::new(client).by("the soak");
            revoker.request(&target).await?;
        }
    }
    Ok(())
}

pub(super) async fn follow(load: Arc<Load>, client: Client, mut random: Random) {
    load.tally.contender_begins();
    let mutex = Mutex::new(&client, "/events").expect("a path");
    while !load.is_finishing() {
        rest(&mut random, 20).await;
        let (sink, events) = lock_events();
        let options = LockOptions::new()
            .events(sink)
            .timeout(Duration::from_secs(5));
        match mutex.lock_with(options).await {
            Ok(guard) => {
                tokio::time::sleep(random.below_ms(3)).await;
                drop(guard.release().await);
            }
            Err(error) => load.failed("a wait with events", &error),
        }
        read(&load, events).await;
    }
    load.tally.contender_ends();
}

/// Reads a stream to its end. It must start with the queue or the grant, and finish with an end.
async fn read(load: &Load, mut events: LockEvents) {
    let mut story = Vec::new();
    while let Some(event) = events.next().await {
        story.push(event);
    }
    load.tally.add(&load.tally.events, story.len() as u64);
    if !is_whole(&story) {
        violation(&format!("events: a story is not whole: {story:?}"));
    }
}

/// Returns `true` if a stream describes one contender from start to end.
fn is_whole(story: &[LockEvent]) -> bool {
    use LockEvent::{Abandoned, Acquired, Lost, Queued, Released};
    let Some(last) = story.last() else {
        // The wait was refused before it joined the queue.
        return true;
    };
    let grants = story
        .iter()
        .filter(|event| matches!(event, Acquired { .. }));
    let starts = story.iter().filter(|event| matches!(event, Queued { .. }));
    match last {
        Released | Lost { .. } => grants.count() == 1 && starts.count() <= 1,
        Abandoned => grants.count() == 0 && starts.count() <= 1,
        _ => false,
    }
}

/// Lets a warden watch the ever-new locks during the load.
pub(super) async fn guard(load: Arc<Load>, client: Client) {
    let warden = Warden::builder(&client).watch_prefix("/fresh");
    let (warden, mut reports) = warden.expect("a path").start();
    while !load.is_finishing() {
        // Reports overdue locks, which some of these are by their own metadata.
        let _ = tokio::time::timeout(GLANCE, reports.next()).await;
    }
    drop(warden);
}
