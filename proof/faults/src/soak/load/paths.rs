//! Paths that were never used before, which reveal an index, table or label that grows with each path.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{Acl, Client, Error, Session, ZnodePath};
use lockkeeper_store::{Create, CreateMode, Op};
use testkit::Random;
use testkit::recipe::{AcquireMode, Recipe};

use super::Load;
use super::contend::rest;

/// Takes and releases locks of ever-new paths.
pub(super) async fn lock(load: Arc<Load>, client: Client, mut random: Random) {
    load.tally.contender_begins();
    while !load.is_finishing() {
        rest(&mut random, 4).await;
        let name = load.fresh();
        let path = match random.once_in(4) {
            true => format!("/fresh/{name}/part/lock"),
            false => format!("/fresh/{name}"),
        };
        let (recipe, clock) = (Recipe::draw(&mut random), client.clock().clone());
        let began = Instant::now();
        let waited = recipe
            .wait(
                (&client, &path, &mut None),
                AcquireMode::Patient,
                &mut random,
                &clock,
            )
            .await;
        match waited {
            Ok(Some(held)) => {
                load.tally.granted(began.elapsed());
                // A lost connection delays the release and the next turn.
                drop(held.release().await);
            }
            Ok(None) => {}
            Err(error) => load.failed("a fresh lock", &error),
        }
        // The number of permits persists until it is deleted.
        if let Recipe::Semaphore { .. } = recipe {
            let permits = self::path(&format!("{path}/permits"));
            remove(&client, &permits).await;
        }
    }
    load.tally.contender_ends();
}

/// Creates, changes, reads and deletes znodes of ever-new names.
pub(super) async fn write(load: Arc<Load>, client: Client, mut random: Random) {
    let folder = path("/data");
    while !load.is_finishing() {
        rest(&mut random, 8).await;
        let Ok(session) = client.session().await else {
            continue;
        };
        let name = path(&format!("/data/{}", load.fresh()));
        let size = 1 << random.within(4..13);
        let outcome = match life(&session, &name, size).await {
            // The reply to a create was lost, so the znode may or may not exist.
            Err(Error::NoNode { .. } | Error::NodeExists { .. }) => {
                match session.create(&folder, "", CreateMode::Persistent).await {
                    Ok(_) | Err(Error::NodeExists { .. }) => Ok(()),
                    Err(error) => Err(error),
                }
            }
            outcome => outcome,
        };
        let is_interrupted = outcome.is_err();
        load.request("a write", outcome);
        if is_interrupted {
            remove(&client, &name).await;
        }
    }
}

async fn life(session: &Session, name: &ZnodePath, size: usize) -> Result<(), Error> {
    let mode = match size % 3 {
        0 => CreateMode::Ephemeral,
        _ => CreateMode::Persistent,
    };
    session.create(name, vec![b'a'; size], mode).await?;
    let stat = session.set_data(name, vec![b'b'; size / 2], None).await?;
    session.get_data(name).await?;
    let beside = path(&format!("{name}-beside"));
    session
        .multi([
            Op::Check {
                path: name.clone(),
                version: Some(stat.version),
            },
            Op::Create(Create {
                path: beside.clone(),
                data: "".into(),
                mode: CreateMode::Persistent,
                acl: Acl::open(),
            }),
            Op::Delete {
                path: beside,
                version: None,
            },
        ])
        .await?;
    session.delete(name, None).await
}

/// Removes a znode, and retries until it succeeds, so that only leaks are left in the end.
pub(super) async fn remove(client: &Client, name: &ZnodePath) {
    loop {
        if let Ok(session) = client.session().await
            && let Ok(()) | Err(Error::NoNode { .. }) = session.delete(name, None).await
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(super) fn path(text: &str) -> ZnodePath {
    text.parse().expect("a path")
}
