//! The store: executes requests one at a time in a single order (invariant 2), and fires watches.

use crate::client::Evidence;
use crate::config::{Config, StoreKind};
use crate::connection::{Message, Predecessor, Reply, Request, Watch};
use crate::mistake::Mistake;
use crate::model::State;
use crate::queue::{Entry, EntryId, Name, Queue};

impl State {
    /// Executes the oldest request of a client's connection, and sends the reply.
    pub(crate) fn serve(&mut self, config: &Config, at: usize) {
        let Message { body, proves } = self.clients[at].connection.requests.remove(0);
        if body.is_write() {
            // The follower sends the reply to a write after everything committed before it.
            self.catch_up(config, at);
            // After a committed write, leftovers of the previous connection can no longer be executed.
            self.clients[at].connection.strays.clear();
        }
        // A follower answers reads on its own, so in an ensemble only a committed write proves that the session is
        // alive.
        let proves = proves && (config.store != StoreKind::Ensemble || body.is_write());
        let client = &mut self.clients[at];
        client.is_touched |= proves && !client.is_lease_valid;
        let body = self.carry_out(config, at, body);
        let replies = &mut self.clients[at].connection.replies;
        replies.push(Message { body, proves });
    }

    /// Executes the oldest change of an earlier connection, without a reply.
    pub(crate) fn serve_stray(&mut self, config: &Config, at: usize) {
        let stray = self.clients[at].connection.strays.remove(0);
        self.carry_out(config, at, stray);
    }

    /// Lets a lagging follower apply all transactions, which fires its watches.
    pub(crate) fn catch_up(&mut self, config: &Config, at: usize) {
        let connection = &mut self.clients[at].connection;
        if connection.view.take().is_none() {
            return;
        }
        if let Some(watch) = connection.watch
            && self.queue.get(watch.on).is_none()
        {
            self.fire(config, at, watch);
        }
    }

    /// Deletes these entries in one transaction, and fires the watches on them.
    pub(crate) fn remove_entries(&mut self, config: &Config, removed: &[Name]) {
        self.queue
            .entries
            .retain(|entry| !removed.contains(&entry.name));
        removed.iter().for_each(|name| self.fire_all(config, *name));
    }

    /// Fires the watches on a deleted entry.
    pub(crate) fn fire_all(&mut self, config: &Config, gone: Name) {
        let mut woken = 0;
        for at in 0..self.clients.len() {
            let connection = &self.clients[at].connection;
            if let Some(watch) = connection.watch
                && watch.on == gone
                && connection.view.is_none()
            {
                // An event for a waiter that was removed by force wakes no client in the queue.
                let is_queued = self.queue.is_owned(watch.own, self.clients[at].session);
                woken += u8::from(is_queued);
                self.fire(config, at, watch);
            }
        }
        self.flaws.woke_several |= woken > 1;
    }

    fn fire(&mut self, config: &Config, at: usize, watch: Watch) {
        let client = &mut self.clients[at];
        let Watch { own, on } = watch;
        // Computed at the end of the transaction and with the owner, because a name can be taken over (invariant 8).
        let clear = config.has_index()
            && self.queue.is_owned(own, client.session)
            && self.queue.nearest_ahead(own.number).is_none();
        if clear {
            client.evidence = Evidence::Confirmed;
        }
        client.connection.watch = None;
        let body = Reply::Gone { on, clear };
        let proves = false;
        client.connection.replies.push(Message { body, proves });
    }

    fn carry_out(&mut self, config: &Config, at: usize, request: Request) -> Reply {
        match request {
            Request::Enqueue(id) => {
                let entry = self.create(at, id);
                let predecessor = self.predecessor(at, entry.name);
                Reply::Enqueued(entry.name, entry.czxid, predecessor)
            }
            Request::Create(id) => {
                let entry = self.create(at, id);
                Reply::Created(entry.name, entry.czxid)
            }
            Request::List => {
                let id = self.clients[at].id();
                let names = self.seen_by(at).names();
                for name in names.iter().filter(|name| name.id == id) {
                    self.note_evidence(at, *name);
                }
                Reply::Listed(names)
            }
            Request::GetPredecessor(own) => Reply::Predecessor(self.predecessor(at, own)),
            Request::Watch { own, on } => {
                let exists = self.seen_by(at).get(on).is_some();
                if exists {
                    self.clients[at].connection.watch = Some(Watch { own, on });
                }
                Reply::Watching(exists)
            }
            Request::Confirm(own) => self.confirm(config, at, own),
            Request::ReadStanding { own, ahead } => {
                let seen = self.seen_by(at);
                let standing = ahead.iter().map(|name| seen.get(*name).is_some());
                let standing = standing.collect();
                let is_known = config.makes(Mistake::ReadAheadOnly);
                let exists = is_known || self.owned(config, at, own).is_some();
                Reply::Standing(exists.then_some(standing))
            }
            Request::Check(own) => Reply::Checked(self.queue.get(own).is_some()),
            Request::Barrier => Reply::Refused,
            Request::GetOwner(name) => Reply::Owner(self.owned(config, at, name)),
            Request::Delete(own) => self.delete(config, at, own),
            Request::Release(own, marker) => {
                if self.queue.get(own).is_some() {
                    self.queue.marker = Some(marker);
                }
                self.delete(config, at, own)
            }
        }
    }

    fn create(&mut self, at: usize, id: EntryId) -> Entry {
        let client = &mut self.clients[at];
        let entry = self.queue.create(id, client.session);
        client.arrival.get_or_insert(entry.czxid);
        client.evidence = Evidence::Confirmed;
        entry
    }

    fn delete(&mut self, config: &Config, at: usize, own: Name) -> Reply {
        let connection = &mut self.clients[at].connection;
        connection.watch = connection.watch.filter(|watch| watch.own != own);
        if self.queue.get(own).is_some() {
            self.remove_entries(config, &[own]);
        }
        Reply::Deleted
    }

    /// Answers from the index, and arms the watch in the same step.
    fn predecessor(&mut self, at: usize, own: Name) -> Predecessor {
        if !self.queue.is_owned(own, self.clients[at].session) {
            return Predecessor::Gone;
        }
        self.note_evidence(at, own);
        match self.queue.nearest_ahead(own.number) {
            None => Predecessor::Clear,
            Some(on) => {
                self.clients[at].connection.watch = Some(Watch { own, on });
                Predecessor::Blocked(on)
            }
        }
    }

    fn confirm(&mut self, config: &Config, at: usize, own: Name) -> Reply {
        let exists = self.owned(config, at, own).is_some();
        let seen = self.seen_by(at);
        Reply::Confirmed(exists.then_some((seen.parent, seen.marker)))
    }

    fn owned(&mut self, config: &Config, at: usize, name: Name) -> Option<u8> {
        self.note_evidence(at, name);
        let session = self.clients[at].session;
        let entry = self.seen_by(at).get(name)?;
        let is_own = entry.owner == Some(session) || config.makes(Mistake::IgnoreOwner);
        is_own.then_some(entry.czxid)
    }

    /// Records what the client learns about its own entry. A lagging follower reports an earlier state.
    fn note_evidence(&mut self, at: usize, own: Name) {
        let session = self.clients[at].session;
        if !self.seen_by(at).is_owned(own, session) {
            return;
        }
        self.clients[at].evidence = match self.queue.is_owned(own, session) {
            true => Evidence::Confirmed,
            false => Evidence::RemovedSince,
        };
    }

    /// Returns the queue as seen by the client's server.
    pub(crate) fn seen_by(&self, at: usize) -> &Queue {
        let view = self.clients[at].connection.view.as_deref();
        view.unwrap_or(&self.queue)
    }
}
