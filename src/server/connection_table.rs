//! [`ConnectionTable`]: who is connected, how many may be, and what has gone over all connections.

mod half_open;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::Notify;

use self::half_open::HalfOpen;
pub(super) use self::half_open::network;
use super::connection_entry::{CloseRequest, ConnectionEntry, Traffic, TrafficDelta};
use super::log_throttle::LogThrottle;
use crate::clock::{BootInstant, Clock};
use crate::types::SessionId;

/// The connections of a server.
///
/// Its lock is taken when a connection comes, gets its session, and goes, and for a four-letter word; never for
/// a request.
#[derive(Debug)]
pub(super) struct ConnectionTable {
    clock: Clock,
    limits: TableLimits,
    started: BootInstant,
    state: Mutex<State>,
    counts: [AtomicU64; Count::ALL.len()],
    emptied: Notify,
    pub(super) log_throttle: LogThrottle,
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableLimits {
    pub(super) connections: usize,
    /// From one address: of IPv6 from one network.
    pub(super) per_address: usize,
    /// Limit of half-open connections: without a session, or without the proof that is required. When another comes, the
    /// oldest of the network that has most is asked to go. Never more than half of all, so that silent connections cannot
    /// keep all others out.
    pub(super) half_open: usize,
}

#[derive(Debug, Default)]
struct State {
    entries: Slab<Arc<ConnectionEntry>>,
    by_address: HashMap<IpAddr, usize>,
    /// Those that are not let in yet and were not asked to go.
    half_open: HalfOpen,
    arrivals: u64,
    /// Traffic of connections that are gone, since the last reset.
    gone: Traffic,
    is_closed: bool,
}

/// Why a connection is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// There are as many as there may be.
    #[error("there are {limit} connections, as many as may be")]
    Connections { limit: usize },
    /// There are as many from that address as there may be.
    #[error("there are {limit} connections from {address}, as many as may be from one address")]
    PerAddress { address: IpAddr, limit: usize },
    /// The server shuts down.
    #[error("the server shuts down")]
    Shutdown,
}

/// Declares what is counted.
macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters beside the traffic, since the start or the last reset.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Count {
            $($(#[$doc])* $name,)*
        }

        impl Count {
            const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

counts! {
    /// A connection that was taken.
    Entered,
    /// One that was not: too many in all.
    RefusedConnections,
    /// One that was not: too many from its address.
    RefusedPerAddress,
    /// One that was not let in yet and had to go when another came.
    PushedOut,
    /// One that had no session in time.
    HandshakeTimedOut,
    /// One whose handshake was refused or could not be read.
    HandshakeFailed,
    /// A session opened or taken up again.
    Handshake,
    /// A wrong password for a session that there is.
    WrongPassword,
    /// A proof of identity that failed.
    AuthFailed,
    /// A frame longer than the limit.
    FrameTooLong,
    /// A connection that was closed because its client did not read.
    NotRead,
}

/// A connection's place in the table, which it leaves when this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    table: Arc<ConnectionTable>,
    entry: Arc<ConnectionEntry>,
}

impl ConnectionTable {
    pub(super) fn new(limits: TableLimits, clock: Clock) -> Arc<Self> {
        let max_half_open = limits.half_open.min(limits.connections / 2).max(1);
        Arc::new(Self {
            started: clock.now(),
            clock,
            limits: TableLimits {
                half_open: max_half_open,
                ..limits
            },
            state: Mutex::default(),
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            emptied: Notify::new(),
            log_throttle: LogThrottle::default(),
        })
    }

    /// Takes a connection in, half open. May ask another one that is half open to go.
    ///
    /// # Errors
    /// Which limit is reached.
    pub(super) fn enter(self: &Arc<Self>, address: SocketAddr) -> Result<ConnectionGuard, Refusal> {
        let unix_ms = self.clock.unix_ms();
        let mut state = self.state.lock();
        let admitted = state.admit(address, &self.limits);
        if let Err(refusal) = admitted {
            drop(state);
            self.count_refusal(refusal);
            return Err(refusal);
        }
        let pushed_out = state.push_out(self.limits.half_open);
        let entry = state.insert(address, unix_ms);
        drop(state);
        self.count(Count::Entered);
        if let Some(victim) = pushed_out {
            self.count(Count::PushedOut);
            victim.request_close(CloseRequest::PushedOut);
        }
        Ok(ConnectionGuard {
            table: self.clone(),
            entry,
        })
    }

    fn count_refusal(&self, refusal: Refusal) {
        match refusal {
            Refusal::Connections { .. } => self.count(Count::RefusedConnections),
            Refusal::PerAddress { .. } => self.count(Count::RefusedPerAddress),
            Refusal::Shutdown => {}
        }
    }

    /// Counts one more of these.
    pub(super) fn count(&self, what: Count) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a counter's value since the start or the last reset.
    pub(super) fn counted(&self, what: Count) -> u64 {
        self.counts[what as usize].load(Ordering::Relaxed)
    }

    /// How many connections there are.
    pub(super) fn connections(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// How many there may be from one address.
    pub(super) fn max_per_address(&self) -> usize {
        self.limits.per_address
    }

    /// Number of those that are not let in yet and were not asked to go.
    pub(super) fn half_open(&self) -> usize {
        self.state.lock().half_open.len()
    }

    /// The connections, in no order.
    pub(super) fn each(&self) -> Vec<Arc<ConnectionEntry>> {
        let state = self.state.lock();
        state
            .entries
            .iter()
            .map(|(_, entry)| entry.clone())
            .collect()
    }

    /// Returns the traffic of all connections since the start or the last reset, those that are gone included.
    pub(super) fn traffic(&self) -> Traffic {
        let state = self.state.lock();
        let mut sum = state.gone;
        for (_, entry) in &state.entries {
            sum.merge(&entry.traffic_since_srst());
        }
        sum
    }

    /// Resets the statistics of each connection, and leaves the server's sum alone.
    pub(super) fn reset_connections(&self) {
        for (_, entry) in &self.state.lock().entries {
            entry.reset();
        }
    }

    /// Resets the server's statistics: what has gone over all connections, and what is counted beside it.
    pub(super) fn reset_server(&self) {
        let mut state = self.state.lock();
        state.gone.reset();
        for (_, entry) in &state.entries {
            entry.reset_since_srst();
        }
        for count in &self.counts {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// How long the table has been there: the server's age.
    pub(super) fn uptime(&self) -> Duration {
        self.clock.now().since(self.started)
    }

    /// Lets nobody in any more, and asks all to go.
    pub(super) fn close(&self, why: CloseRequest) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let entries: Vec<_> = state
            .entries
            .iter()
            .map(|(_, entry)| entry.clone())
            .collect();
        drop(state);
        for entry in entries {
            entry.request_close(why);
        }
    }

    /// Waits until no connection is left. Cancel safe.
    pub(super) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            let mut emptied = std::pin::pin!(emptied);
            // From here on a notice is not missed.
            emptied.as_mut().enable();
            if self.connections() == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn remove(&self, entry: &ConnectionEntry) {
        let mut state = self.state.lock();
        state.entries.remove(entry.slot);
        state.not_half_open(entry);
        state.gone.merge(&entry.traffic_since_srst().ended());
        let address = network(entry.address());
        if let Some(count) = state.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                state.by_address.remove(&address);
            }
        }
        if state.entries.is_empty() {
            drop(state);
            self.emptied.notify_waiters();
        }
    }
}

impl State {
    fn admit(&self, address: SocketAddr, limits: &TableLimits) -> Result<(), Refusal> {
        if self.is_closed {
            return Err(Refusal::Shutdown);
        }
        if self.entries.len() >= limits.connections {
            let limit = limits.connections;
            return Err(Refusal::Connections { limit });
        }
        let (address, limit) = (network(address), limits.per_address);
        if self.by_address.get(&address).copied().unwrap_or(0) >= limit {
            return Err(Refusal::PerAddress { address, limit });
        }
        Ok(())
    }

    /// Makes room for one more without a session, if there are `limit` of them: says who has to go.
    fn push_out(&mut self, limit: usize) -> Option<Arc<ConnectionEntry>> {
        if self.half_open.len() < limit {
            return None;
        }
        let slot = self.half_open.pop()?;
        Some(self.entries[slot].clone())
    }

    fn not_half_open(&mut self, entry: &ConnectionEntry) {
        self.half_open
            .remove(entry.address(), entry.arrival, entry.slot);
    }

    fn insert(&mut self, address: SocketAddr, unix_ms: i64) -> Arc<ConnectionEntry> {
        self.arrivals += 1;
        *self.by_address.entry(network(address)).or_default() += 1;
        let vacant = self.entries.vacant_entry();
        let slot = vacant.key();
        self.half_open.insert(address, self.arrivals, slot);
        vacant
            .insert(Arc::new(ConnectionEntry::new(
                address,
                unix_ms,
                self.arrivals,
                slot,
            )))
            .clone()
    }
}

impl ConnectionGuard {
    /// The connection has a session. It stays half open until it is let in.
    pub(super) fn session_opened(&self, session: SessionId, timeout: Duration) {
        self.entry.set_session(session, timeout);
        self.table.count(Count::Handshake);
    }

    /// Its client may ask for anything: it is no longer half open.
    pub(super) fn admit(&self) {
        self.table.state.lock().not_half_open(&self.entry);
    }

    /// The seat itself, without the place.
    pub(super) fn shared(&self) -> Arc<ConnectionEntry> {
        self.entry.clone()
    }

    /// As [`ConnectionEntry::note`], and what the table counts.
    pub(super) fn note(&self, delta: &TrafficDelta) {
        if delta.has_failed_proof {
            self.table.count(Count::AuthFailed);
        }
        self.entry.note(delta);
    }

    pub(super) fn table(&self) -> &Arc<ConnectionTable> {
        &self.table
    }
}

impl Deref for ConnectionGuard {
    type Target = ConnectionEntry;

    fn deref(&self) -> &ConnectionEntry {
        &self.entry
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.table.remove(&self.entry);
    }
}
