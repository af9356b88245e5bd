//! The recipe: how a client reacts to each reply and each new connection.
//!
//! It follows `recipes/src/queue`: `claim.rs` for the create and its clean-up, `wait.rs` for the loop, and `list.rs`
//! for a store that only lists names.

use crate::client::{Evidence, OwnEntry, Phase};
use crate::config::Config;
use crate::connection::{Predecessor, Reply, Request};
use crate::mistake::Mistake;
use crate::model::State;
use crate::queue::{Name, ReleaseMarker};

impl State {
    pub(crate) fn start(&mut self, config: &Config, at: usize) {
        self.clients[at].waits_left -= 1;
        self.enter(config, at);
    }

    pub(crate) fn release(&mut self, at: usize) {
        self.leave(at, true);
    }

    /// Cancels a wait (invariant 7).
    pub(crate) fn cancel(&mut self, config: &Config, at: usize) {
        let client = &mut self.clients[at];
        match client.phase {
            Phase::Entering if config.makes(Mistake::ForgetCreateUnderWay) => client.finish(),
            // The number of the entry is not known yet. It is deleted after the reply or after a search.
            Phase::Entering | Phase::Searching | Phase::CheckingOwner(_) => {
                client.is_abandoned = true;
            }
            _ => self.leave(at, config.makes(Mistake::MarkAbandonedWait)),
        }
    }

    /// Receives the oldest reply or event of a connection.
    pub(crate) fn deliver(&mut self, config: &Config, at: usize) {
        let client = &mut self.clients[at];
        let message = client.connection.replies.remove(0);
        if message.proves {
            client.is_lease_valid = true;
            client.is_touched = false;
        }
        match client.phase {
            Phase::Entering | Phase::Searching | Phase::CheckingOwner(_) => {
                self.deliver_to_claim(config, at, message.body);
            }
            _ => self.deliver_to_waiter(config, at, message.body),
        }
    }

    /// Continues over a new connection. The replies to all requests in flight were lost, and so was the watch.
    pub(crate) fn reconnect(&mut self, config: &Config, at: usize) {
        let client = &mut self.clients[at];
        if !client.is_session_alive {
            client.open_session();
            return;
        }
        client.connection.is_up = true;
        if client.is_waiting() {
            client.evidence = Evidence::Unconfirmed;
        }
        match client.phase {
            Phase::Idle | Phase::Holding => {}
            Phase::Entering if config.makes(Mistake::CreateAgain) => self.enter(config, at),
            // Never send it again without a search. If it created two entries, the unknown one would block everything
            // behind it.
            Phase::Entering | Phase::Searching => self.search(config, at),
            Phase::CheckingOwner(name) => client.connection.send(Request::GetOwner(name)),
            Phase::Proving => self.prove(at),
            Phase::Leaving => self.leave(at, false),
            Phase::Asleep(_) if config.makes(Mistake::SleepOnAfterReconnection) => {}
            Phase::ReadingStanding => self.read_standing(at),
            Phase::Confirming => self.confirm_own(at),
            // After each reconnection the queue is read again (invariant 8).
            Phase::Listing
            | Phase::Relisting
            | Phase::Rechecking
            | Phase::Arming(_)
            | Phase::Asleep(_) => self.recheck(config, at),
        }
    }

    fn deliver_to_claim(&mut self, config: &Config, at: usize, reply: Reply) {
        let client = &mut self.clients[at];
        match (client.phase, reply) {
            (Phase::Entering, Reply::Enqueued(name, czxid, predecessor))
                if name.id == client.id() =>
            {
                self.entered(at, OwnEntry { name, czxid });
                if self.clients[at].phase != Phase::Leaving {
                    self.step(config, at, predecessor);
                }
            }
            (Phase::Entering, Reply::Created(name, czxid)) if name.id == client.id() => {
                self.entered(at, OwnEntry { name, czxid });
            }
            (Phase::Searching, Reply::Listed(names)) => self.searched(config, at, &names),
            (Phase::CheckingOwner(name), Reply::Owner(Some(czxid))) => {
                self.found(config, at, OwnEntry { name, czxid });
            }
            (Phase::CheckingOwner(_), Reply::Owner(None)) => self.absent(config, at),
            _ => {}
        }
    }

    fn deliver_to_waiter(&mut self, config: &Config, at: usize, reply: Reply) {
        match (self.clients[at].phase, reply) {
            (Phase::Confirming, Reply::Confirmed(None))
            | (Phase::ReadingStanding, Reply::Standing(None))
            | (Phase::Proving, Reply::Checked(false)) => self.leave(at, false),
            (Phase::Listing | Phase::Relisting, Reply::Listed(names)) => {
                self.order(config, at, names);
            }
            (Phase::Rechecking, Reply::Predecessor(predecessor)) => {
                self.step(config, at, predecessor);
            }
            (Phase::Arming(on), Reply::Watching(exists)) => self.armed(config, at, on, exists),
            (Phase::Asleep(on), Reply::Gone { on: gone, clear }) if on == gone => {
                self.woken(config, at, clear);
            }
            (Phase::Confirming, Reply::Confirmed(Some((parent, marker)))) => {
                self.pass(config, at, parent, marker);
            }
            (Phase::ReadingStanding, Reply::Standing(Some(standing))) => {
                self.update(config, at, &standing);
            }
            (Phase::Proving, Reply::Checked(true)) => self.recheck(config, at),
            (Phase::Leaving, Reply::Deleted) => self.clients[at].finish(),
            // Ignore replies to a wait that is over.
            _ => {}
        }
    }

    fn enter(&mut self, config: &Config, at: usize) {
        let client = &mut self.clients[at];
        client.phase = Phase::Entering;
        let id = client.id();
        if config.has_index() {
            client.connection.send(Request::Enqueue(id));
        } else {
            client.connection.send(Request::Create(id));
            client.connection.send(Request::List);
        }
    }

    fn entered(&mut self, at: usize, own: OwnEntry) {
        let client = &mut self.clients[at];
        client.own = Some(own);
        client.phase = Phase::Listing;
        if client.is_abandoned {
            self.leave(at, false);
        }
    }

    fn search(&mut self, config: &Config, at: usize) {
        let client = &mut self.clients[at];
        client.phase = Phase::Searching;
        // After a committed write, absence is proof, because the create cannot be executed any more (invariant 8).
        if !config.makes(Mistake::ListWithoutBarrier) {
            client.connection.send(Request::Barrier);
        }
        client.connection.send(Request::List);
    }

    fn searched(&mut self, config: &Config, at: usize, names: &[Name]) {
        let client = &mut self.clients[at];
        let id = client.id();
        match names.iter().find(|name| name.id == id) {
            // Check the owner as well, because a name can be copied.
            Some(&name) => {
                client.phase = Phase::CheckingOwner(name);
                client.connection.send(Request::GetOwner(name));
            }
            None => self.absent(config, at),
        }
    }

    /// Continues after a create that was certainly not executed and never will be.
    fn absent(&mut self, config: &Config, at: usize) {
        match self.clients[at].is_abandoned {
            true => self.clients[at].finish(),
            false => self.enter(config, at),
        }
    }

    fn found(&mut self, config: &Config, at: usize, own: OwnEntry) {
        if config.makes(Mistake::ReenterAfterLostReply) && !self.clients[at].is_abandoned {
            self.clients[at].connection.send(Request::Delete(own.name));
            return self.enter(config, at);
        }
        self.entered(at, own);
        if self.clients[at].phase != Phase::Leaving {
            self.recheck(config, at);
        }
    }

    /// Asks the store for the current predecessor.
    fn recheck(&mut self, config: &Config, at: usize) {
        let own = self.own(at);
        let client = &mut self.clients[at];
        if config.has_index() {
            client.phase = Phase::Rechecking;
            client.connection.send(Request::GetPredecessor(own));
            return;
        }
        client.phase = Phase::Relisting;
        client.connection.send(Request::List);
    }

    fn step(&mut self, config: &Config, at: usize, predecessor: Predecessor) {
        match predecessor {
            Predecessor::Clear => self.turn(config, at),
            Predecessor::Blocked(on) => self.clients[at].phase = Phase::Asleep(on),
            Predecessor::Gone => self.leave(at, false),
        }
    }

    fn order(&mut self, config: &Config, at: usize, names: Vec<Name>) {
        let own = self.own(at);
        if !names.contains(&own) {
            // Either a lagging follower hides the entry, or it is gone. A committed write decides.
            return self.prove(at);
        }
        let ahead = names.into_iter().filter(|name| name.number < own.number);
        let client = &mut self.clients[at];
        client.ahead = ahead.collect();
        // A list contains names but not their owners. The first list directly follows the create.
        let is_known = client.phase == Phase::Listing || config.makes(Mistake::RecheckByName);
        match client.ahead.is_empty() && !is_known {
            true => self.confirm_own(at),
            false => self.watch_nearest(config, at),
        }
    }

    /// Watches only the nearest entry ahead (invariant 4).
    fn watch_nearest(&mut self, config: &Config, at: usize) {
        let own = self.own(at);
        let client = &mut self.clients[at];
        let watched = match config.makes(Mistake::WatchHead) {
            true => client.ahead.first(),
            false => client.ahead.last(),
        };
        match watched {
            None => self.turn(config, at),
            Some(&on) => {
                client.phase = Phase::Arming(on);
                client.connection.send(Request::Watch { own, on });
            }
        }
    }

    fn armed(&mut self, config: &Config, at: usize, on: Name, exists: bool) {
        self.clients[at].phase = Phase::Asleep(on);
        // The entry may have been deleted after the list. No event will arrive then.
        if !exists && !config.makes(Mistake::IgnoreMissingPredecessor) {
            self.woken(config, at, false);
        }
    }

    fn woken(&mut self, config: &Config, at: usize, clear: bool) {
        if clear {
            // In the transaction that deleted the other entry, this one existed, belonged to this session, and was not
            // blocked.
            return self.turn(config, at);
        }
        self.clients[at].evidence = Evidence::Unconfirmed;
        if config.makes(Mistake::GrantWithoutConfirming) {
            return self.turn(config, at);
        }
        match config.has_index() {
            true => self.recheck(config, at),
            false => self.confirm_own(at),
        }
    }

    fn confirm_own(&mut self, at: usize) {
        let own = self.own(at);
        let client = &mut self.clients[at];
        client.phase = Phase::Confirming;
        client.evidence = Evidence::Unconfirmed;
        client.connection.send(Request::Confirm(own));
    }

    /// Drops the watched entry, and all entries that the marker covers.
    fn pass(&mut self, config: &Config, at: usize, parent: u8, marker: Option<ReleaseMarker>) {
        let client = &mut self.clients[at];
        client.marked_parent = Some(parent);
        match config.makes(Mistake::WatchHead) && !client.ahead.is_empty() {
            true => drop(client.ahead.remove(0)),
            false => drop(client.ahead.pop()),
        }
        // Numbers restart below another parent, where the marker means nothing.
        let believed = marker
            .filter(|marker| marker.parent == parent || config.makes(Mistake::TrustForeignMarker));
        if let Some(marker) = believed {
            client.ahead.retain(|name| name.number > marker.released);
        }
        match client.ahead.is_empty() {
            true => self.turn(config, at),
            false => self.read_standing(at),
        }
    }

    /// Reads which of the entries ahead exist, then its own entry.
    fn read_standing(&mut self, at: usize) {
        let own = self.own(at);
        let client = &mut self.clients[at];
        client.phase = Phase::ReadingStanding;
        client.evidence = Evidence::Unconfirmed;
        let ahead = client.ahead.clone();
        client.connection.send(Request::ReadStanding { own, ahead });
    }

    /// Drops the nearest entries that have gone without a marker.
    fn update(&mut self, config: &Config, at: usize, standing: &[bool]) {
        let last = standing.iter().rposition(|exists| *exists);
        let ahead = &mut self.clients[at].ahead;
        ahead.truncate(last.map_or(0, |last| last + 1));
        self.watch_nearest(config, at);
    }

    /// Takes the lock if the lease permits it (invariant 6).
    fn turn(&mut self, config: &Config, at: usize) {
        if self.clients[at].is_lease_valid || config.makes(Mistake::GrantWithoutLease) {
            self.grant(config, at);
        } else {
            self.prove(at);
        }
    }

    /// Makes the store commit that the entry exists, which also renews the lease.
    fn prove(&mut self, at: usize) {
        let own = self.own(at);
        self.clients[at].phase = Phase::Proving;
        self.clients[at].connection.send(Request::Check(own));
    }

    fn grant(&mut self, config: &Config, at: usize) {
        self.note_grant(config, at);
        let client = &mut self.clients[at];
        client.phase = Phase::Holding;
        client.ahead.clear();
    }

    /// Records a grant that is out of order, or whose token is not newer than earlier ones.
    fn note_grant(&mut self, config: &Config, at: usize) {
        let own = self.clients[at].own.expect("only an entry is granted");
        let token = match config.makes(Mistake::TokenFromNumber) {
            true => own.name.number + 1,
            false => own.czxid,
        };
        // A client that has lost its entry after it confirmed it may be late, with an older token that the resource
        // refuses. A rightful holder is never refused.
        let is_rightful = self.queue.is_owned(own.name, self.clients[at].session);
        self.flaws.token_not_newer |= is_rightful && token <= self.newest_token;
        self.newest_token = self.newest_token.max(token);
        let mine = self.clients[at].arrival;
        self.flaws.overtook |= self.clients.iter().any(|other| {
            let stays = other.is_waiting() && other.is_session_alive;
            stays && other.arrival.is_some() && other.arrival < mine
        });
    }

    /// Deletes its own entry. A holder that has read the marker advances it in the same transaction.
    pub(crate) fn leave(&mut self, at: usize, moves_marker: bool) {
        let own = self.own(at);
        let client = &mut self.clients[at];
        client.phase = Phase::Leaving;
        client.is_abandoned = false;
        client.ahead.clear();
        let parent = client.marked_parent.take().filter(|_| moves_marker);
        if !client.connection.is_up {
            return;
        }
        let released = own.number;
        client.connection.send(match parent {
            Some(parent) => Request::Release(own, ReleaseMarker { parent, released }),
            None => Request::Delete(own),
        });
    }

    fn own(&self, at: usize) -> Name {
        self.clients[at].own.expect("it has entered").name
    }
}
