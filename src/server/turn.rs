//! [`Turn`]: the share of work that a connection has before the others get theirs (invariant 15).

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts requests and bytes (of parsed requests and sent replies and events), because either can take long. The store
/// limits the work of the requests themselves.
pub(super) struct Turn {
    requests: usize,
    /// Requests at its start.
    limit: usize,
    bytes: usize,
}

/// Requests in a turn. More would gain no throughput and make other clients wait longer.
const TURN_REQUESTS: usize = 32;

/// Requests in a turn while other clients send single ones. This costs the busy clients a quarter of their throughput,
/// and the single requests wait for less than twice their own time.
const SHORT_TURN_REQUESTS: usize = 8;

/// A client that sends no more than this at a time waits for the answers.
const SINGLE_REQUESTS: usize = 2;

/// Number of short turns after a single request. They take about 30 ms, within which most clients send the next.
const SHORT_TURNS: usize = 4_096;

/// Bytes in a turn, which ends with the request or write that reaches this.
const TURN_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct TurnLength {
    /// Number of short turns to come. Need not be exact, so threads may overwrite each other's count.
    short: AtomicUsize,
}

impl TurnLength {
    /// Starts a turn. `left_over` requests were parsed in an earlier turn and not executed yet.
    pub(super) fn start(&self, left_over: usize) -> Turn {
        let limit = match self.short.load(Ordering::Relaxed) {
            0 => TURN_REQUESTS,
            _ => SHORT_TURN_REQUESTS,
        };
        Turn {
            requests: limit.saturating_sub(left_over),
            limit,
            bytes: TURN_BYTES,
        }
    }

    /// Notes a turn that ended with requests left.
    pub(super) fn spend(&self) {
        let short = self.short.load(Ordering::Relaxed);
        self.short.store(short.saturating_sub(1), Ordering::Relaxed);
    }

    /// Notes a turn that served everything its client had sent.
    pub(super) fn served_all(&self, turn: &Turn) {
        if (1..=SINGLE_REQUESTS).contains(&(turn.limit - turn.requests)) {
            self.short.store(SHORT_TURNS, Ordering::Relaxed);
        }
    }
}

impl Turn {
    pub(super) fn is_over(&self) -> bool {
        self.requests == 0 || self.bytes == 0
    }

    pub(super) fn spend_request(&mut self, bytes: usize) {
        self.requests -= 1;
        self.spend_bytes(bytes);
    }

    pub(super) fn spend_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
