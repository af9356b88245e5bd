//! [`Waiter`]: the next holder of a lock, for a test that blocks.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use lockkeeper::{LockOptions, LockPath, Mutex};

use super::stores::*;
use super::support::*;

/// Waits for a lock under the label `second`, and holds the lock until it is released. Runs on a separate thread,
/// because the thread of the test blocks while it reads a terminal or a stream.
pub(crate) struct Waiter {
    release: Sender<()>,
    thread: JoinHandle<()>,
}

impl Waiter {
    pub(crate) fn start(store: &StoreAt, path: LockPath) -> Self {
        let url = store.url.clone();
        let (release, released) = channel();
        let wait = async move {
            let client = lockkeeper::connect(&url).await.unwrap();
            let options = LockOptions::new().label("second").backtrace();
            let guard = Mutex::new(&client, path).unwrap().lock_with(options).await;
            let _ = released.recv();
            guard.unwrap().release().await.unwrap();
        };
        let thread = std::thread::spawn(|| block_on(wait));
        Self { release, thread }
    }

    pub(crate) fn release(self) {
        drop(self.release);
        self.thread.join().unwrap();
    }
}
