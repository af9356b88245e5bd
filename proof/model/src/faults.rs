//! Faults: of the network, of time, of operators and of strangers.

use crate::client::{Evidence, Phase};
use crate::config::Config;
use crate::mistake::Mistake;
use crate::model::State;
use crate::queue::Name;

impl State {
    /// Ends a client's belief in its session. A guard is lost with it, for good.
    pub(crate) fn end_lease(&mut self, at: usize) {
        let client = &mut self.clients[at];
        client.is_lease_valid = false;
        client.is_touched = false;
        client.connection.outdate_proofs();
        if client.phase == Phase::Holding {
            self.leave(at, true);
        }
    }

    /// Returns true if the store may let a client's session expire now: while clocks keep the margin, not before its
    /// client has stopped believing (invariant 6).
    pub(crate) fn may_expire(&self, config: &Config, at: usize) -> bool {
        let client = &self.clients[at];
        let is_overdue = !client.is_lease_valid && !client.is_touched;
        let is_early = !config.clocks_keep_margin || config.makes(Mistake::LeaseOutlivesSession);
        client.is_session_alive && (is_overdue || is_early)
    }

    /// Lets a session expire: its entries go, its connection breaks, and what it had sent is refused.
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

    /// Deletes an entry by force.
    pub(crate) fn remove_by_force(&mut self, config: &Config, name: Name) {
        self.note_force(name);
        self.remove_entries(config, &[name]);
    }

    /// Replaces an entry, in one transaction, by one of the same name that belongs to a stranger's session.
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

    /// Removes the entries of a stranger, who leaves by itself.
    pub(crate) fn dismiss_stranger(&mut self, config: &Config) {
        let entries = self.queue.entries.iter();
        let owned: Vec<_> = entries
            .filter(|entry| entry.owner.is_none())
            .map(|entry| entry.name)
            .collect();
        self.remove_entries(config, &owned);
    }

    /// Deletes the parent of an empty queue, and creates it anew with a copy of the former data.
    pub(crate) fn recreate(&mut self) {
        self.queue.parent += 1;
        self.queue.next_number = 0;
    }

    /// Notes who loses its place by force: it is overtaken rightly, and may have confirmed its entry before.
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
