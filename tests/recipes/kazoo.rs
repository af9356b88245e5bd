//! Our mutex and kazoo's lock contend for one lock on a real ZooKeeper.

mod election;
mod moving;
mod rwlock;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockkeeper::{LockOptions, queue};
use serde_json::Value;

use crate::common::*;
use crate::mixed;
use crate::peer::{As, Contender, GRANTS, INSIDE, Process, beside_others, enter, hosts, work};

pub(crate) fn kazoo(world: &World) -> Process {
    let mut command = Command::new(python());
    command
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/kazoo/contenders.py"
        ))
        .args([hosts(world), INSIDE, GRANTS]);
    Process::start(command)
}

/// Returns the names in the queue as kazoo sees them, each with its data if it is JSON.
async fn seen_by(kazoo: &mut Contender) -> Vec<(String, Value)> {
    kazoo.send("queue");
    serde_json::from_str(&kazoo.answer_of("queue ").await).unwrap()
}

fn python() -> PathBuf {
    let default = || concat!(env!("CARGO_MANIFEST_DIR"), "/../target/venv/bin/python").into();
    let python = env::var_os("LOCKKEEPER_PYTHON").unwrap_or_else(default);
    assert!(
        Path::new(&python).exists(),
        "{} is missing: run `tests/run kazoo`, which makes it",
        python.display()
    );
    python.into()
}

/// kazoo's lock configured with our names, and the same class under Curator's names.
const LOCKS: [&str; 2] = ["lock", "curator-lock"];

beside_others! {
    async fn kazoo_waits_behind_ours(world: World, recipe in LOCKS) {
        let process = kazoo(&world);
        let theirs = process.contender("kazoo", recipe, LOCK).await;
        mixed::mutex::theirs_waits_behind_ours(&world, theirs).await;
    }

    async fn ours_waits_behind_kazoo(world: World, recipe in LOCKS) {
        let process = kazoo(&world);
        let theirs = process.contender("kazoo", recipe, LOCK).await;
        mixed::mutex::ours_waits_behind_theirs(&world, theirs).await;
    }

    async fn kazoo_and_ours_read_each_others_data(world: World) {
        let process = kazoo(&world);
        let mut kazoo = process.contender("billing-by-kazoo", "lock", LOCK).await;
        kazoo.acquire().await;
        let options = LockOptions::new().label("billing").reason("monthly run");
        let _waiter = world.queue_up_with(&world.mutex().await, options).await;

        let entries = queue(&world.observer, LOCK).await.unwrap();
        let [theirs, ours] = entries.as_slice() else {
            panic!("{entries:?}");
        };
        assert_eq!(theirs.metadata, None);
        assert_eq!(theirs.data, "billing-by-kazoo");
        assert!(theirs.sequence < ours.sequence && theirs.fencing_token < ours.fencing_token);

        let seen = seen_by(&mut kazoo).await;
        let names = entries.iter().map(|entry| entry.path.name());
        assert!(seen.iter().map(|(name, _)| name.as_str()).eq(names));
        let (_, metadata) = &seen[1];
        assert_eq!(metadata["v"], 1);
        assert_eq!(metadata["label"], "billing");
        assert_eq!(metadata["reason"], "monthly run");
        assert_eq!(metadata["pid"], std::process::id());
        assert!(metadata["host"].is_string());
        assert!(metadata["queued_at_ms"].is_i64());
    }

    async fn a_mixed_queue_is_served_in_order(world: World, recipe in LOCKS) {
        mixed::mutex::a_queue_is_served_in_order(&world, &kazoo(&world), recipe).await;
    }

    async fn a_holder_that_is_still_at_work_keeps_kazoo_out(world: World) {
        let process = kazoo(&world);
        let theirs = process.contender("kazoo", "lock", LOCK).await;
        mixed::mutex::a_busy_holder_keeps_them_out(&world, theirs).await;
    }

    async fn there_is_never_a_second_holder(world: World, recipe in LOCKS) {
        // Keeps the queue's znode. The next test but one does without.
        world.make(LOCK).await;
        let process = kazoo(&world);
        let one = process.contender("one", recipe, LOCK).await;
        let two = process.contender("two", recipe, LOCK).await;
        mixed::mutex::there_is_never_a_second_holder(&world, [one, two]).await;
    }

    async fn a_kazoo_that_is_not_told_of_our_names_gets_in(world: World) {
        let guard = world.mutex().await.lock().await.unwrap();
        let process = kazoo(&world);
        let mut bare = process.contender("bare", "bare", LOCK).await;
        let inside = enter(&world, As::Only, guard.path(), guard.fencing_token()).await;
        bare.send("acquire");
        let failure = bare.failure().await;
        assert!(failure.contains("beside others"), "{failure}");
        inside.leave().await;
    }

    async fn a_kazoo_whose_parent_was_reaped_fails(world: World) {
        let guard = world.mutex().await.lock().await.unwrap();
        let process = kazoo(&world);
        let mut kazoo = process.contender("kazoo", "lock", LOCK).await;
        kazoo.queue_up().await;
        work(&world, guard).await;
        kazoo.until_held().await;
        kazoo.release().await;
        // The queue's znode is our container and is empty.
        until_reaped(&world).await;
        kazoo.send("acquire");
        assert!(kazoo.failure().await.contains("NoNodeError"));
        // A new lock object creates the parent again.
        let mut fresh = process.contender("fresh", "lock", LOCK).await;
        fresh.acquire().await;
        fresh.release().await;
    }
}

/// Waits until the server has removed the queue's empty container.
async fn until_reaped(world: &World) {
    let session = world.observing().await;
    while let (Some(_), watcher) = session.watch_exists(&path(LOCK)).await.unwrap() {
        watcher.await.unwrap();
    }
}
