//! Describes a path of actions, one line per step.

use std::fmt::Debug;

use stateright::Path;

use crate::config::Config;
use crate::model::{Action, State};

/// Returns a line for each action of a path, and one for its final state.
pub(crate) fn tell(config: &Config, path: Path<State, Action>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut last = None;
    for (state, action) in path.into_vec() {
        if let Some(action) = action {
            let mut next = state.clone();
            next.apply(config, action);
            lines.push(line(&state, &next, action));
            last = Some(next);
        }
    }
    lines.extend(last.map(|state| format!("so the clients are: {}", phases(&state))));
    lines
}

fn line(state: &State, next: &State, action: Action) -> String {
    let oldest = |of: Option<&dyn Debug>| of.map_or(String::new(), |one| format!("{one:?}"));
    match action {
        Action::Start(at) => format!("client {at} asks for the lock"),
        Action::Serve(at) => {
            let requests = &state.clients[at].connection.requests;
            let request = oldest(requests.first().map(|one| &one.body as &dyn Debug));
            format!("the store carries out {request} of client {at}")
        }
        Action::Deliver(at) => {
            let replies = &state.clients[at].connection.replies;
            let reply = oldest(replies.first().map(|one| &one.body as &dyn Debug));
            let phase = next.clients[at].phase;
            format!("client {at} receives {reply}, and goes on to {phase:?}")
        }
        Action::Release(at) => format!("client {at} releases the lock"),
        Action::Reconnect(at) => {
            format!(
                "client {at} connects again, and goes on to {:?}",
                next.clients[at].phase
            )
        }
        Action::CatchUp(at) => format!("the follower of client {at} catches up"),
        Action::DismissStranger => "the stranger removes its entry".to_owned(),
        Action::ServeStray(at) => {
            let stray = oldest(
                state.clients[at]
                    .connection
                    .strays
                    .first()
                    .map(|one| one as _),
            );
            format!("the store carries out {stray} of client {at}, sent over the connection before")
        }
        Action::Disconnect(at) => format!("FAULT: the connection of client {at} breaks"),
        Action::EndLease(at) => format!("FAULT: the lease of client {at} ends"),
        Action::Expire(at) => format!("FAULT: the session of client {at} expires"),
        Action::Cancel(at) => format!("FAULT: client {at} gives its wait up"),
        Action::Remove(place) => {
            format!(
                "FAULT: an operator deletes {:?}",
                state.queue.entries[place].name
            )
        }
        Action::TakeOver(place) => {
            let name = state.queue.entries[place].name;
            format!("FAULT: a stranger replaces {name:?}")
        }
        Action::Lag(at) => format!("FAULT: the follower of client {at} falls behind"),
        Action::Recreate => "FAULT: the parent is created anew, with its former data".to_owned(),
    }
}

fn phases(state: &State) -> String {
    let clients = state.clients.iter().enumerate();
    let phases = clients.map(|(at, client)| format!("{at} {:?}", client.phase));
    phases.collect::<Vec<_>>().join(", ")
}
