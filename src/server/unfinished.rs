//! [`Unfinished`]: what has come of requests whose end has not, over all connections.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::connection_entry::CloseRequest;
use super::connection_table::ConnectionGuard;

/// Each connection may hold so much without being counted, or less where all of them would fill half of the limit so.
const FREE_BYTES: usize = 16 << 10;

/// The least of that.
const MIN_FREE_BYTES: usize = 512;

/// How much may be held of requests that have not come to their end. Beyond it the connection has to go
/// whose request has been coming for longest: an honest client's comes at once.
#[derive(Debug)]
pub(super) struct Unfinished {
    limit: usize,
    /// Bytes that each connection may hold without being counted.
    free: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bytes: usize,
    /// The number of the request that began last to be one of these.
    last: u64,
    /// By those numbers.
    requests: BTreeMap<u64, PartialRequest>,
}

#[derive(Debug)]
struct PartialRequest {
    bytes: usize,
    entry: std::sync::Arc<super::connection_entry::ConnectionEntry>,
}

/// What one connection holds. It is given back when this is dropped.
pub(super) struct Share<'a> {
    of: &'a Unfinished,
    entry: &'a ConnectionGuard,
    /// The request's number, while it counts.
    number: Option<u64>,
}

impl Unfinished {
    /// For so many connections.
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
            of: self,
            entry,
            number: None,
        }
    }

    /// Bytes that are held, beside what is everybody's own.
    pub(super) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

impl Share<'_> {
    /// The connection holds so many bytes of a request now, which is another one than before where `is_new`.
    pub(super) fn set(&mut self, bytes: usize, is_new: bool) {
        let free = self.of.free;
        if bytes <= free && self.number.is_none() {
            return;
        }
        let mut state = self.of.state.lock();
        let mut number = self.number.take().filter(|number| state.remove(*number));
        if bytes <= free {
            return;
        }
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
        while state.bytes > self.of.limit
            && let Some((_, oldest)) = state.requests.pop_first()
        {
            state.bytes -= oldest.bytes;
            oldest.entry.request_close(CloseRequest::Unfinished);
        }
    }
}

impl State {
    /// Whether it was there.
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
    use crate::clock::Clock;

    const KIB: usize = 1 << 10;

    #[test]
    fn the_request_that_has_been_coming_for_longest_has_to_go() {
        let limits = TableLimits {
            connections: 10,
            per_address: 10,
            half_open: 5,
        };
        let table = ConnectionTable::new(limits, Clock::new_virtual());
        let guards = [1, 2, 3].map(|port| table.enter(([127, 0, 0, 1], port).into()).unwrap());
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
