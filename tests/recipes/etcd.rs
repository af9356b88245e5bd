//! Our locks on etcd: beside the Python program in `docs/protocol.md`, which joins the queue by the keys, and at the
//! limit of a transaction.

use std::io::Write;
use std::process::{Command, Stdio};

use lockkeeper::{
    Error, LockError, LockEvent, LockOptions, PreviousHolder, Semaphore, lock_all, lock_events,
    queue,
};
use testkit::{ChildProcess, Env, Lines, TempFolder, within_reason};

use crate::common::*;

const PAGE: &str = include_str!("../../docs/protocol.md");

/// The program of the page. Dropping it kills it.
struct Theirs {
    child: ChildProcess,
    lines: Lines,
    _folder: TempFolder,
}

impl Theirs {
    fn start(world: &World, ttl_seconds: u32) -> Self {
        let (_, program) = PAGE.split_once("```python\n").unwrap();
        let (program, _) = program.split_once("```").unwrap();
        let folder = TempFolder::new("etcd");
        std::fs::write(folder.at("contender.py"), program).unwrap();
        let url = world.env.target().strip_prefix("etcd://").unwrap();
        let (host, prefix) = url.split_once('/').unwrap();
        let mut command = Command::new("python3");
        command
            .arg(folder.at("contender.py"))
            .args([host, &format!("/{prefix}"), LOCK])
            .arg(ttl_seconds.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = ChildProcess::spawn(&mut command);
        Self {
            lines: child.lines(),
            child,
            _folder: folder,
        }
    }

    /// Waits until it holds. Returns its fencing token.
    fn until_held(&mut self) -> i64 {
        let line = self.lines.next().expect("it lives");
        let token = line.strip_prefix("held ").expect("it holds");
        token.parse().unwrap()
    }

    fn leave(&mut self) {
        writeln!(self.child.stdin.as_ref().unwrap()).unwrap();
    }
}

async fn world() -> World {
    World::new(Env::etcd().await).await
}

/// Queues behind them. Returns how they left and our token, once we hold.
async fn granted_after(
    world: &World,
    theirs: &mut Theirs,
    leave: fn(&mut Theirs),
) -> (PreviousHolder, i64) {
    let (mutex, (sink, mut events)) = (world.mutex().await, lock_events());
    let waiter = world
        .queue_up_with(&mutex, LockOptions::new().events(sink))
        .await;
    assert!(mutex.try_lock().await.unwrap().is_none());
    leave(theirs);
    let guard = granted(waiter).await;
    let previous = loop {
        match events.next().await {
            Some(LockEvent::Acquired { previous, .. }) => break previous,
            event => assert!(event.is_some()),
        }
    };
    (previous, guard.fencing_token().as_i64())
}

#[tokio::test]
async fn the_program_of_the_page_waits_for_ours() {
    within_reason(async {
        let world = world().await;
        let ours = world.mutex().await.lock().await.unwrap();
        let mut theirs = Theirs::start(&world, 60);
        theirs.lines.wait_for("queued");
        let entries = queue(&world.observer, LOCK).await.unwrap();
        assert_eq!((entries.len(), &entries[1].metadata), (2, &None));
        ours.release().await.unwrap();
        assert_eq!(theirs.until_held(), entries[1].fencing_token.as_i64());
        assert!(entries[1].fencing_token > entries[0].fencing_token);
        theirs.leave();
        world.until_count(0).await;
    })
    .await;
}

#[tokio::test]
async fn ours_waits_until_the_program_of_the_page_leaves() {
    within_reason(async {
        let world = world().await;
        let mut theirs = Theirs::start(&world, 60);
        let before = theirs.until_held();
        let (previous, token) = granted_after(&world, &mut theirs, Theirs::leave).await;
        // `Unknown` if they left before our watch was armed.
        assert_ne!(previous, PreviousHolder::Died);
        assert!(token > before);
    })
    .await;
}

#[tokio::test]
async fn ours_is_granted_after_the_program_of_the_page_was_killed() {
    within_reason(async {
        let world = world().await;
        let mut theirs = Theirs::start(&world, 5);
        let before = theirs.until_held();
        let (previous, token) = granted_after(&world, &mut theirs, |it| it.child.kill()).await;
        assert_ne!(previous, PreviousHolder::Released);
        assert!(token > before);
    })
    .await;
}

#[tokio::test]
async fn a_batch_above_the_limit_of_a_transaction_is_refused() {
    within_reason(async {
        let world = world().await;
        let client = world.client().await;
        let keys = |count| (0..count).map(|number| format!("/batch/{number}"));
        let all = lock_all(&client, keys(126)).await.unwrap();
        all.release().await.unwrap();
        let refusal = lock_all(&client, keys(128)).await.unwrap_err();
        assert!(
            matches!(
                &refusal,
                LockError::Store(Error::LimitReached { limit: 128, .. })
            ),
            "{refusal}"
        );
        let permits = Semaphore::new(&client, "/quota", 1_000).unwrap();
        let refusal = permits.acquire_many(200).await.unwrap_err();
        assert!(
            matches!(
                &refusal,
                LockError::Store(Error::LimitReached { limit: 128, .. })
            ),
            "{refusal}"
        );
        permits
            .acquire_many(100)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    })
    .await;
}
