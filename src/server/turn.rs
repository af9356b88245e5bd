//! [`Turn`]: the share of work that a connection may do before other connections run (invariant 15).

use std::sync::atomic::{AtomicUsize, Ordering};

/// Remaining work of a turn, in requests and in bytes of requests, replies and events. Many requests and many bytes
/// both take long, so both are limited.
pub(super) struct Turn {
    requests: usize,
    /// Limit of requests in this turn, including requests left over from an earlier turn.
    limit: usize,
    bytes: usize,
}

/// Number of requests in a turn. Longer turns gain no throughput and make other clients wait longer.
const TURN_REQUESTS: usize = 32;

/// Number of requests in a turn while other clients send single requests. Short turns cost busy clients a quarter of
/// their throughput, but a single request then waits for less than twice its own execution time.
const SHORT_TURN_REQUESTS: usize = 8;

/// A client that sends no more requests than this at a time probably waits for each answer.
const SINGLE_REQUESTS: usize = 2;

/// Number of turns that are short after a single request. Together they take about 30 ms, and most clients send their
/// next request within this time.
const SHORT_TURNS: usize = 4_096;

/// Number of bytes in a turn. The turn ends after the request or the write that reaches this number.
const TURN_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct TurnLength {
    /// Number of turns that will still be short. It need not be exact, so threads may overwrite each other's count.
    short: AtomicUsize,
}

impl TurnLength {
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

    pub(super) fn spend(&self) {
        let short = self.short.load(Ordering::Relaxed);
        self.short.store(short.saturating_sub(1), Ordering::Relaxed);
    }

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
