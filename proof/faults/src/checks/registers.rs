//! Histories of registers, which must be linearizable. Does no I/O.

use std::collections::{BTreeMap, HashMap};

use testkit::linearizable::{Answer, Call, Operation, is_linearizable};

use super::locks::WorkerId;

#[derive(Default)]
pub(super) struct Registers {
    histories: BTreeMap<String, Vec<Operation>>,
    /// The position of each unanswered call.
    open: HashMap<(WorkerId, u64), (String, usize)>,
}

pub(super) struct Checked {
    pub(super) checked: u64,
    pub(super) unchecked: u64,
    pub(super) violations: Vec<String>,
}

impl Registers {
    pub(super) fn called(&mut self, caller: (WorkerId, u64), key: String, call: Call, at: u64) {
        let history = self.histories.entry(key.clone()).or_default();
        self.open.insert(caller, (key, history.len()));
        history.push(Operation {
            call,
            called: at,
            answered: None,
        });
    }

    pub(super) fn answered(&mut self, caller: (WorkerId, u64), at: u64, answer: Answer) {
        if let Some((key, place)) = self.open.remove(&caller) {
            let history = self.histories.get_mut(&key).expect("calls are in it");
            history[place].answered = Some((at, answer));
        }
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.histories.keys().cloned().collect()
    }

    /// Checks all histories. Each should end with a read of its register, which detects an acknowledged write that was
    /// lost later.
    pub(super) fn check(&self) -> Checked {
        let mut result = Checked {
            checked: 0,
            unchecked: 0,
            violations: Vec::new(),
        };
        for (key, history) in &self.histories {
            match is_linearizable(history) {
                Some(true) => result.checked += 1,
                None => result.unchecked += 1,
                Some(false) => result.violations.push(story(key, history)),
            }
        }
        result
    }
}

fn story(key: &str, history: &[Operation]) -> String {
    let mut history: Vec<_> = history.iter().collect();
    history.sort_by_key(|operation| operation.called);
    let lines = history.iter().map(|operation| format!("\n  {operation:?}"));
    let lines: String = lines.collect();
    format!("linearizability: no order explains the history of {key}:{lines}")
}
