//! Runs the script in docs/operating.md that moves a ZooKeeper's znodes to a served store, while locks are in use.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper::{Client, Mutex, RwLock, Semaphore};
use lockkeeper_store::{CreateMode, Session};
use serde_json::Value;
use testkit::{Env, within_reason};

use super::python;
use crate::common::*;
use crate::copied::the_third_waits_for_the_first;
use crate::peer::{hosts, world};

const DOCS: &str = include_str!("../../../docs/operating.md");

const TABLE: &str = "/lock/table";
const QUOTA: &str = "/quota/geocoder";

fn script() -> &'static str {
    let from = DOCS.find("# move.py").expect("the page has the script");
    let script = &DOCS[from..];
    &script[..script.find("```").expect("the block ends")]
}

/// Uses a lock of each kind repeatedly.
async fn use_locks(client: Client, done: Arc<AtomicBool>) {
    let mutex = Mutex::new(&client, LOCK).unwrap();
    let table = RwLock::new(&client, TABLE).unwrap();
    let quota = Semaphore::new(&client, QUOTA, 2).unwrap();
    while !done.load(Ordering::Relaxed) {
        mutex.lock().await.unwrap().release().await.unwrap();
        table.write().await.unwrap().release().await.unwrap();
        quota.acquire().await.unwrap().release().await.unwrap();
    }
}

/// Returns all znodes with their data, except the server's own.
async fn all(session: &Session) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut left = vec!["/".to_owned()];
    while let Some(at) = left.pop() {
        let below = children(session, &at).await.into_iter();
        left.extend(below.map(|name| format!("{}/{name}", at.trim_end_matches('/'))));
        left.retain(|at| at != "/zookeeper");
        let (data, _) = session.get_data(&path(&at)).await.unwrap();
        all.push((at, data.to_vec()));
    }
    all
}

#[tokio::test]
async fn the_script_leaves_queues_and_the_id_where_they_are() {
    within_reason(async {
        let source = world().await;
        let session = source.observing().await;
        for (at, data) in [
            ("/app", ""),
            ("/app/db", "primary=1"),
            ("/group", "members"),
        ] {
            let made = session
                .create(&path(at), data, CreateMode::Persistent)
                .await;
            made.unwrap();
        }
        let member = session
            .create(&path("/group/m"), "here", CreateMode::Ephemeral)
            .await;
        member.unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let mut users = Vec::new();
        for _ in 0..4 {
            users.push(tokio::spawn(use_locks(source.client().await, done.clone())));
        }
        // Each lock has been handed over, so its data could be copied wrongly.
        for lock in [LOCK, TABLE] {
            while !String::from_utf8_lossy(&read(&session, lock).await).contains("released") {
                tokio::task::yield_now().await;
            }
        }

        let target = World::new(Env::served().await).await;
        let to = target.env.target().split_once("://").unwrap().1.to_owned();
        let from = hosts(&source).to_owned();
        let moved = tokio::task::spawn_blocking(move || {
            let mut command = Command::new(python());
            command.args(["-c", script(), &from, &to]).output().unwrap()
        });
        let moved = moved.await.unwrap();
        done.store(true, Ordering::Relaxed);
        for user in users {
            user.await.unwrap();
        }
        assert!(
            moved.status.success(),
            "{}",
            String::from_utf8_lossy(&moved.stderr)
        );

        let there = target.observing().await;
        let copied = all(&there).await;
        let data_of = |at: &str| {
            let found = copied.iter().find(|(path, _)| path == at);
            found.map(|(_, data)| String::from_utf8_lossy(data).into_owned())
        };
        assert_eq!(data_of("/app/db").as_deref(), Some("primary=1"));
        assert_eq!(data_of("/group").as_deref(), Some("members"));
        assert_eq!(data_of("/group/m"), None);
        let number: Value =
            serde_json::from_str(&data_of("/quota/geocoder/permits").unwrap()).unwrap();
        assert_eq!(number["permits"], 2);
        for (at, data) in &copied {
            let marker = serde_json::from_slice::<Value>(data).unwrap_or_default();
            assert_eq!(marker.get("queue"), None, "{at} came with its marker");
        }
        let id = read(&session, "/lockkeeper.id").await;
        assert_ne!(read(&there, "/lockkeeper.id").await, id);
        the_third_waits_for_the_first(&target).await;
    })
    .await;
}

async fn read(session: &Session, at: &str) -> Vec<u8> {
    let read = session.get_data(&path(at)).await;
    read.map(|(data, _)| data.to_vec()).unwrap_or_default()
}
