//! Tests which batches the writer gets, and when it gets them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::log::segment_allocator::SegmentRoom;
use crate::log::{DurabilityBarrier, Record, Sizes, WriteQueue};
use crate::model::types::Zxid;

use super::{create, txn};
use crate::core::NodeKind;

const PATIENCE: Duration = Duration::from_secs(20);

/// A sync so long that the writer never stops waiting for more requests within a test.
const FOREVER: Duration = Duration::from_secs(100_000);

fn queue_without_writer() -> Arc<WriteQueue> {
    let barrier = Arc::new(DurabilityBarrier::new(Zxid(0)));
    let sizes = Sizes::new(1 << 16, 1 << 16);
    let queue = WriteQueue::new(barrier, false, sizes, SegmentRoom::default(), Zxid(0));
    Arc::new(queue)
}

/// Starts a writer. Returns the last zxid of each batch that it gets.
fn start_writer(queue: &Arc<WriteQueue>, sync: Duration) -> Receiver<Zxid> {
    let queue = queue.clone();
    let (sender, handed) = channel();
    std::thread::spawn(move || {
        let mut used = None;
        while let Some(batch) = queue.next(used.take(), sync) {
            sender.send(batch.last()).unwrap();
            used = Some(batch);
        }
    });
    handed
}

fn queue() -> (Arc<WriteQueue>, Receiver<Zxid>) {
    let queue = queue_without_writer();
    let handed = start_writer(&queue, Duration::ZERO);
    (queue, handed)
}

fn queue_behind(answered: i64) -> Arc<WriteQueue> {
    let queue = queue_without_writer();
    for zxid in 1..=answered {
        append(&queue, zxid, true);
    }
    let batch = queue.next(None, PATIENCE).unwrap();
    let last = batch.last();
    assert_eq!(last, Zxid(answered), "the first batch waits for nothing");
    queue
}

fn await_gathering(queue: &WriteQueue) {
    while !queue.writer_gathers() {
        std::thread::yield_now();
    }
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

#[test]
fn a_batch_waits_for_half_of_the_clients_that_the_last_one_answered() {
    let queue = queue_behind(4);
    let handed = start_writer(&queue, FOREVER);
    await_gathering(&queue);
    append(&queue, 5, true);
    assert!(queue.writer_gathers(), "one of four");
    append(&queue, 6, true);
    assert_eq!(handed.recv_timeout(PATIENCE), Ok(Zxid(6)));
    append(&queue, 7, true);
    assert_eq!(handed.recv_timeout(PATIENCE), Ok(Zxid(7)), "half of two");
    queue.end();
}

#[test]
fn a_batch_waits_for_all_clients_that_the_last_one_answered_where_these_are_many() {
    let queue = queue_behind(8);
    let handed = start_writer(&queue, FOREVER);
    await_gathering(&queue);
    for zxid in 9..=15 {
        append(&queue, zxid, true);
        assert!(queue.writer_gathers(), "up to {zxid}");
    }
    append(&queue, 16, true);
    assert_eq!(handed.recv_timeout(PATIENCE), Ok(Zxid(16)));
    queue.end();
}

#[test]
fn a_request_without_company_is_handed_over_after_its_patience() {
    let queue = queue_behind(4);
    let handed = start_writer(&queue, Duration::from_millis(1));
    append(&queue, 5, true);
    assert_eq!(handed.recv_timeout(PATIENCE), Ok(Zxid(5)));
    queue.end();
}

#[test]
fn the_end_is_not_held_up_by_patience() {
    let queue = queue_behind(4);
    let handed = start_writer(&queue, FOREVER);
    await_gathering(&queue);
    append(&queue, 5, true);
    queue.end();
    assert_eq!(handed.recv_timeout(PATIENCE), Ok(Zxid(5)));
    assert!(handed.recv_timeout(PATIENCE).is_err(), "nothing is left");
}
