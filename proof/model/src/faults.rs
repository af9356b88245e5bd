//! Faults of the network, of time, of operators and of strangers.

use crate::client::{Evidence, Phase};
use crate::config::Config;
use crate::mistake::Mistake;
use crate::model::State;
use crate::queue::Name;

impl State {
    /// Ends a client's belief in its session. A guard is lost with it permanently.
    pub(crate) fn end_lease(&mut self, at: usize) {
        let client = &mut self.clients[at];
        client.is_lease_valid = false;
        client.is_touched = false;
        client.connection.outdate_proofs();
        if client.phase == Phase::Holding {
            self.leave(at, true);
        }
    }

    /// Returns `true` if the store may expire a client's session now. While clocks keep the margin, this is only after
    /// its client has stopped believing in it (invariant 6).
    pub(crate) fn may_expire(&self, config: &Config, at: usize) -> bool {
        let client = &self.clients[at];
        let is_overdue = !client.is_lease_valid && !client.is_touched;
        let is_early = !config.clocks_keep_margin || config.makes(Mistake::LeaseOutlivesSession);
        client.is_session_alive && (is_overdue || is_early)
    }

    /// Expires a session. Its entries are deleted, its connection breaks, and its requests in flight are refused.
    pub(crate) fn expire(&mut self, config: &Config, at: usize) {
        let client = &mut self.clients[at];
        client.is_session_alive = false;
        client.connection.break_off();
        client.connection.strays.clear();
        client.connection.view = None;
        let session = client.session;
        let entries = self.queue.entries.iter();
        let owned: Vec<_> = entries
            .filter(|entry| entry.owner == Some(session))
            .map(|entry| entry.name)
            .collect();
        self.remove_entries(config, &owned);
    }

    pub(crate) fn remove_by_force(&mut self, config: &Config, name: Name) {
        self.note_force(name);
        self.remove_entries(config, &[name]);
    }

    /// Atomically replaces an entry by one of the same name that belongs to a stranger.
    pub(crate) fn take_over(&mut self, config: &Config, name: Name) {
        let czxid = self.queue.next_czxid;
        let mut entries = self.queue.entries.iter_mut();
        let Some(entry) = entries.find(|entry| entry.name == name) else {
            return;
        };
        (entry.owner, entry.czxid) = (None, czxid);
        self.queue.next_czxid += 1;
        self.note_force(name);
        self.fire_all(config, name);
    }

    /// Removes the entries of the stranger, who leaves on its own.
    pub(crate) fn dismiss_stranger(&mut self, config: &Config) {
        let entries = self.queue.entries.iter();
        let owned: Vec<_> = entries
            .filter(|entry| entry.owner.is_none())
            .map(|entry| entry.name)
            .collect();
        self.remove_entries(config, &owned);
    }

    /// Deletes the parent of an empty queue, and recreates it with a copy of its data.
    pub(crate) fn recreate(&mut self) {
        self.queue.parent += 1;
        self.queue.next_number = 0;
    }

    /// Records who loses its place by force. It may rightly be overtaken, even if it has confirmed its entry before.
    fn note_force(&mut self, name: Name) {
        let client = &mut self.clients[usize::from(name.id.client)];
        if client.own.is_some_and(|own| own.name != name) || client.id() != name.id {
            return;
        }
        client.arrival = None;
        if client.evidence == Evidence::Confirmed {
            client.evidence = Evidence::RemovedSince;
        }
    }
}
