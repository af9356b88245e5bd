//! [`Turn`]: the share of work that a connection has before the others have theirs.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Remainder of a connection's turn: the work that it may do before the other connections have theirs (invariant 15).
/// Both requests and bytes (of requests parsed, of replies and events sent) are counted, since either can take
/// long. The store limits the work of the requests themselves.
pub(super) struct Turn {
    requests: usize,
    /// Requests that it had at its start.
    limit: usize,
    bytes: usize,
}

/// Requests in a turn. More would gain no throughput, and would let other clients wait longer.
const TURN_REQUESTS: usize = 32;

/// Requests in a turn while other clients send single ones. It takes a quarter of the throughput of the many, and the
/// single ones wait for less than twice their own time.
const SHORT_TURN_REQUESTS: usize = 8;

/// A client that sends no more than this at a time waits for the answers.
const SINGLE_REQUESTS: usize = 2;

/// As many turns are short after a single request: some 30 ms, within which most clients send the next.
const SHORT_TURNS: usize = 4_096;

/// Bytes in a turn, which ends with the request or the write that reaches this.
const TURN_BYTES: usize = 64 << 10;

/// Length of the turns of all connections of a server.
#[derive(Debug, Default)]
pub(super) struct TurnLength {
    /// Number of the next turns that are short. Threads may overwrite each other's count: it need not be exact.
    short: AtomicUsize,
}

impl TurnLength {
    /// Starts a turn. `left_over` requests were parsed in an earlier one, and have not been carried out yet.
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

    /// Takes note of a turn that is over, with requests left for a further one.
    pub(super) fn spend(&self) {
        let short = self.short.load(Ordering::Relaxed);
        self.short.store(short.saturating_sub(1), Ordering::Relaxed);
    }

    /// Takes note of a turn that has served all that its client had sent.
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
