//! One lock, contended for by our mutex and by kazoo's lock, on a real ZooKeeper.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;

use lockkeeper::{Guard, LockEvent, LockOptions, lock_events, queue};
use lockkeeper_store::CreateMode;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::common::*;
use crate::support::{Env, within_reason};

/// Whoever holds the lock makes this znode, which fails when there are two holders.
const INSIDE: &str = "/inside";

/// A python process with a lock of kazoo's. Dropping it kills it.
struct Kazoo {
    process: Child,
    commands: ChildStdin,
    answers: mpsc::UnboundedReceiver<String>,
}

impl Kazoo {
    fn start(world: &World, name: &str) -> Self {
        let hosts = world.env.target().strip_prefix("zookeeper://").unwrap();
        let mut process = Command::new(python())
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../tests/kazoo/lock.py"
            ))
            .args([hosts, LOCK, INSIDE, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        let commands = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, answers) = mpsc::unbounded_channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // Nobody listens when the test is over.
                let _ = sender.send(line);
            }
        });
        Self {
            process,
            commands,
            answers,
        }
    }

    fn send(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("lock.py lives");
    }

    async fn answer(&mut self) -> String {
        let answer = self.answers.recv().await;
        answer.expect("lock.py lives: its stderr says what it died of")
    }

    /// Joins the queue, and returns the name of the one that it waits for.
    async fn queue_up(&mut self) -> String {
        self.send("lock");
        let answer = self.answer().await;
        let ahead = answer.strip_prefix("queued ");
        ahead
            .unwrap_or_else(|| panic!("queued, not {answer}"))
            .to_owned()
    }

    /// Joins the queue, and waits until it holds.
    async fn lock(&mut self) {
        self.send("lock");
        self.until_held().await;
    }

    /// Waits until it holds.
    async fn until_held(&mut self) {
        while let answer = self.answer().await
            && answer != "held"
        {
            assert!(answer.starts_with("queued "), "{answer}");
        }
    }

    async fn release(&mut self) {
        self.send("release");
        assert_eq!(self.answer().await, "released");
    }

    /// The names in the queue, each with its data if python can read them as JSON.
    async fn queue(&mut self) -> Vec<(String, Value)> {
        self.send("queue");
        let answer = self.answer().await;
        serde_json::from_str(answer.strip_prefix("queue ").unwrap()).unwrap()
    }
}

impl Drop for Kazoo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The python that has kazoo.
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

/// Does what only one may do at a time, and releases.
async fn work(world: &World, guard: Guard) {
    let session = world.observing().await;
    let made = session
        .create(&path(INSIDE), "", CreateMode::Ephemeral)
        .await;
    made.expect("there is no other holder");
    session.delete(&path(INSIDE), None).await.unwrap();
    guard.release().await.unwrap();
}

/// The name of the last in the queue.
async fn last(world: &World) -> String {
    let entries = queue(&world.observer, LOCK).await.unwrap();
    entries.last().unwrap().path.name().to_owned()
}

async fn world() -> World {
    World::new(Env::zookeeper().await).await
}

#[tokio::test]
async fn kazoo_waits_behind_ours() {
    within_reason(async {
        let world = world().await;
        let guard = world.mutex().await.lock().await.unwrap();
        let mut kazoo = Kazoo::start(&world, "kazoo");
        assert_eq!(kazoo.queue_up().await, guard.path().name());
        work(&world, guard).await;
        kazoo.until_held().await;
        kazoo.release().await;
        assert!(world.children().await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn ours_waits_behind_kazoo() {
    within_reason(async {
        let world = world().await;
        let mut kazoo = Kazoo::start(&world, "kazoo");
        kazoo.lock().await;
        let holder = last(&world).await;

        let mutex = world.mutex().await;
        assert!(mutex.try_lock().await.unwrap().is_none());
        let (sink, mut events) = lock_events();
        let waiter = world
            .queue_up_with(&mutex, LockOptions::new().events(sink))
            .await;
        let Some(LockEvent::Queued { position: 1, ahead }) = events.next().await else {
            panic!("it does not wait");
        };
        assert_eq!(ahead.name(), holder);
        kazoo.release().await;
        work(&world, granted(waiter).await).await;
        assert!(world.children().await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn each_reads_what_the_other_wrote() {
    within_reason(async {
        let world = world().await;
        let mut kazoo = Kazoo::start(&world, "billing by kazoo");
        kazoo.lock().await;
        let options = LockOptions::new().label("billing").reason("monthly run");
        let _waiter = world.queue_up_with(&world.mutex().await, options).await;

        let entries = queue(&world.observer, LOCK).await.unwrap();
        let [theirs, ours] = entries.as_slice() else {
            panic!("{entries:?}");
        };
        assert_eq!(theirs.metadata, None);
        assert_eq!(theirs.data, "billing by kazoo");
        assert!(theirs.sequence < ours.sequence && theirs.token < ours.token);

        let seen = kazoo.queue().await;
        let names = entries.iter().map(|entry| entry.path.name());
        assert!(seen.iter().map(|(name, _)| name.as_str()).eq(names));
        let (_, metadata) = &seen[1];
        assert_eq!(metadata["v"], 1);
        assert_eq!(metadata["label"], "billing");
        assert_eq!(metadata["reason"], "monthly run");
        assert_eq!(metadata["pid"], std::process::id());
        assert!(metadata["host"].is_string());
        assert!(metadata["queued_at_ms"].is_i64());
    })
    .await;
}

#[tokio::test]
async fn a_mixed_queue_is_served_in_order() {
    within_reason(async {
        let world = world().await;
        let first = world.mutex().await.lock().await.unwrap();
        let mut ahead = first.path().name().to_owned();
        let mut waiting = Vec::new();
        for turn in 0..3 {
            let mut kazoo = Kazoo::start(&world, &format!("kazoo {turn}"));
            assert_eq!(
                kazoo.queue_up().await,
                ahead,
                "each waits for the one before it"
            );
            let ours = world.queue_up(&world.mutex().await).await;
            ahead = last(&world).await;
            waiting.push((kazoo, ours));
        }
        let order: Vec<_> = queue(&world.observer, LOCK).await.unwrap();
        let foreign = order.iter().map(|entry| entry.metadata.is_none());
        assert!(foreign.eq([false, true, false, true, false, true, false]));
        assert!(order.is_sorted_by_key(|entry| entry.sequence));

        work(&world, first).await;
        for (turn, (mut kazoo, ours)) in waiting.into_iter().enumerate() {
            kazoo.until_held().await;
            assert!(!ours.is_finished());
            assert_eq!(
                queue(&world.observer, LOCK).await.unwrap(),
                order[2 * turn + 1..]
            );
            kazoo.release().await;
            let guard = granted(ours).await;
            assert_eq!(*guard.path(), order[2 * turn + 2].path);
            work(&world, guard).await;
        }
        assert!(world.children().await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn there_is_never_a_second_holder() {
    const EACH: usize = 40;
    within_reason(async {
        let world = world().await;
        let ours = async || {
            let mutex = world.mutex().await;
            for _ in 0..EACH {
                work(&world, mutex.lock().await.unwrap()).await;
            }
        };
        let theirs = async |mut kazoo: Kazoo| {
            kazoo.until_held().await;
            for _ in 1..EACH {
                kazoo.release().await;
                kazoo.lock().await;
            }
            kazoo.release().await;
        };
        let start = world.mutex().await.lock().await.unwrap();
        let [mut one, mut two] = ["one", "two"].map(|name| Kazoo::start(&world, name));
        one.queue_up().await;
        two.queue_up().await;
        tokio::join!(
            ours(),
            ours(),
            theirs(one),
            theirs(two),
            work(&world, start)
        );
        assert!(world.children().await.is_empty());
    })
    .await;
}
