//! A cached report with many concurrent readers. Sometimes a writer replaces it page by page.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{FencingGate, FencingToken, RwLock};
use testkit::on_every_backend;
use tokio::sync::Notify;

const PAGES: usize = 16;
const READERS: u64 = 8;
const EDITIONS: u64 = 20;

#[derive(Default)]
struct Desk {
    pages: [AtomicU64; PAGES],
    gate: Mutex<FencingGate>,
    closed: AtomicBool,
    reads: AtomicU64,
    /// Reads that saw parts of two editions.
    halves: AtomicU64,
    newest_reader: AtomicI64,
    read: Notify,
}

impl Desk {
    /// Reads the report. Returns its edition unless its pages differ.
    async fn read(&self, token: Option<FencingToken>) -> Option<u64> {
        if let Some(token) = token {
            self.gate.lock().unwrap().admit_shared(token).unwrap();
        }
        let edition = self.pages[0].load(SeqCst);
        let mut is_whole = true;
        for page in &self.pages {
            is_whole &= page.load(SeqCst) == edition;
            tokio::task::yield_now().await;
        }
        is_whole.then_some(edition)
    }

    async fn write(&self, token: Option<FencingToken>, edition: u64) {
        for page in &self.pages {
            if let Some(token) = token {
                self.gate.lock().unwrap().admit(token).unwrap();
            }
            page.store(edition, SeqCst);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn until_read(&self, reads: u64) {
        while self.reads.load(SeqCst) < reads {
            self.read.notified().await;
        }
    }
}

/// Ends the reading when a reader fails, so that the others do not wait for it.
struct Closing(Arc<Desk>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.closed.store(true, SeqCst);
        self.0.reads.fetch_add(u64::MAX / 2, SeqCst);
        self.0.read.notify_one();
    }
}

async fn serve(lock: Option<RwLock>, desk: Arc<Desk>) {
    let closing = Closing(desk);
    let desk = &closing.0;
    while !desk.closed.load(SeqCst) {
        let guard = match &lock {
            Some(lock) => Some(lock.read().await.unwrap()),
            None => None,
        };
        let token = guard.as_deref().map(|guard| guard.fencing_token());
        let edition = desk.read(token).await;
        desk.halves.fetch_add(u64::from(edition.is_none()), SeqCst);
        if let Some(token) = token {
            desk.newest_reader.fetch_max(token.as_i64(), SeqCst);
        }
        desk.reads.fetch_add(1, SeqCst);
        desk.read.notify_one();
        if let Some(guard) = guard {
            guard.release().await.unwrap();
        }
    }
}

/// Writes an edition, and reads it as a reader before another writer can get in.
async fn refresh(lock: &RwLock, desk: &Desk, edition: u64) {
    let guard = lock.write().await.unwrap();
    let token = guard.fencing_token();
    // Tokens follow the order of arrival, so no later reader was let in before this writer.
    let newest_reader = desk.newest_reader.load(SeqCst);
    assert!(newest_reader < token.as_i64(), "a reader has overtaken");
    desk.write(Some(token), edition).await;
    let guard = guard.downgrade().await.unwrap();
    assert_eq!(guard.fencing_token(), token);
    assert_eq!(desk.read(Some(token)).await, Some(edition));
    guard.release().await.unwrap();
}

on_every_backend! {
    async fn every_report_is_whole_and_no_reader_overtakes_a_writer(env: Env) {
        let desk = Arc::new(Desk::default());
        let lock = RwLock::new(&env.client().await, "/report").unwrap();
        let mut readers = Vec::new();
        for _ in 0..READERS {
            let lock = RwLock::new(&env.client().await, "/report").unwrap();
            readers.push(tokio::spawn(serve(Some(lock), desk.clone())));
        }
        for edition in 1..=EDITIONS {
            refresh(&lock, &desk, edition).await;
            desk.until_read(READERS * edition).await;
        }
        desk.closed.store(true, SeqCst);
        for reader in readers {
            reader.await.unwrap();
        }
        assert_eq!(desk.halves.load(SeqCst), 0);
    }
}

/// Shows that the check works: without the lock, readers see half a report.
#[tokio::test]
async fn without_the_lock_half_a_report_is_seen() {
    let desk = Arc::new(Desk::default());
    let reader = tokio::spawn(serve(None, desk.clone()));
    while desk.halves.load(SeqCst) == 0 {
        let edition = desk.pages[0].load(SeqCst) + 1;
        desk.write(None, edition).await;
    }
    desk.closed.store(true, SeqCst);
    reader.await.unwrap();
}
