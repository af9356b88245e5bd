//! [`Filler`]: a client that fills a small store, so that all clients reach its limits.

use std::time::Duration;

use lockkeeper::{Client, Clock, Error, ZnodePath};
use lockkeeper_store::CreateMode;
use tokio::task::{JoinHandle, spawn_local};

use crate::client_tasks::connect;
use crate::world::{Random, World, drifting};

/// A client that creates large znodes for a while, and deletes them.
pub(crate) struct Filler {
    world: World,
    working: JoinHandle<()>,
}

const ZNODES: u64 = 60;

const LARGEST_BYTES: u64 = 16 << 10;

const TOO_LARGE_BYTES: usize = 3 << 20;

impl Filler {
    pub(crate) fn start(world: &World, random: Random, length: Duration) -> Self {
        Self {
            world: world.clone(),
            working: spawn_local(work(world.clone(), random, length)),
        }
    }

    /// Fails the run unless it ends within a time limit.
    pub(crate) async fn check(self) {
        let limit = Duration::from_secs(600);
        if tokio::time::timeout(limit, self.working).await.is_err() {
            self.world.violate("progress: a full store is not emptied");
        }
    }
}

async fn work(world: World, mut random: Random, length: Duration) {
    let clock = drifting(&world, &mut random);
    let client = connect(&world, "filler", &clock, &mut random).await;
    while world.time().elapsed() < length && world.violation().is_none() {
        clock.sleep(random.below_ms(400)).await;
        let path = path(random.within(0..ZNODES));
        let done = match random.within(0..20) {
            0 => create(&client, &path, TOO_LARGE_BYTES, &mut random).await,
            1..4 => delete(&client, &path).await,
            _ => {
                let bytes = random.within(0..LARGEST_BYTES) as usize;
                create(&client, &path, bytes, &mut random).await
            }
        };
        note(&world, done);
    }
    empty(&client, &clock).await;
    let _ = client.close().await;
}

fn path(number: u64) -> ZnodePath {
    format!("/filled-{number}").parse().expect("a path")
}

async fn create(
    client: &Client,
    path: &ZnodePath,
    bytes: usize,
    random: &mut Random,
) -> Result<(), Error> {
    let mode = match random.once_in(3) {
        true => CreateMode::Ephemeral,
        false => CreateMode::Persistent,
    };
    let session = client.session().await?;
    session.create(path, vec![0; bytes], mode).await.map(|_| ())
}

async fn delete(client: &Client, path: &ZnodePath) -> Result<(), Error> {
    client.session().await?.delete(path, None).await
}

/// Counts an outcome. A reached limit is a clear error and ends nothing (invariant 10).
fn note(world: &World, done: Result<(), Error>) {
    match done {
        Ok(()) => world.count("budget: requests carried out"),
        Err(error) if is_refusal(&error) => world.count("budget: requests refused"),
        // The second is ZooKeeper's error on a connection without our extension.
        Err(Error::TooLarge { .. } | Error::BadArguments(_)) => {
            world.count("budget: requests too large");
        }
        Err(Error::NodeExists { .. } | Error::NoNode { .. }) => {}
        Err(error) if error.is_session_end() => {}
        Err(Error::ConnectionLoss | Error::ConnectFailed { .. }) => {}
        // The disk has no room while it fails.
        Err(Error::DiskFull { .. }) => {}
        Err(error) => world.violate(format_args!("error: a full store says {error:?}")),
    }
}

/// Returns `true` for the refusal of a full store, even as part of a multi or in ZooKeeper's words on a connection
/// without our extension.
pub(crate) fn is_refusal(error: &Error) -> bool {
    match error {
        Error::LimitReached { .. } => true,
        Error::Protocol(reason) => reason.contains("a limit of the server"),
        Error::MultiFailed { source, .. } => is_refusal(source),
        _ => false,
    }
}

/// Deletes everything again, because deletes need no room.
async fn empty(client: &Client, clock: &Clock) {
    for number in 0..ZNODES {
        while !is_gone(delete(client, &path(number)).await) {
            clock.sleep(Duration::from_millis(100)).await;
        }
    }
}

fn is_gone(deleted: Result<(), Error>) -> bool {
    matches!(deleted, Ok(()) | Err(Error::NoNode { .. }))
}
