//! [`ConnectionEntry`]: what is known of one connection, and how it is asked to go.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use parking_lot::Mutex;

use crate::clock::BootInstant;
use crate::types::{SessionId, Zxid};
use crate::wire::Op;

/// One connection's entry in the [`ConnectionTable`](super::connection_table::ConnectionTable).
#[derive(Debug)]
pub(super) struct ConnectionEntry {
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
    /// Its lock is taken once for each batch of requests, and for a four-letter word.
    figures: Mutex<Figures>,
    is_reading: AtomicBool,
    /// A [`CloseRequest`], or 0.
    close_request: AtomicU8,
    task: AtomicWaker,
}

/// Statistics of a connection, which two four-letter words reset apart from each other.
#[derive(Debug, Default)]
struct Figures {
    /// Since it came, or since the last `crst`.
    since_crst: Traffic,
    /// The last answer since then.
    last: Option<LastResponse>,
    /// Its part in the server's sum: since it came, or since the last `srst`.
    since_srst: Traffic,
}

/// Why a connection is asked to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum CloseRequest {
    /// It is not let in yet, and others that are not came after it.
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
pub(super) struct TrafficDelta {
    /// Frames read: the handshake, requests, a four-letter word.
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    /// Frames written that answer one of those.
    pub(super) answered: u64,
    /// Frames written that answer nothing.
    pub(super) events: u64,
    pub(super) sent_bytes: u64,
    /// The last answer; `None`: there was none in this batch.
    pub(super) last: Option<LastResponse>,
    pub(super) latency: LatencyStats,
    /// Whether the client has failed to prove who it is.
    pub(super) has_failed_proof: bool,
}

/// An answer, as it was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastResponse {
    /// The operation's number, or [`HANDSHAKE`].
    pub(super) op: i32,
    pub(super) xid: i32,
    pub(super) zxid: Zxid,
    pub(super) at: BootInstant,
    pub(super) took: Duration,
}

/// The number that stands for the handshake among the operations.
pub(super) const HANDSHAKE: i32 = -10;

/// How long answers took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LatencyStats {
    pub(super) count: u64,
    pub(super) total_ns: u64,
    /// `u64::MAX`: there was none.
    pub(super) min_ns: u64,
    pub(super) max_ns: u64,
}

impl Default for LatencyStats {
    fn default() -> Self {
        Self {
            count: 0,
            total_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }
}

impl LatencyStats {
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
    pub(super) sent: u64,
    pub(super) sent_bytes: u64,
    /// Requests that have no answer yet.
    pub(super) outstanding: u64,
    pub(super) latency: LatencyStats,
}

impl Traffic {
    fn add(&mut self, delta: &TrafficDelta) {
        self.received += delta.received;
        self.received_bytes += delta.received_bytes;
        self.sent += delta.answered + delta.events;
        self.sent_bytes += delta.sent_bytes;
        self.outstanding = (self.outstanding + delta.received).saturating_sub(delta.answered);
        self.latency.merge(delta.latency);
    }

    /// Counts a four-letter word, which is no request: its answer counts as none.
    fn add_word(&mut self, bytes: usize) {
        self.received += 1;
        self.received_bytes += bytes as u64;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.outstanding += other.outstanding;
        self.latency.merge(other.latency);
    }

    /// As it counts when the connection is gone: what was not answered never will be.
    pub(super) fn ended(self) -> Self {
        Self {
            outstanding: 0,
            ..self
        }
    }

    /// Counts from zero again. What is outstanding is a state, and stays.
    pub(super) fn reset(&mut self) {
        *self = Self {
            outstanding: self.outstanding,
            ..Self::default()
        };
    }
}

impl ConnectionEntry {
    pub(super) fn new(address: SocketAddr, established_ms: i64, arrival: u64, slot: usize) -> Self {
        Self {
            address,
            established_ms,
            arrival,
            slot,
            session: AtomicI64::new(0),
            timeout_ms: AtomicU64::new(0),
            figures: Mutex::default(),
            is_reading: AtomicBool::new(true),
            close_request: AtomicU8::new(0),
            task: AtomicWaker::new(),
        }
    }

    /// The client's.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts what the connection's task has done.
    pub(super) fn note(&self, delta: &TrafficDelta) {
        let mut figures = self.figures.lock();
        figures.since_crst.add(delta);
        figures.since_srst.add(delta);
        figures.last = delta.last.or(figures.last);
    }

    /// Counts a four-letter word.
    pub(super) fn note_word(&self, bytes: usize) {
        let mut figures = self.figures.lock();
        figures.since_crst.add_word(bytes);
        figures.since_srst.add_word(bytes);
    }

    /// Resets the connection's own statistics, as `crst` does.
    pub(super) fn reset(&self) {
        let mut figures = self.figures.lock();
        figures.since_crst.reset();
        figures.last = None;
    }

    /// Resets its part in the server's sum, as `srst` does.
    pub(super) fn reset_since_srst(&self) {
        self.figures.lock().since_srst.reset();
    }

    /// Says whether the task reads from its socket, or lets requests wait there. For that task alone.
    pub(super) fn set_reading(&self, reads: bool) {
        self.is_reading.store(reads, Ordering::Relaxed);
    }

    pub(super) fn is_reading(&self) -> bool {
        self.is_reading.load(Ordering::Relaxed)
    }

    /// Through [`ConnectionGuard::session_opened`](super::connection_table::ConnectionGuard::session_opened), which tells the table, too.
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

    /// Its own statistics: since it came, or since they were reset.
    pub(super) fn traffic(&self) -> Traffic {
        self.figures.lock().since_crst
    }

    /// Its part in the server's sum.
    pub(super) fn traffic_since_srst(&self) -> Traffic {
        self.figures.lock().since_srst
    }

    /// The last answer; none before the first, or since a reset.
    pub(super) fn last(&self) -> Option<LastResponse> {
        self.figures.lock().last
    }

    /// Asks the connection's task to close. The most urgent reason stays.
    pub(super) fn request_close(&self, why: CloseRequest) {
        if self.close_request.fetch_max(why as u8, Ordering::AcqRel) < why as u8 {
            self.task.wake();
        }
    }

    /// Whether, and why, the connection is to close.
    pub(super) fn close_request(&self) -> Option<CloseRequest> {
        match self.close_request.load(Ordering::Acquire) {
            1 => Some(CloseRequest::PushedOut),
            2 => Some(CloseRequest::Shutdown),
            3 => Some(CloseRequest::Now),
            4 => Some(CloseRequest::Unfinished),
            _ => None,
        }
    }

    /// Waits until the connection is to close. For the connection's task alone: one that asks is
    /// remembered, not several. Cancel safe; costs a few atomic operations each time it is polled.
    pub(super) async fn close_requested(&self) -> CloseRequest {
        poll_fn(|context| {
            self.task.register(context.waker());
            self.close_request().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl LastResponse {
    /// What `cons` shows as the operation.
    pub(super) fn letters(&self) -> &'static str {
        match self.op {
            HANDSHAKE => "SESS",
            number => Op::of(number).map_or("NA", Op::letters),
        }
    }
}
