//! [`check`]: one configuration, all states; and the shortest story of a violation.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model, Path};

use crate::config::Config;
use crate::model::{Action, QueueModel, State};
use crate::{story, symmetry};

/// Number of states that a search for a shortest path generates at most in one go, about: each keeps its whole path.
const MAX_STATES: usize = 2_000_000;

type Discoveries = HashMap<&'static str, Path<State, Action>>;

/// Result of a check of all states.
#[derive(Debug)]
pub struct Outcome {
    /// States, without those that differ only in the clients' numbers.
    pub states: usize,
    /// Longest path, in steps.
    pub depth: usize,
    /// Time of the check.
    pub time: Duration,
    /// Properties that hold in every state.
    pub held: Vec<&'static str>,
    /// Properties that do not, or situations that no state shows.
    pub failed: Vec<&'static str>,
    /// A violation, on the path by which the check came to it.
    pub violation: Option<Violation>,
}

/// A property that does not hold, and how it comes to that.
#[derive(Debug)]
pub struct Violation {
    /// Name of the property.
    pub property: &'static str,
    /// One line for each step.
    pub story: Vec<String>,
}

/// Checks all states, depth first, with this number of threads. Ends at the first violation.
pub fn check(config: Config, threads: usize) -> Outcome {
    let start = Instant::now();
    let checker = QueueModel(config)
        .checker()
        .threads(threads)
        .symmetry_fn(symmetry::representative)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_dfs()
        .join();
    let mut found = checker.discoveries();
    let properties = QueueModel(config).properties();
    let (failed, held) = properties.iter().partition::<Vec<_>, _>(|property| {
        property.expectation.discovery_is_failure() == found.contains_key(property.name)
    });
    let names =
        |of: Vec<&stateright::Property<QueueModel>>| of.iter().map(|one| one.name).collect();
    Outcome {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        time: start.elapsed(),
        held: names(held),
        failed: names(failed),
        violation: first_violation(&config, &mut found),
    }
}

/// Searches breadth first for a violation on a shortest path. `None` if every property holds, or none is violated within
/// some millions of steps.
pub fn shortest_violation(config: Config) -> Option<Violation> {
    // Of several violations stateright keeps the one that it has found last. So the depth grows by one until there is any:
    // then no other has a shorter path.
    for depth in 1.. {
        let checker = QueueModel(config)
            .checker()
            .target_max_depth(depth)
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        let violation = first_violation(&config, &mut checker.discoveries());
        if violation.is_some() {
            return violation;
        }
        if checker.max_depth() < depth || checker.state_count() > MAX_STATES {
            return None;
        }
    }
    unreachable!("the number of states is finite")
}

/// Returns the violation of the property that stands first among the properties.
fn first_violation(config: &Config, found: &mut Discoveries) -> Option<Violation> {
    let properties = QueueModel(*config).properties().into_iter();
    let mut failures = properties.filter(|property| property.expectation.discovery_is_failure());
    let (property, path) =
        failures.find_map(|property| Some((property.name, found.remove(property.name)?)))?;
    let story = story::tell(config, path);
    Some(Violation { property, story })
}
