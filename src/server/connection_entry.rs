//! [`ConnectionEntry`]: state and statistics of one connection, and the request to close it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use parking_lot::Mutex;

use super::peer::PeerAddress;
use crate::model::types::{SessionId, Zxid};
use crate::runtime::clock::BootInstant;
use crate::wire::Op;

#[derive(Debug)]
pub(super) struct ConnectionEntry {
    address: PeerAddress,
    /// Milliseconds since the epoch.
    established_ms: i64,
    pub(super) arrival: u64,
    pub(super) slot: usize,
    /// 0 before the handshake is done.
    session: AtomicI64,
    timeout_ms: AtomicU64,
    statistics: Mutex<Statistics>,
    is_reading: AtomicBool,
    /// True for connections to the TLS address, even before the TLS handshake is done.
    #[cfg_attr(not(feature = "metrics"), allow(dead_code, reason = "for metrics"))]
    is_tls: AtomicBool,
    close_request: AtomicU8,
    task: AtomicWaker,
}

/// Statistics of a connection. The traffic is counted twice, because the four-letter words `crst` and `srst` reset one
/// count each.
#[derive(Debug, Default)]
struct Statistics {
    since_crst: Traffic,
    last: Option<LastResponse>,
    /// Included in the server's sum, which `srst` resets.
    since_srst: Traffic,
}

/// Reason for closing a connection. A higher number is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum CloseRequest {
    /// The connection is half open, and a newer half-open connection takes its place.
    Evicted = 1,
    /// The server shuts down, but answers the requests that have arrived.
    Shutdown = 2,
    /// The server has been dropped, or its shutdown has waited long enough.
    Now = 3,
    /// The connection has the oldest incomplete request, and other connections need the memory.
    Unfinished = 4,
    /// An operator has asked to close the connection.
    Disconnected = 5,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TrafficDelta {
    /// Number of frames read, including the handshake.
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    pub(super) answered: u64,
    pub(super) events: u64,
    pub(super) sent_bytes: u64,
    pub(super) last: Option<LastResponse>,
    pub(super) latency: LatencyStats,
    pub(super) has_failed_proof: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LastResponse {
    /// An operation number or [`HANDSHAKE`].
    pub(super) op: i32,
    pub(super) xid: i32,
    pub(super) zxid: Zxid,
    pub(super) at: BootInstant,
    pub(super) took: Duration,
}

pub(super) const HANDSHAKE: i32 = -10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LatencyStats {
    pub(super) count: u64,
    pub(super) total_ns: u64,
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    pub(super) sent: u64,
    pub(super) sent_bytes: u64,
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

    /// A word is not a request, so no response to it is outstanding.
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

    /// Returns the traffic of a closed connection, whose outstanding requests are never answered.
    pub(super) fn ended(self) -> Self {
        Self {
            outstanding: 0,
            ..self
        }
    }

    pub(super) fn reset(&mut self) {
        *self = Self {
            outstanding: self.outstanding,
            ..Self::default()
        };
    }
}

impl ConnectionEntry {
    pub(super) fn new(
        address: PeerAddress,
        established_ms: i64,
        arrival: u64,
        slot: usize,
    ) -> Self {
        Self {
            address,
            established_ms,
            arrival,
            slot,
            session: AtomicI64::new(0),
            timeout_ms: AtomicU64::new(0),
            statistics: Mutex::default(),
            is_reading: AtomicBool::new(true),
            is_tls: AtomicBool::new(false),
            close_request: AtomicU8::new(0),
            task: AtomicWaker::new(),
        }
    }

    pub(super) fn address(&self) -> PeerAddress {
        self.address
    }

    pub(super) fn record_traffic(&self, delta: &TrafficDelta) {
        let mut statistics = self.statistics.lock();
        statistics.since_crst.add(delta);
        statistics.since_srst.add(delta);
        statistics.last = delta.last.or(statistics.last);
    }

    pub(super) fn record_word(&self, bytes: usize) {
        let mut statistics = self.statistics.lock();
        statistics.since_crst.add_word(bytes);
        statistics.since_srst.add_word(bytes);
    }

    /// Resets the connection's own statistics (`crst`).
    pub(super) fn reset(&self) {
        let mut statistics = self.statistics.lock();
        statistics.since_crst.reset();
        statistics.last = None;
    }

    /// Resets the connection's part of the server's sum (`srst`).
    pub(super) fn reset_since_srst(&self) {
        self.statistics.lock().since_srst.reset();
    }

    pub(super) fn set_reading(&self, reads: bool) {
        self.is_reading.store(reads, Ordering::Relaxed);
    }

    pub(super) fn is_reading(&self) -> bool {
        self.is_reading.load(Ordering::Relaxed)
    }

    #[cfg(feature = "tls")]
    pub(super) fn set_tls(&self) {
        self.is_tls.store(true, Ordering::Relaxed);
    }

    #[cfg(feature = "metrics")]
    pub(super) fn is_tls(&self) -> bool {
        self.is_tls.load(Ordering::Relaxed)
    }

    pub(super) fn set_session(&self, session: SessionId, timeout: Duration) {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.timeout_ms.store(timeout_ms, Ordering::Relaxed);
        // Store the session last and with `Release`, so that a reader that sees the session also sees its timeout.
        self.session.store(session.0, Ordering::Release);
    }

    /// Returns the session and its timeout in milliseconds, or `None` before the handshake is done.
    pub(super) fn session(&self) -> Option<(SessionId, u64)> {
        // Load the session first, because `set_session` stores it last.
        let session = self.session.load(Ordering::Acquire);
        let timeout_ms = self.timeout_ms.load(Ordering::Relaxed);
        (session != 0).then_some((SessionId(session), timeout_ms))
    }

    pub(super) fn established_ms(&self) -> i64 {
        self.established_ms
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.statistics.lock().since_crst
    }

    pub(super) fn traffic_since_srst(&self) -> Traffic {
        self.statistics.lock().since_srst
    }

    pub(super) fn last(&self) -> Option<LastResponse> {
        self.statistics.lock().last
    }

    /// Asks the connection's task to close. The most urgent request wins.
    pub(super) fn request_close(&self, why: CloseRequest) {
        // Store the request before waking the task. `close_requested` registers its waker before it reads the request,
        // so no request is missed.
        if self.close_request.fetch_max(why as u8, Ordering::AcqRel) < why as u8 {
            self.task.wake();
        }
    }

    pub(super) fn wake(&self) {
        self.task.wake();
    }

    pub(super) fn close_request(&self) -> Option<CloseRequest> {
        match self.close_request.load(Ordering::Acquire) {
            1 => Some(CloseRequest::Evicted),
            2 => Some(CloseRequest::Shutdown),
            3 => Some(CloseRequest::Now),
            4 => Some(CloseRequest::Unfinished),
            5 => Some(CloseRequest::Disconnected),
            _ => None,
        }
    }

    /// Only the connection's task may call this, because the entry has only one waker. Cancel safe.
    pub(super) async fn close_requested(&self) -> CloseRequest {
        poll_fn(|context| {
            self.task.register(context.waker());
            self.close_request().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl LastResponse {
    pub(super) fn letters(&self) -> &'static str {
        match self.op {
            HANDSHAKE => "SESS",
            number => Op::of(number).map_or("NA", Op::letters),
        }
    }
}
