//! The batches that the writer is handed, and their time.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::log::segment_allocator::SegmentRoom;
use crate::log::{DurabilityBarrier, Record, Sizes, WriteQueue};
use crate::types::Zxid;

use super::{create, txn};
use crate::core::Kind;

/// Far longer than anything has to wait, on a busy machine, too.
const PATIENCE: Duration = Duration::from_secs(20);

/// A line, and the last zxids of the batches that its writer is handed.
fn line() -> (Arc<WriteQueue>, Receiver<Zxid>) {
    let gate = Arc::new(DurabilityBarrier::new(Zxid(0)));
    let sizes = Sizes::new(1 << 16, 1 << 16);
    let line = WriteQueue::new(gate, false, sizes, SegmentRoom::default(), Zxid(0));
    let line = Arc::new(line);
    let (sender, handed) = channel();
    std::thread::spawn({
        let line = line.clone();
        move || {
            let mut used = None;
            while let Some(batch) = line.next(used.take()) {
                sender.send(batch.last()).unwrap();
                used = Some(batch);
            }
        }
    });
    (line, handed)
}

fn append(line: &WriteQueue, zxid: i64, is_urgent: bool) {
    let create = create("/a", Kind::Container);
    line.append(&mut vec![txn(zxid, create)], is_urgent);
}

fn await_sleep(line: &WriteQueue) {
    while !line.writer_sleeps() {
        std::thread::yield_now();
    }
}

#[test]
fn a_lazy_write_is_handed_to_a_writer_that_sleeps() {
    let (line, handed) = line();
    for zxid in 1..=3 {
        await_sleep(&line);
        append(&line, zxid, false);
        assert_eq!(handed.recv_timeout(PATIENCE), Ok(Zxid(zxid)));
    }
    line.end();
    assert!(handed.recv().is_err(), "nothing is left");
}

#[test]
fn an_urgent_write_takes_lazy_ones_along() {
    let (line, handed) = line();
    await_sleep(&line);
    append(&line, 1, false);
    append(&line, 2, true);
    let mut last = Zxid(0);
    while last < Zxid(2) {
        last = handed.recv_timeout(PATIENCE).unwrap();
    }
    await_sleep(&line);
    line.append_record(&Record::Clean);
    assert_eq!(handed.recv_timeout(PATIENCE), Ok(Zxid(2)));
    line.end();
}

#[test]
fn the_end_takes_lazy_writes_along() {
    let (line, handed) = line();
    await_sleep(&line);
    append(&line, 1, false);
    line.end();
    assert_eq!(handed.recv_timeout(PATIENCE), Ok(Zxid(1)));
    assert!(handed.recv_timeout(PATIENCE).is_err(), "nothing is left");
}
