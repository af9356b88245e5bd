//! The batches that the writer is handed, and their time.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::log::segment_allocator::SegmentRoom;
use crate::log::{DurabilityBarrier, Record, Sizes, WriteQueue};
use crate::types::Zxid;

use super::{create, txn};
use crate::core::NodeKind;

/// Far longer than anything has to wait, on a busy machine, too.
const PATIENCE: Duration = Duration::from_secs(20);

/// A queue, and the last zxids of the batches that its writer is handed.
fn queue() -> (Arc<WriteQueue>, Receiver<Zxid>) {
    let barrier = Arc::new(DurabilityBarrier::new(Zxid(0)));
    let sizes = Sizes::new(1 << 16, 1 << 16);
    let queue = WriteQueue::new(barrier, false, sizes, SegmentRoom::default(), Zxid(0));
    let queue = Arc::new(queue);
    let (sender, handed) = channel();
    std::thread::spawn({
        let queue = queue.clone();
        move || {
            let mut used = None;
            while let Some(batch) = queue.next(used.take()) {
                sender.send(batch.last()).unwrap();
                used = Some(batch);
            }
        }
    });
    (queue, handed)
}

fn append(queue: &WriteQueue, zxid: i64, is_urgent: bool) {
    let create = create("/a", NodeKind::Container);
    queue.append(&mut vec![txn(zxid, create)], is_urgent);
}

fn await_sleep(queue: &WriteQueue) {
    while !queue.writer_sleeps() {
        std::thread::yield_now();
    }
}

#[test]
fn a_lazy_write_is_handed_to_a_writer_that_sleeps() {
    let (queue, handed) = queue();
    for zxid in 1..=3 {
        await_sleep(&queue);
        append(&queue, zxid, false);
        assert_eq!(handed.recv_timeout(PATIENCE), Ok(Zxid(zxid)));
    }
    queue.end();
    assert!(handed.recv().is_err(), "nothing is left");
}

#[test]
fn an_urgent_write_takes_lazy_ones_along() {
    let (queue, handed) = queue();
    await_sleep(&queue);
    append(&queue, 1, false);
    append(&queue, 2, true);
    let mut last = Zxid(0);
    while last < Zxid(2) {
        last = handed.recv_timeout(PATIENCE).unwrap();
    }
    await_sleep(&queue);
    queue.append_record(&Record::Clean);
    assert_eq!(handed.recv_timeout(PATIENCE), Ok(Zxid(2)));
    queue.end();
}

#[test]
fn the_end_takes_lazy_writes_along() {
    let (queue, handed) = queue();
    await_sleep(&queue);
    append(&queue, 1, false);
    queue.end();
    assert_eq!(handed.recv_timeout(PATIENCE), Ok(Zxid(1)));
    assert!(handed.recv_timeout(PATIENCE).is_err(), "nothing is left");
}
