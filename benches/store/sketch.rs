//! A minimal group commit, as a reference for the store. It has no znodes, only byte records. One thread writes
//! everything that waits to a file that was written before, with one sync.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::common::disk::{Floor, Way};
use crate::figures::Times;

/// Bytes of a record in addition to its data, for a path, numbers and its share of a frame.
const RECORD_BYTES: usize = 60;

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    filled: Condvar,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    done: Vec<oneshot::Sender<()>>,
    is_over: bool,
}

impl Queue {
    fn submit(&self, data: &[u8]) -> oneshot::Receiver<()> {
        let (done, answer) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        waiting.bytes.extend_from_slice(&[0; RECORD_BYTES]);
        waiting.bytes.extend_from_slice(data);
        waiting.done.push(done);
        if waiting.done.len() == 1 {
            self.filled.notify_one();
        }
        answer
    }

    /// Returns everything that waits, or `None` when no more will follow.
    fn take(&self) -> Option<Waiting> {
        let mut waiting = self.waiting.lock();
        while waiting.done.is_empty() && !waiting.is_over {
            self.filled.wait(&mut waiting);
        }
        (!waiting.done.is_empty()).then(|| std::mem::take(&mut *waiting))
    }

    fn end(&self) {
        self.waiting.lock().is_over = true;
        self.filled.notify_one();
    }
}

/// Runs clients with one record in flight each.
pub(crate) async fn round(
    folder: &Path,
    clients: usize,
    bytes: usize,
    time: Duration,
) -> (Times, f64) {
    let mut floor = Floor::make(folder, Way::Overwrite);
    let queue = Arc::new(Queue::default());
    let writer = std::thread::spawn({
        let queue = queue.clone();
        move || {
            while let Some(mut waiting) = queue.take() {
                floor.write_and_sync(&waiting.bytes);
                for done in waiting.done.drain(..) {
                    // The client's round may be over.
                    let _ = done.send(());
                }
            }
        }
    });
    let start = Instant::now();
    let clients: Vec<_> = (0..clients)
        .map(|_| {
            let (queue, data) = (queue.clone(), vec![b'x'; bytes]);
            tokio::spawn(async move {
                let mut times = Times::default();
                while start.elapsed() < time {
                    let asked = Instant::now();
                    queue.submit(&data).await.expect("written");
                    times.push(asked.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Times::default();
    for client in clients {
        times.append(client.await.expect("a client ends well"));
    }
    let per_s = times.count() as f64 / start.elapsed().as_secs_f64();
    queue.end();
    tokio::task::spawn_blocking(move || writer.join())
        .await
        .expect("joined")
        .expect("the writer ends well");
    (times, per_s)
}
