//! [`Seat`]: what is known of one connection, and how it is asked to go.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use atomic_waker::AtomicWaker;

use crate::clock::Moment;
use crate::types::{SessionId, Zxid};
use crate::wire::Op;

/// One connection's entry in the [`Table`](super::table::Table).
///
/// Its figures are written by the connection's task alone, with plain loads and stores that need no
/// order, and read by whoever wants to know: what a reader sees may be of two moments.
#[derive(Debug)]
pub(super) struct Seat {
    address: SocketAddr,
    /// When it came, in milliseconds since the epoch.
    established_ms: i64,
    /// The number of its arrival: a later one has a higher.
    pub(super) arrival: u64,
    /// Where the table keeps it.
    pub(super) slot: usize,
    /// 0: none yet.
    session: AtomicI64,
    timeout_ms: AtomicU64,
    received: AtomicU64,
    received_bytes: AtomicU64,
    answered: AtomicU64,
    /// Received, and never to be answered.
    forgone: AtomicU64,
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    last_op: AtomicI32,
    last_xid: AtomicI32,
    last_zxid: AtomicI64,
    last_answer_ms: AtomicU64,
    timed: AtomicU64,
    total_ns: AtomicU64,
    min_ns: AtomicU64,
    max_ns: AtomicU64,
    last_ns: AtomicU64,
    is_reading: AtomicBool,
    /// A [`Leave`], or 0.
    leave: AtomicU8,
    task: AtomicWaker,
}

/// Why a connection is asked to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Leave {
    /// It has no session yet, and others that have none came after it.
    PushedOut = 1,
    /// The server shuts down: what was received is answered first.
    Shutdown = 2,
    /// The server is gone, or has waited long enough.
    Now = 3,
    /// Its request has been coming for too long, and others need the room.
    Unfinished = 4,
}

/// What a connection's task has done since it last said so.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Batch {
    /// Frames read: the handshake, requests, an admin word.
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    /// Frames written that answer one of those.
    pub(super) answered: u64,
    /// Frames written that answer nothing.
    pub(super) events: u64,
    pub(super) sent_bytes: u64,
    /// The last answer; `None`: there was none in this batch.
    pub(super) last: Option<Answered>,
    pub(super) latency: Spell,
    /// Whether the client has failed to prove who it is.
    pub(super) has_failed_proof: bool,
}

/// An answer, as it was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// The operation's number, or [`HANDSHAKE`].
    pub(super) op: i32,
    pub(super) xid: i32,
    pub(super) zxid: Zxid,
    pub(super) at: Moment,
    pub(super) took: Duration,
}

/// The number that stands for the handshake among the operations.
pub(super) const HANDSHAKE: i32 = -10;

/// How long answers took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spell {
    pub(super) count: u64,
    pub(super) total_ns: u64,
    /// `u64::MAX`: there was none.
    pub(super) min_ns: u64,
    pub(super) max_ns: u64,
}

impl Default for Spell {
    fn default() -> Self {
        Self {
            count: 0,
            total_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }
}

impl Spell {
    /// Adds so many answers that took as long: those of requests that were read together and whose answers
    /// were written together.
    pub(super) fn add(&mut self, count: u64, each: Duration) {
        let each_ns = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX);
        if count > 0 {
            self.merge(Self {
                count,
                total_ns: each_ns.saturating_mul(count),
                min_ns: each_ns,
                max_ns: each_ns,
            });
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// What has gone over a connection, or over several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    pub(super) answered: u64,
    /// Received, and never to be answered.
    pub(super) forgone: u64,
    pub(super) sent: u64,
    pub(super) sent_bytes: u64,
    pub(super) latency: Spell,
}

impl Traffic {
    pub(super) fn merge(&mut self, other: &Self) {
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.answered += other.answered;
        self.forgone += other.forgone;
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.latency.merge(other.latency);
    }

    /// As it counts when the connection is gone: what was not answered never will be.
    pub(super) fn ended(self) -> Self {
        Self {
            forgone: self.received.saturating_sub(self.answered),
            ..self
        }
    }

    /// Requests that have no answer yet.
    pub(super) fn outstanding(&self) -> u64 {
        let settled = self.answered + self.forgone;
        self.received.saturating_sub(settled)
    }
}

impl Seat {
    pub(super) fn new(address: SocketAddr, established_ms: i64, arrival: u64, slot: usize) -> Self {
        Self {
            address,
            established_ms,
            arrival,
            slot,
            session: AtomicI64::new(0),
            timeout_ms: AtomicU64::new(0),
            received: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            forgone: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            last_op: AtomicI32::new(0),
            last_xid: AtomicI32::new(-1),
            last_zxid: AtomicI64::new(-1),
            last_answer_ms: AtomicU64::new(0),
            timed: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
            min_ns: AtomicU64::new(u64::MAX),
            max_ns: AtomicU64::new(0),
            last_ns: AtomicU64::new(0),
            is_reading: AtomicBool::new(true),
            leave: AtomicU8::new(0),
            task: AtomicWaker::new(),
        }
    }

    /// The client's.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts what the connection's task has done. For that task alone: two at once would lose counts.
    pub(super) fn note(&self, batch: &Batch) {
        add(&self.received, batch.received);
        add(&self.received_bytes, batch.received_bytes);
        add(&self.answered, batch.answered);
        add(&self.sent, batch.answered + batch.events);
        add(&self.sent_bytes, batch.sent_bytes);
        if let Some(last) = &batch.last {
            self.last_op.store(last.op, Ordering::Relaxed);
            self.last_xid.store(last.xid, Ordering::Relaxed);
            self.last_zxid.store(last.zxid.0, Ordering::Relaxed);
            self.last_answer_ms
                .store(last.at.as_millis(), Ordering::Relaxed);
            let took_ns = u64::try_from(last.took.as_nanos()).unwrap_or(u64::MAX);
            self.last_ns.store(took_ns, Ordering::Relaxed);
        }
        if batch.latency.count > 0 {
            let mut latency = self.latency();
            latency.merge(batch.latency);
            self.timed.store(latency.count, Ordering::Relaxed);
            self.total_ns.store(latency.total_ns, Ordering::Relaxed);
            self.min_ns.store(latency.min_ns, Ordering::Relaxed);
            self.max_ns.store(latency.max_ns, Ordering::Relaxed);
        }
    }

    /// Counts an admin word, which is no request: its answer counts as none. For that task alone.
    pub(super) fn note_word(&self, bytes: usize) {
        add(&self.received, 1);
        add(&self.forgone, 1);
        add(&self.received_bytes, bytes as u64);
    }

    /// Says whether the task reads from its socket, or lets requests wait there. For that task alone.
    pub(super) fn set_reading(&self, reads: bool) {
        self.is_reading.store(reads, Ordering::Relaxed);
    }

    pub(super) fn is_reading(&self) -> bool {
        self.is_reading.load(Ordering::Relaxed)
    }

    /// Through [`Seated::opened`](super::table::Seated::opened), which tells the table, too.
    pub(super) fn set_session(&self, session: SessionId, timeout: Duration) {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.timeout_ms.store(timeout_ms, Ordering::Relaxed);
        // Who sees the session sees its timeout.
        self.session.store(session.0, Ordering::Release);
    }

    /// The session and its timeout in milliseconds; none before the handshake is done.
    pub(super) fn session(&self) -> Option<(SessionId, u64)> {
        let session = self.session.load(Ordering::Acquire);
        let timeout_ms = self.timeout_ms.load(Ordering::Relaxed);
        (session != 0).then_some((SessionId(session), timeout_ms))
    }

    /// When it came, in milliseconds since the epoch.
    pub(super) fn established_ms(&self) -> i64 {
        self.established_ms
    }

    /// What has gone over it.
    pub(super) fn traffic(&self) -> Traffic {
        Traffic {
            received: self.received.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            answered: self.answered.load(Ordering::Relaxed),
            forgone: self.forgone.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            latency: self.latency(),
        }
    }

    fn latency(&self) -> Spell {
        Spell {
            count: self.timed.load(Ordering::Relaxed),
            total_ns: self.total_ns.load(Ordering::Relaxed),
            min_ns: self.min_ns.load(Ordering::Relaxed),
            max_ns: self.max_ns.load(Ordering::Relaxed),
        }
    }

    /// The last answer; none before the first.
    pub(super) fn last(&self) -> Option<Answered> {
        let op = self.last_op.load(Ordering::Relaxed);
        (op != 0).then(|| Answered {
            op,
            xid: self.last_xid.load(Ordering::Relaxed),
            zxid: Zxid(self.last_zxid.load(Ordering::Relaxed)),
            at: Moment::from_nanos(
                self.last_answer_ms
                    .load(Ordering::Relaxed)
                    .saturating_mul(1_000_000),
            ),
            took: Duration::from_nanos(self.last_ns.load(Ordering::Relaxed)),
        })
    }

    /// Asks the connection's task to close. The most urgent reason stays.
    pub(super) fn ask_to_leave(&self, why: Leave) {
        if self.leave.fetch_max(why as u8, Ordering::AcqRel) < why as u8 {
            self.task.wake();
        }
    }

    /// Whether, and why, the connection is to close.
    pub(super) fn leave(&self) -> Option<Leave> {
        match self.leave.load(Ordering::Acquire) {
            1 => Some(Leave::PushedOut),
            2 => Some(Leave::Shutdown),
            3 => Some(Leave::Now),
            4 => Some(Leave::Unfinished),
            _ => None,
        }
    }

    /// Waits until the connection is to close. For the connection's task alone: one that asks is
    /// remembered, not several. Cancel safe; costs a few atomic operations each time it is polled.
    pub(super) async fn asked_to_leave(&self) -> Leave {
        poll_fn(|context| {
            self.task.register(context.waker());
            self.leave().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Answered {
    /// What `cons` shows as the operation.
    pub(super) fn letters(&self) -> &'static str {
        match self.op {
            HANDSHAKE => "SESS",
            number => Op::of(number).map_or("NA", Op::letters),
        }
    }
}

/// Adds to a figure that has one writer: cheaper than an atomic addition.
fn add(figure: &AtomicU64, more: u64) {
    if more > 0 {
        let sum = figure.load(Ordering::Relaxed).wrapping_add(more);
        figure.store(sum, Ordering::Relaxed);
    }
}
