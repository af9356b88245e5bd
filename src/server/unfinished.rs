//! [`Unfinished`]: what has come of requests whose end has not, over all connections.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::connection_entry::CloseRequest;
use super::connection_table::ConnectionGuard;

/// Each connection may hold so much without being counted, or less where all of them would fill half of the limit so.
const OWN_BYTES: usize = 16 << 10;

/// The least of that.
const LEAST_OWN_BYTES: usize = 512;

/// How much may be held of requests that have not come to their end. Beyond it the connection has to go
/// whose request has been coming for longest: an honest client's comes at once.
#[derive(Debug)]
pub(super) struct Unfinished {
    limit: usize,
    /// Bytes that each connection may hold without being counted.
    own: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bytes: usize,
    /// The number of the request that began last to be one of these.
    last: u64,
    /// By those numbers.
    held: BTreeMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    bytes: usize,
    seat: std::sync::Arc<super::connection_entry::ConnectionEntry>,
}

/// What one connection holds. It is given back when this is dropped.
pub(super) struct Share<'a> {
    of: &'a Unfinished,
    seat: &'a ConnectionGuard,
    /// The request's number, while it counts.
    number: Option<u64>,
}

impl Unfinished {
    /// For so many connections.
    pub(super) fn new(limit: usize, connections: usize) -> Self {
        let own = limit / 2 / connections.max(1);
        Self {
            limit,
            own: own.clamp(LEAST_OWN_BYTES, OWN_BYTES),
            state: Mutex::default(),
        }
    }

    pub(super) fn share<'a>(&'a self, seat: &'a ConnectionGuard) -> Share<'a> {
        Share {
            of: self,
            seat,
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
        let own = self.of.own;
        if bytes <= own && self.number.is_none() {
            return;
        }
        let mut state = self.of.state.lock();
        let mut number = self.number.take().filter(|number| state.remove(*number));
        if bytes <= own {
            return;
        }
        if is_new || number.is_none() {
            state.last += 1;
            number = Some(state.last);
        }
        let seat = self.seat.shared();
        state.bytes += bytes;
        self.number = number;
        state
            .held
            .extend(number.map(|number| (number, Held { bytes, seat })));
        while state.bytes > self.of.limit
            && let Some((_, oldest)) = state.held.pop_first()
        {
            state.bytes -= oldest.bytes;
            oldest.seat.ask_to_leave(CloseRequest::Unfinished);
        }
    }
}

impl State {
    /// Whether it was there.
    fn remove(&mut self, number: u64) -> bool {
        let held = self.held.remove(&number);
        self.bytes -= held.as_ref().map_or(0, |held| held.bytes);
        held.is_some()
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
        let seats = [1, 2, 3].map(|port| table.enter(([127, 0, 0, 1], port).into()).unwrap());
        let gone = || seats.each_ref().map(|seat| seat.leave().is_some());
        let unfinished = Unfinished::new(100 * KIB, 3);
        let [mut a, mut b, mut c] = seats.each_ref().map(|seat| unfinished.share(seat));
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
