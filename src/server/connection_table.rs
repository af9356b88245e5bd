//! [`ConnectionTable`]: the live connections of a server, the limits for new connections, and traffic counters.

mod half_open;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use tokio::sync::Notify;

use self::half_open::HalfOpen;
use super::connection_entry::{CloseRequest, ConnectionEntry, Traffic, TrafficDelta};
use super::log_throttle::LogThrottle;
use super::peer::{Network, PeerAddress};
use super::request_counters::RequestCounters;
use crate::model::types::SessionId;
use crate::runtime::clock::{BootInstant, Clock};

/// The live connections of a server. No request takes the table's lock.
#[derive(Debug)]
pub(super) struct ConnectionTable {
    clock: Clock,
    limits: TableLimits,
    started: BootInstant,
    state: Mutex<State>,
    counts: [AtomicU64; Count::ALL.len()],
    pub(super) requests: Arc<RequestCounters>,
    emptied: Notify,
    pub(super) log_throttle: LogThrottle,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TableLimits {
    pub(super) connections: usize,
    /// Limit of connections from one IPv4 address, one IPv6 network or one user of the Unix socket.
    pub(super) per_address: usize,
    /// Limit of half-open connections, which still lack a session or the required proof of identity. At most half of
    /// `connections`, so that silent clients cannot keep out all others.
    pub(super) half_open: usize,
}

#[derive(Debug, Default)]
struct State {
    entries: Slab<Arc<ConnectionEntry>>,
    by_address: HashMap<Network, usize>,
    half_open: HalfOpen,
    arrivals: u64,
    closed_traffic: Traffic,
    is_closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the limit of {limit} connections is reached")]
    Connections { limit: usize },
    #[error("the limit of {limit} connections from {address} is reached")]
    PerAddress { address: Network, limit: usize },
    #[error("the server shuts down")]
    Shutdown,
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters other than the traffic, since the start or the last reset.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Count {
            $($(#[$doc])* $name,)*
        }

        impl Count {
            pub(super) const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

counts! {
    Entered,
    RefusedConnections,
    RefusedPerAddress,
    Evicted,
    HandshakeTimedOut,
    HandshakeFailed,
    Handshake,
    WrongPassword,
    AuthFailed,
    FrameTooLong,
    NotRead,
    SessionOverLimit,
    SessionDiskFull,
    SessionFailed,
    SessionDraining,
}

#[cfg(feature = "metrics")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Transports {
    pub(super) tcp: u64,
    pub(super) tls: u64,
    pub(super) unix: u64,
}

/// A connection's registration in the table. Dropping it removes the connection's entry.
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
            requests: Arc::default(),
            emptied: Notify::new(),
            log_throttle: LogThrottle::default(),
        })
    }

    pub(super) fn enter(
        self: &Arc<Self>,
        address: impl Into<PeerAddress>,
    ) -> Result<ConnectionGuard, Refusal> {
        let address = address.into();
        let unix_ms = self.clock.unix_ms();
        let mut state = self.state.lock();
        // Check and insert under one lock, so that connections that arrive together cannot exceed a limit.
        let admitted = state.admit(address, &self.limits);
        if let Err(refusal) = admitted {
            drop(state);
            self.count_refusal(refusal);
            return Err(refusal);
        }
        let evicted = state.evict(self.limits.half_open);
        let entry = state.insert(address, unix_ms);
        drop(state);
        self.count(Count::Entered);
        // Until the victim's task closes it, the connection still counts as a connection, but not as half open.
        if let Some(victim) = evicted {
            self.count(Count::Evicted);
            victim.request_close(CloseRequest::Evicted);
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

    pub(super) fn count(&self, what: Count) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counted(&self, what: Count) -> u64 {
        self.counts[what as usize].load(Ordering::Relaxed)
    }

    pub(super) fn connections(&self) -> usize {
        self.state.lock().entries.len()
    }

    pub(super) fn arrivals(&self) -> u64 {
        self.state.lock().arrivals
    }

    #[cfg(feature = "metrics")]
    pub(super) fn by_transport(&self) -> Transports {
        let mut counted = Transports::default();
        for (_, entry) in &self.state.lock().entries {
            let count = match entry.address() {
                PeerAddress::Unix(_) => &mut counted.unix,
                PeerAddress::Tcp(_) if entry.is_tls() => &mut counted.tls,
                PeerAddress::Tcp(_) => &mut counted.tcp,
            };
            *count += 1;
        }
        counted
    }

    #[cfg(feature = "metrics")]
    pub(super) fn max_connections(&self) -> usize {
        self.limits.connections
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    pub(super) fn max_per_address(&self) -> usize {
        self.limits.per_address
    }

    pub(super) fn half_open(&self) -> usize {
        self.state.lock().half_open.len()
    }

    pub(super) fn each(&self) -> Vec<Arc<ConnectionEntry>> {
        self.state.lock().each()
    }

    /// Returns the traffic since the start or the last reset, including closed connections.
    pub(super) fn traffic(&self) -> Traffic {
        let state = self.state.lock();
        let mut sum = state.closed_traffic;
        for (_, entry) in &state.entries {
            sum.merge(&entry.traffic_since_srst());
        }
        sum
    }

    /// Resets the statistics of each connection, but not the server's sum (`crst`).
    pub(super) fn reset_connections(&self) {
        for (_, entry) in &self.state.lock().entries {
            entry.reset();
        }
    }

    /// Resets the server's statistics, but not the statistics of each connection (`srst`).
    pub(super) fn reset_server(&self) {
        let mut state = self.state.lock();
        state.closed_traffic.reset();
        for (_, entry) in &state.entries {
            entry.reset_since_srst();
        }
        for count in &self.counts {
            count.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn uptime(&self) -> Duration {
        self.clock.now().since(self.started)
    }

    pub(super) fn close(&self, why: CloseRequest) {
        let mut state = self.state.lock();
        // Set the flag and list the connections under one lock, so that every connection is either listed or refused.
        state.is_closed = true;
        let entries = state.each();
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
            // Enable the notification before the check, so that it is not missed in between.
            emptied.as_mut().enable();
            if self.connections() == 0 {
                return;
            }
            emptied.await;
        }
    }

    fn remove(&self, entry: &ConnectionEntry) {
        // Remove the entry and add its traffic to the sum under one lock, so that a reader counts each connection
        // exactly once.
        let mut state = self.state.lock();
        state.entries.remove(entry.slot);
        state.leave_half_open(entry);
        state
            .closed_traffic
            .merge(&entry.traffic_since_srst().ended());
        let address = entry.address().network();
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
    fn each(&self) -> Vec<Arc<ConnectionEntry>> {
        let entries = self.entries.iter();
        entries.map(|(_, entry)| entry.clone()).collect()
    }

    fn admit(&self, address: PeerAddress, limits: &TableLimits) -> Result<(), Refusal> {
        if self.is_closed {
            return Err(Refusal::Shutdown);
        }
        if self.entries.len() >= limits.connections {
            let limit = limits.connections;
            return Err(Refusal::Connections { limit });
        }
        let (address, limit) = (address.network(), limits.per_address);
        if self.by_address.get(&address).copied().unwrap_or(0) >= limit {
            return Err(Refusal::PerAddress { address, limit });
        }
        Ok(())
    }

    fn evict(&mut self, limit: usize) -> Option<Arc<ConnectionEntry>> {
        if self.half_open.len() < limit {
            return None;
        }
        let slot = self.half_open.pop()?;
        Some(self.entries[slot].clone())
    }

    fn leave_half_open(&mut self, entry: &ConnectionEntry) {
        self.half_open
            .remove(entry.address(), entry.arrival, entry.slot);
    }

    fn insert(&mut self, address: PeerAddress, unix_ms: i64) -> Arc<ConnectionEntry> {
        self.arrivals += 1;
        *self.by_address.entry(address.network()).or_default() += 1;
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
    /// Records the session. The connection stays half open until it is admitted.
    pub(super) fn session_opened(&self, session: SessionId, timeout: Duration) {
        self.entry.set_session(session, timeout);
        self.table.count(Count::Handshake);
    }

    pub(super) fn admit(&self) {
        self.table.state.lock().leave_half_open(&self.entry);
    }

    pub(super) fn shared(&self) -> Arc<ConnectionEntry> {
        self.entry.clone()
    }

    pub(super) fn record_traffic(&self, delta: &TrafficDelta) {
        if delta.has_failed_proof {
            self.table.count(Count::AuthFailed);
        }
        self.entry.record_traffic(delta);
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
