//! Checks that a znode's history is linearizable: some order of all calls, each between its start and its answer,
//! explains the answers. Uses the algorithm of Wing and Gong with Lowe's memoization, as porcupine does. Does no I/O.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

/// A call on one znode. Values are unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Call {
    Create { value: u64 },
    Set { value: u64, version: Option<i32> },
    Delete { version: Option<i32> },
    Get,
}

impl Call {
    fn without_value(self) -> Self {
        match self {
            Self::Create { .. } => Self::Create { value: 0 },
            Self::Set { version, .. } => Self::Set { value: 0, version },
            other => other,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Version(i32),
    Found(i32, u64),
    Exists,
    Missing,
    OtherVersion,
}

/// A call and its answer, with their times.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub call: Call,
    pub called: u64,
    /// `None` if the outcome is unknown. The call may take effect at any time, or never.
    pub answered: Option<(u64, Answer)>,
}

type State = Option<(i32, u64)>;

/// Number of different states after which the search gives up.
const MOST: usize = 2_000_000;

/// Returns `true` if an order explains all answers, or `None` if the search has given up.
pub fn is_linearizable(operations: &[Operation]) -> Option<bool> {
    let mut search = Search {
        operations,
        found: found(operations),
        done: vec![0; operations.len().div_ceil(64)],
        seen: HashSet::new(),
    };
    let found = search.explore();
    (found || search.seen.len() < MOST).then_some(found)
}

fn found(operations: &[Operation]) -> HashMap<u64, i32> {
    let answers = operations.iter().filter_map(|operation| operation.answered);
    let found = answers.filter_map(|(_, answer)| match answer {
        Answer::Found(version, value) => Some((value, version)),
        _ => None,
    });
    found.collect()
}

struct Search<'a> {
    operations: &'a [Operation],
    /// The versions at which values were read.
    found: HashMap<u64, i32>,
    /// The calls in the order so far, one bit for each.
    done: Vec<u64>,
    /// States that are dead ends or are being explored.
    seen: HashSet<(Vec<u64>, State)>,
}

/// A position in the search: the calls that may be next, and the one tried last.
struct Step {
    state: State,
    next: std::vec::IntoIter<usize>,
    tried: Option<usize>,
}

impl Search<'_> {
    /// Depth-first search without recursion, because histories are longer than stacks are deep.
    fn explore(&mut self) -> bool {
        let mut steps = vec![self.step(None)];
        while let Some(step) = steps.last_mut() {
            if let Some(tried) = step.tried.take() {
                self.flip(tried);
            }
            let Some(next) = step.next.next() else {
                steps.pop();
                continue;
            };
            let operation = self.operations[next];
            let Some(state) = after(step.state, operation) else {
                continue;
            };
            if operation.answered.is_none() && !self.is_as_found(state) {
                continue;
            }
            self.flip(next);
            if self.is_explained() {
                return true;
            }
            step.tried = Some(next);
            if self.seen.len() < MOST && self.seen.insert((self.done.clone(), state)) {
                let step = self.step(state);
                steps.push(step);
            }
        }
        self.is_explained()
    }

    /// Returns `false` if the current value was read at a different version. A value is written only once, so that
    /// read could no longer be explained.
    fn is_as_found(&self, state: State) -> bool {
        state.is_none_or(|(version, value)| {
            self.found.get(&value).is_none_or(|found| *found == version)
        })
    }

    /// Returns the calls that may be next, all of which started before the first unexplained answer. Calls
    /// with unknown outcome are last, because most of them explain nothing. Among calls that differ only in a value
    /// that was never read, the earliest suffices.
    fn step(&self, state: State) -> Step {
        let open = || (0..self.operations.len()).filter(|at| !self.is_done(*at));
        let answered = open().filter_map(|at| Some(self.operations[at].answered?.0));
        let first = answered.min().unwrap_or(0);
        let mut next: Vec<_> = open()
            .filter(|at| self.operations[*at].called < first)
            .collect();
        let mut unread = HashSet::new();
        next.retain(|at| {
            let operation = self.operations[*at];
            let is_unread = operation.answered.is_none() && !self.is_read(operation.call);
            !is_unread || unread.insert(operation.call.without_value())
        });
        next.sort_by_key(|at| self.operations[*at].answered.is_none());
        Step {
            state,
            next: next.into_iter(),
            tried: None,
        }
    }

    fn is_read(&self, call: Call) -> bool {
        match call {
            Call::Create { value } | Call::Set { value, .. } => self.found.contains_key(&value),
            Call::Delete { .. } | Call::Get => false,
        }
    }

    fn is_explained(&self) -> bool {
        (0..self.operations.len())
            .all(|at| self.is_done(at) || self.operations[at].answered.is_none())
    }

    fn is_done(&self, at: usize) -> bool {
        self.done[at / 64] & (1 << (at % 64)) != 0
    }

    fn flip(&mut self, at: usize) {
        self.done[at / 64] ^= 1 << (at % 64);
    }
}

/// Returns the state after a call. Returns `None` if the answer does not fit, or if the outcome is unknown and the
/// state would not change.
fn after(state: State, operation: Operation) -> Option<State> {
    let (answer, next) = carried_out(state, operation.call);
    match operation.answered {
        Some((_, known)) => (known == answer).then_some(next),
        None => (next != state).then_some(next),
    }
}

/// Executes a call as ZooKeeper does.
fn carried_out(state: State, call: Call) -> (Answer, State) {
    let differs = |asked: Option<i32>, version| asked.is_some_and(|asked| asked != version);
    match (call, state) {
        (Call::Create { value }, None) => (Answer::Done, Some((0, value))),
        (Call::Create { .. }, Some(_)) => (Answer::Exists, state),
        (_, None) => (Answer::Missing, state),
        (
            Call::Set { version: asked, .. } | Call::Delete { version: asked },
            Some((version, _)),
        ) if differs(asked, version) => (Answer::OtherVersion, state),
        (Call::Set { value, .. }, Some((version, _))) => {
            (Answer::Version(version + 1), Some((version + 1, value)))
        }
        (Call::Delete { .. }, Some(_)) => (Answer::Done, None),
        (Call::Get, Some((version, value))) => (Answer::Found(version, value), state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATE: Call = Call::Create { value: 1 };

    fn set(value: u64) -> Call {
        Call::Set {
            value,
            version: None,
        }
    }

    fn answered(call: Call, called: u64, answered: u64, answer: Answer) -> Operation {
        Operation {
            call,
            called,
            answered: Some((answered, answer)),
        }
    }

    fn lost(call: Call, called: u64) -> Operation {
        Operation {
            call,
            called,
            answered: None,
        }
    }

    #[test]
    fn one_after_the_other() {
        let created = answered(CREATE, 1, 2, Answer::Done);
        let read = |answer| answered(Call::Get, 3, 4, answer);
        assert_eq!(is_linearizable(&[]), Some(true));
        assert_eq!(
            is_linearizable(&[created, read(Answer::Found(0, 1))]),
            Some(true)
        );
        assert_eq!(
            is_linearizable(&[created, read(Answer::Missing)]),
            Some(false)
        );
        assert_eq!(
            is_linearizable(&[created, read(Answer::Found(0, 2))]),
            Some(false)
        );
    }

    #[test]
    fn what_overlaps_comes_in_any_order() {
        let created = answered(CREATE, 1, 4, Answer::Done);
        for answer in [Answer::Missing, Answer::Found(0, 1)] {
            let read = answered(Call::Get, 2, 3, answer);
            assert_eq!(is_linearizable(&[created, read]), Some(true));
        }
    }

    #[test]
    fn two_reads_do_not_see_a_write_come_and_go() {
        let created = answered(CREATE, 1, 2, Answer::Done);
        let written = answered(set(2), 3, 20, Answer::Version(1));
        let new = answered(Call::Get, 4, 5, Answer::Found(1, 2));
        let old = answered(Call::Get, 6, 7, Answer::Found(0, 1));
        assert_eq!(is_linearizable(&[created, written, new]), Some(true));
        assert_eq!(is_linearizable(&[created, written, new, old]), Some(false));
    }

    #[test]
    fn a_write_without_an_answer_may_have_happened_at_any_time_and_once() {
        let created = answered(CREATE, 1, 2, Answer::Done);
        let read = |at, answer| answered(Call::Get, at, at + 1, answer);
        let unknown = lost(set(2), 3);
        for answer in [Answer::Found(0, 1), Answer::Found(1, 2)] {
            assert_eq!(
                is_linearizable(&[created, unknown, read(9, answer)]),
                Some(true)
            );
        }
        let back = [
            created,
            unknown,
            read(9, Answer::Found(1, 2)),
            answered(set(3), 11, 12, Answer::Version(2)),
            read(13, Answer::Found(3, 2)),
        ];
        assert_eq!(is_linearizable(&back), Some(false));
    }

    #[test]
    fn versions_are_compared() {
        let created = answered(CREATE, 1, 2, Answer::Done);
        let conditional = |version, answer| {
            let call = Call::Set {
                value: 2,
                version: Some(version),
            };
            answered(call, 3, 4, answer)
        };
        let is_so = |operation| is_linearizable(&[created, operation]);
        assert_eq!(is_so(conditional(0, Answer::Version(1))), Some(true));
        assert_eq!(is_so(conditional(1, Answer::OtherVersion)), Some(true));
        assert_eq!(is_so(conditional(1, Answer::Version(1))), Some(false));
        let deleted = answered(Call::Delete { version: Some(0) }, 3, 4, Answer::Done);
        assert_eq!(is_so(deleted), Some(true));
    }

    #[test]
    fn many_calls_without_an_answer_do_not_take_for_ever() {
        let mut operations = vec![answered(CREATE, 1, 2, Answer::Done)];
        operations.extend((0..40).map(|number| lost(set(100 + number), 3 + number)));
        operations.extend((0..200).map(|number| {
            let at = 100 + 2 * number;
            answered(Call::Get, at, at + 1, Answer::Found(0, 1))
        }));
        assert_eq!(is_linearizable(&operations), Some(true));
        let last = answered(Call::Get, 900, 901, Answer::Found(1, 120));
        operations.push(last);
        assert_eq!(is_linearizable(&operations), Some(true));
    }
}
