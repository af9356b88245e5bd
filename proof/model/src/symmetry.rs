//! Symmetry reduction. States that only differ in the numbering of the clients are checked once.

use crate::connection::{Message, Predecessor, Reply, Request, Watch};
use crate::model::State;
use crate::queue::{Name, Queue};

/// The new number of each client.
struct Renaming(Vec<u8>);

/// Returns the representative of all states that only differ in the numbering of the clients. Clients are ordered by
/// their state. After a tie, two representatives may remain, which costs time but hides nothing.
pub(crate) fn representative(state: &State) -> State {
    let mut order: Vec<usize> = (0..state.clients.len()).collect();
    order.sort_by_key(|&at| {
        let client = &state.clients[at];
        let connection = &client.connection;
        (
            (
                client.arrival,
                client.waits_left,
                client.own.map(|own| own.czxid),
            ),
            (connection.is_up, client.is_lease_valid, client.is_abandoned),
            (connection.requests.len(), connection.replies.len()),
            (connection.strays.len(), client.session.generation),
        )
    });
    let mut renaming = Renaming(vec![0; order.len()]);
    for (new, &old) in (0..).zip(&order) {
        renaming.0[old] = new;
    }
    let mut renamed = state.clone();
    renamed.clients = order.iter().map(|&at| state.clients[at].clone()).collect();
    renaming.state(&mut renamed);
    renamed
}

impl Renaming {
    fn client(&self, client: &mut u8) {
        *client = self.0[usize::from(*client)];
    }

    fn name(&self, name: &mut Name) {
        self.client(&mut name.id.client);
    }

    fn names(&self, names: &mut [Name]) {
        names.iter_mut().for_each(|name| self.name(name));
    }

    fn state(&self, state: &mut State) {
        self.queue(&mut state.queue);
        for client in &mut state.clients {
            self.client(&mut client.session.client);
            self.names(&mut client.ahead);
            if let Some(own) = &mut client.own {
                self.name(&mut own.name);
            }
            if let Some(name) = client.phase.name() {
                self.name(name);
            }
            let connection = &mut client.connection;
            for Message { body, .. } in &mut connection.requests {
                self.request(body);
            }
            connection
                .strays
                .iter_mut()
                .for_each(|one| self.request(one));
            for Message { body, .. } in &mut connection.replies {
                self.reply(body);
            }
            if let Some(Watch { own, on }) = &mut connection.watch {
                self.name(own);
                self.name(on);
            }
            if let Some(view) = &mut connection.view {
                self.queue(view);
            }
        }
    }

    fn queue(&self, queue: &mut Queue) {
        for entry in &mut queue.entries {
            self.name(&mut entry.name);
            if let Some(owner) = &mut entry.owner {
                self.client(&mut owner.client);
            }
        }
    }

    fn request(&self, request: &mut Request) {
        match request {
            Request::Enqueue(id) | Request::Create(id) => self.client(&mut id.client),
            Request::GetPredecessor(name)
            | Request::Confirm(name)
            | Request::Check(name)
            | Request::GetOwner(name)
            | Request::Delete(name)
            | Request::Release(name, _) => self.name(name),
            Request::Watch { own, on } => {
                self.name(own);
                self.name(on);
            }
            Request::ReadStanding { own, ahead } => {
                self.name(own);
                self.names(ahead);
            }
            Request::List | Request::Barrier => {}
        }
    }

    fn reply(&self, reply: &mut Reply) {
        match reply {
            Reply::Enqueued(name, _, predecessor) => {
                self.name(name);
                self.predecessor(predecessor);
            }
            Reply::Created(name, _) | Reply::Gone { on: name, .. } => self.name(name),
            Reply::Predecessor(predecessor) => self.predecessor(predecessor),
            Reply::Listed(names) => self.names(names),
            Reply::Watching(_)
            | Reply::Confirmed(_)
            | Reply::Standing(_)
            | Reply::Checked(_)
            | Reply::Refused
            | Reply::Owner(_)
            | Reply::Deleted => {}
        }
    }

    fn predecessor(&self, predecessor: &mut Predecessor) {
        if let Predecessor::Blocked(on) = predecessor {
            self.name(on);
        }
    }
}
