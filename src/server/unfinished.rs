//! [`Unfinished`]: memory of incomplete requests, over all connections.
//!
//! A frame must be in memory as a whole before it is parsed. Clients could fill the memory by sending all but the last
//! byte of a frame over each of many connections, so the sum of these bytes is limited (invariant 10).

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::connection_entry::CloseRequest;
use super::connection_table::ConnectionGuard;

/// Bytes of each connection that are not counted, so that small requests take no lock. With many connections the number
/// is smaller, because the uncounted bytes should be at most half of the limit in total.
const FREE_BYTES: usize = 16 << 10;

const MIN_FREE_BYTES: usize = 512;

/// Memory of incomplete requests, and its limit. Above the limit, the server closes the connection with the oldest
/// incomplete request, because an honest client completes its request quickly.
#[derive(Debug)]
pub(super) struct Unfinished {
    limit: usize,
    free: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bytes: usize,
    last: u64,
    /// Counted requests by number, oldest first.
    requests: BTreeMap<u64, PartialRequest>,
}

#[derive(Debug)]
struct PartialRequest {
    bytes: usize,
    entry: std::sync::Arc<super::connection_entry::ConnectionEntry>,
}

pub(super) struct Share<'a> {
    pool: &'a Unfinished,
    entry: &'a ConnectionGuard,
    number: Option<u64>,
}

impl Unfinished {
    pub(super) fn new(limit: usize, connections: usize) -> Self {
        let free = limit / 2 / connections.max(1);
        Self {
            limit,
            free: free.clamp(MIN_FREE_BYTES, FREE_BYTES),
            state: Mutex::default(),
        }
    }

    pub(super) fn share<'a>(&'a self, entry: &'a ConnectionGuard) -> Share<'a> {
        Share {
            pool: self,
            entry,
            number: None,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

impl Share<'_> {
    /// Records the bytes of an incomplete request. `is_new` is true unless the last call was for the same request.
    pub(super) fn set(&mut self, bytes: usize, is_new: bool) {
        let free = self.pool.free;
        if bytes <= free && self.number.is_none() {
            return;
        }
        let mut state = self.pool.state.lock();
        let mut number = self.number.take().filter(|number| state.remove(*number));
        if bytes <= free {
            return;
        }
        // A growing request keeps its number, and so its age. A client that sends it slowly cannot make it younger.
        if is_new || number.is_none() {
            state.last += 1;
            number = Some(state.last);
        }
        let entry = self.entry.shared();
        state.bytes += bytes;
        self.number = number;
        state
            .requests
            .extend(number.map(|number| (number, PartialRequest { bytes, entry })));
        while state.bytes > self.pool.limit
            && let Some((_, oldest)) = state.requests.pop_first()
        {
            // Subtract the bytes before the connection's task frees them. Otherwise they could cause another connection
            // to be closed.
            state.bytes -= oldest.bytes;
            oldest.entry.request_close(CloseRequest::Unfinished);
        }
    }
}

impl State {
    fn remove(&mut self, number: u64) -> bool {
        let requests = self.requests.remove(&number);
        self.bytes -= requests.as_ref().map_or(0, |requests| requests.bytes);
        requests.is_some()
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.set(0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection_table::{ConnectionTable, TableLimits};
    use super::*;
    use crate::runtime::clock::Clock;

    const KIB: usize = 1 << 10;

    #[test]
    fn the_request_that_has_been_coming_for_longest_has_to_go() {
        let limits = TableLimits {
            connections: 10,
            per_address: 10,
            half_open: 5,
        };
        let table = ConnectionTable::new(limits, Clock::new_virtual());
        let guards = [1, 2, 3].map(|port| {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
            table.enter(address).unwrap()
        });
        let gone = || {
            guards
                .each_ref()
                .map(|entry| entry.close_request().is_some())
        };
        let unfinished = Unfinished::new(100 * KIB, 3);
        let [mut a, mut b, mut c] = guards.each_ref().map(|entry| unfinished.share(entry));
        a.set(16 * KIB, true);
        assert_eq!(unfinished.bytes(), 0, "so much is everybody's own");
        a.set(40 * KIB, false);
        b.set(40 * KIB, true);
        a.set(20 * KIB, true);
        assert_eq!(unfinished.bytes(), 60 * KIB);
        c.set(40 * KIB, true);
        assert_eq!(gone(), [false; 3], "there is room for all");
        c.set(41 * KIB, false);
        assert_eq!(
            gone(),
            [false, true, false],
            "a has begun another request after b"
        );
        assert_eq!(unfinished.bytes(), 61 * KIB);
        drop(b);
        a.set(0, false);
        drop(c);
        assert_eq!(unfinished.bytes(), 0);
        a.set(101 * KIB, true);
        assert_eq!(gone(), [true, true, false], "it may be the only one");
        assert_eq!(unfinished.bytes(), 0);
    }
}
