//! Short-lived sessions that end in every way except a kill, which guests cover.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, LockError, Mutex};
use lockkeeper_store::{CreateMode, WatchMode};
use testkit::Random;

use super::contend::rest;
use super::paths::path;
use super::{Door, Load};

/// Opens, uses and ends sessions.
pub(super) async fn visit(load: Arc<Load>, mut random: Random) {
    load.tally.contender_begins();
    while !load.is_finishing() {
        rest(&mut random, 150).await;
        let Ok(client) = load.connect().await else {
            continue;
        };
        match stay(&load, &client, &mut random).await {
            Ok(()) => {}
            Err(error) => load.failed("a visit", &error),
        }
        // Otherwise the session is closed when its last handle is dropped.
        if random.once_in(2) {
            let _ = client.close().await;
        }
        load.tally.add(&load.tally.visits, 1);
    }
    load.tally.contender_ends();
}

async fn stay(load: &Load, client: &Client, random: &mut Random) -> Result<(), LockError> {
    let session = client.session().await?;
    if matches!(load.door, Door::Url(..)) {
        session.add_auth("digest", "visitor:secret").await?;
    }
    // A watch and an ephemeral znode that end with the session.
    let name = path(&format!("/visit-{}", load.fresh()));
    session
        .create(&name, "visitor", CreateMode::Ephemeral)
        .await?;
    let (_, watcher) = session.watch_exists(&path("/never")).await?;
    let following = session
        .add_watch(&path("/data"), WatchMode::PersistentRecursive)
        .await?;
    let own = Mutex::new(client, format!("/fresh/{}", load.fresh()))?;
    let guard = own.lock().await?;
    let shared = Mutex::new(client, "/mutex-0")?;
    let wait = shared.lock_timeout(random.below_ms(30));
    let waited = match random.once_in(2) {
        // The session may end during the wait.
        true => tokio::time::timeout(Duration::from_millis(2), wait)
            .await
            .ok(),
        false => Some(wait.await),
    };
    drop((watcher, following));
    if let Some(Err(error)) = waited
        && !matches!(error, LockError::Timeout { .. })
    {
        return Err(error);
    }
    drop(guard);
    Ok(())
}
