//! A store with default sizes writes many times the capacity of its segments: 1 GiB of log, or 10 GiB with `tests/run
//! --full`. Snapshots must keep the directory small.

use lockkeeper_store::{CreateMode, Store};
use testkit::{Random, TempFolder, report, rounds};

use crate::common::*;

const ROUND_BYTES: u64 = 64 << 20;

/// The largest request is a thousand bytes larger.
const LARGEST_VALUE: u64 = 1_046_000;

/// Concurrent writers. Their unsynced data stays far below the log's limit.
const WRITERS: u64 = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_store_takes_every_write_however_much_it_has_written() {
    let folder = TempFolder::new("soak");
    let store = Store::file(folder.path()).unwrap();
    let mut last = [0; WRITERS as usize];
    let mut done = 0;
    for round in rounds(16) {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            writers.spawn(write(store.clone(), writer, round));
        }
        while let Some(written) = writers.join_next().await {
            let (writer, size) = written.unwrap();
            last[writer as usize] = size;
        }
        done += 1;
    }
    report(format_args!(
        "soak: {} MiB of log",
        (done * ROUND_BYTES) >> 20
    ));
    drop(store);
    let session = session_at(&Store::file(folder.path()).unwrap()).await;
    for (writer, size) in last.into_iter().enumerate() {
        let (data, _) = session.get_data(&node(writer as u64)).await.unwrap();
        assert_eq!(data.len() as u64, size);
    }
}

/// Writes one writer's part of a round. Also returns the size of its last value.
async fn write(store: Store, writer: u64, round: u64) -> (u64, u64) {
    let session = session_at(&store).await;
    if round == 0 {
        create(&session, node(writer).as_str(), CreateMode::Persistent).await;
    }
    let mut dice = Random(round << 8 | writer);
    let (mut written, mut size) = (0, 0);
    while written < ROUND_BYTES / WRITERS {
        size = match dice.below(4) {
            0 => dice.below(1_000),
            1 => dice.below(LARGEST_VALUE),
            _ => LARGEST_VALUE - dice.below(1_000),
        };
        let data = vec![b'd'; size as usize];
        let set = session.set_data(&node(writer), data, None).await;
        assert!(set.is_ok(), "round {round}: {size} bytes: {set:?}");
        written += size;
    }
    (writer, size)
}

fn node(writer: u64) -> lockkeeper_store::ZnodePath {
    path(&format!("/w{writer}"))
}
