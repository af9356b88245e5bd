//! Properties of each state, named after the invariants of ARCHITECTURE.md.

use stateright::Property;

use crate::client::{Client, Evidence, Phase};
use crate::config::Config;
use crate::model::{Action, QueueModel, State};

/// Invariant 4.
pub const WATCHES: &str =
    "4: a waiter watches one node, the nearest that blocks it; each departure wakes at most one";
/// Invariant 5.
pub const TOKENS: &str = "5: tokens grow from grant to grant";
/// Invariant 6.
pub const EXCLUSION: &str = "6: a guard is lost before another client may hold";
/// Invariant 7.
pub const LEFT_BEHIND: &str = "7: no wait and no hold leaves a node behind";
/// Invariant 8.
pub const VERIFIED: &str = "8: a holder's entry exists, is its session's, and nothing is ahead";
/// The order of grants.
pub const FIFO: &str = "FIFO: nobody who stays is overtaken";
/// The end of waits.
pub const PROGRESS: &str = "progress: every wait ends once faults stop";

/// Maximum number of steps from any state to the end of all waits without faults. More steps mean a cycle.
const MAX_STEPS: usize = 2_000;

/// Returns the properties of a configuration. In the same state, earlier ones are reported first. If clocks drift
/// beyond the margin, two clients may believe that they hold, and only tokens protect.
pub(crate) fn all(config: &Config) -> Vec<Property<QueueModel>> {
    let mut properties: Vec<Property<QueueModel>> = Vec::new();
    if config.clocks_keep_margin {
        properties.push(Property::always(EXCLUSION, |_, state| is_exclusive(state)));
        properties.push(Property::always(VERIFIED, |_, state| {
            holders_are_verified(state)
        }));
    }
    properties.extend([
        Property::always(TOKENS, |_, state: &State| !state.flaws.token_not_newer),
        Property::always(FIFO, |_, state: &State| !state.flaws.overtook),
        Property::always(WATCHES, |_, state: &State| {
            !state.flaws.woke_several && watches_are_nearest(state)
        }),
        Property::always(LEFT_BEHIND, |_, state| nothing_is_left(state)),
        Property::always(PROGRESS, |model: &QueueModel, state| {
            makes_progress(&model.0, state)
        }),
    ]);
    properties.extend(reached(config));
    properties
}

/// Returns situations that must occur in a configuration, because a model that never reaches them proves nothing about
/// them.
fn reached(config: &Config) -> Vec<Property<QueueModel>> {
    let mut situations = vec![Property::sometimes(
        "reached: the last grant",
        |_, state: &State| {
            let mut clients = state.clients.iter();
            clients.all(|one| one.waits_left == 0)
                && state.clients.iter().any(|one| one.phase == Phase::Holding)
                && state.queue.entries.len() == 1
        },
    )];
    if config.budgets.disconnects > 0 {
        situations.push(Property::sometimes(
            "reached: a create without a reply is found by its name",
            |_, state: &State| any(state, |one| matches!(one.phase, Phase::CheckingOwner(_))),
        ));
    }
    if config.budgets.lapses > 0 {
        situations.push(Property::sometimes(
            "reached: a turn waits for a proof of life",
            |_, state: &State| any(state, |one| one.phase == Phase::Proving),
        ));
    }
    if !config.clocks_keep_margin {
        situations.push(Property::sometimes(
            "reached: two believe, and the tokens differ",
            |_, state: &State| !is_exclusive(state),
        ));
    }
    situations
}

fn any(state: &State, is_so: fn(&Client) -> bool) -> bool {
    state.clients.iter().any(is_so)
}

/// Returns the holders whose entry was not removed by force. A guard notices such a removal later, and only tokens
/// protect until then.
fn holders(state: &State) -> impl Iterator<Item = &Client> {
    let clients = state.clients.iter();
    clients.filter(|one| one.phase == Phase::Holding && one.evidence != Evidence::RemovedSince)
}

fn is_exclusive(state: &State) -> bool {
    holders(state).count() < 2
}

fn holders_are_verified(state: &State) -> bool {
    holders(state).all(|client| {
        let name = client.own.expect("only an entry is granted").name;
        state.queue.is_owned(name, client.session)
            && state.queue.nearest_ahead(name.number).is_none()
    })
}

fn watches_are_nearest(state: &State) -> bool {
    (0..state.clients.len()).all(|at| {
        let watch = state.clients[at].connection.watch;
        watch
            .is_none_or(|watch| state.seen_by(at).nearest_ahead(watch.own.number) == Some(watch.on))
    })
}

/// Returns `true` if no idle client has an entry or a create in flight.
fn nothing_is_left(state: &State) -> bool {
    let resting = state.clients.iter().filter(|one| one.phase == Phase::Idle);
    resting.into_iter().all(|client| {
        let mut entries = state.queue.entries.iter();
        !entries.any(|entry| entry.owner == Some(client.session))
    })
}

/// Returns `true` if something can still happen or all waits have ended. If configured, also checks that all waits end
/// from here.
fn makes_progress(config: &Config, state: &State) -> bool {
    let mut actions = Vec::new();
    state.steps(&mut actions);
    match actions.is_empty() {
        true => state.clients.iter().all(Client::is_finished),
        false => !config.follow_to_end || ends(config, state.clone()),
    }
}

/// Executes all kinds of steps in turn, and returns `true` if all waits end. stateright's liveness checks would detect
/// less, because they miss cycles.
fn ends(config: &Config, mut state: State) -> bool {
    let mut actions: Vec<Action> = Vec::new();
    for turn in 0..MAX_STEPS {
        actions.clear();
        state.steps(&mut actions);
        if actions.is_empty() {
            return state.clients.iter().all(Client::is_finished);
        }
        state.apply(config, actions[turn % actions.len()]);
    }
    false
}
