//! Large values that make the log reach its volume.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{Client, Error};
use lockkeeper_store::CreateMode;

use super::Load;
use super::paths::path;

/// Number of writers, each with its own znode.
pub(super) const WRITERS: u64 = 4;

/// Bytes of a value, close to the limit of a frame.
const SIZE: usize = 900_000;

/// Writes values at a share of `rate` bytes per second, and catches up after delays.
pub(super) async fn write(load: Arc<Load>, client: Client, writer: u64, rate: u64) {
    let (name, began) = (path(&format!("/bulk-{writer}")), Instant::now());
    let value = bytes::of_noise(writer);
    let share = rate as f64 / WRITERS as f64;
    let mut written = 0.0;
    while !load.is_finishing() {
        let ahead = written / share - began.elapsed().as_secs_f64();
        if ahead > 0.0 {
            let pause = Duration::from_secs_f64(ahead).min(Duration::from_millis(500));
            tokio::time::sleep(pause).await;
            continue;
        }
        let Ok(session) = client.session().await else {
            continue;
        };
        let outcome = match session.set_data(&name, value.clone(), None).await {
            Err(Error::NoNode { .. }) => session
                .create(&name, "", CreateMode::Persistent)
                .await
                .map(|_| ()),
            outcome => outcome.map(|_| {
                written += SIZE as f64;
                load.tally.add(&load.tally.bulk, SIZE as u64);
            }),
        };
        load.request("a large write", outcome);
    }
}

mod bytes {
    use testkit::Random;

    /// Returns incompressible bytes.
    pub(super) fn of_noise(seed: u64) -> Vec<u8> {
        let mut random = Random(seed);
        let mut bytes = Vec::with_capacity(super::SIZE + 8);
        while bytes.len() < super::SIZE {
            bytes.extend(random.next().to_le_bytes());
        }
        bytes.truncate(super::SIZE);
        bytes
    }
}
