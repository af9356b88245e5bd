//! [`Checker`]: checks the reports of all workers. Uses no clock and no I/O.

mod leases;
mod locks;
mod progress;
mod registers;

use std::collections::BTreeMap;

use crate::report::Report;

pub(crate) use self::leases::Fault;
use self::leases::{Leases, Loss};
use self::locks::Locks;
pub(crate) use self::locks::{Belief, WorkerId};
pub(crate) use self::progress::Progress;
use self::registers::Registers;

pub(crate) struct Checker {
    locks: Locks,
    registers: Registers,
    leases: Leases,
    pub(crate) progress: Progress,
    counts: BTreeMap<String, u64>,
    violations: Vec<String>,
}

impl Checker {
    /// `allowance` is the time in nanoseconds after a fault within which it still explains a lost lease.
    pub(crate) fn new(allowance: u64) -> Self {
        Self {
            locks: Locks::default(),
            registers: Registers::default(),
            leases: Leases::new(allowance),
            progress: Progress::default(),
            counts: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    /// Processes a report. Returns the resource's answer to a [`Report::Use`].
    pub(crate) fn hear(&mut self, worker: WorkerId, report: Report) -> Option<bool> {
        match report {
            Report::Granted {
                grant,
                key,
                share,
                token,
                at,
            } => {
                self.count("grants");
                self.count(&format!("grants of {key}"));
                self.progress.granted(at);
                self.locks.granted((worker, grant), &key, share, token, at);
            }
            Report::Held { grant, at } => self.locks.held((worker, grant), at),
            Report::Use { grant } => return Some(self.write(worker, grant)),
            Report::Refused { grant, is_held } => self.refused(worker, grant, is_held),
            Report::Released { .. } => self.count("releases"),
            Report::Lost { grant, at, reason } => {
                self.count("grants that were lost");
                if let Some(key) = self.locks.key((worker, grant)) {
                    let key = key.to_owned();
                    self.leases.lost(Loss {
                        worker,
                        at,
                        story: format!("{worker} has lost {key} without a fault: {reason}"),
                    });
                }
            }
            Report::NoGrant { reason } => self.count(&format!("waits without a grant: {reason}")),
            Report::Called {
                call,
                key,
                at,
                what,
            } => self.registers.called((worker, call), key, what, at),
            Report::Answered { call, at, answer } => {
                self.count("calls on registers that were answered");
                self.progress.answered(at);
                self.registers.answered((worker, call), at, answer);
            }
            Report::Failed { text } => self.violate(format!("error: {worker} got {text}")),
            Report::Ready | Report::Done => {}
        }
        None
    }

    /// Writes to the resource, which checks the token.
    fn write(&mut self, worker: WorkerId, grant: u64) -> bool {
        let is_admitted = self.locks.write((worker, grant));
        self.count(match is_admitted {
            true => "writes to resources",
            false => "writes refused by their tokens",
        });
        is_admitted
    }

    fn refused(&mut self, worker: WorkerId, grant: u64, is_held: bool) {
        let key = self.locks.key((worker, grant)).unwrap_or("a lock");
        // Other clients promise less, so only the resource can judge their holders.
        if is_held && worker.belief == Belief::Promised {
            let story = format!("exclusion: {worker} holds {key}, and its token is refused");
            self.violate(story);
        } else if is_held {
            self.count("writes refused while another client believed to hold");
        }
    }

    pub(crate) fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    pub(crate) fn violate(&mut self, story: String) {
        if !self.violations.contains(&story) {
            self.violations.push(story);
        }
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        self.leases.fault(fault);
    }

    /// Runs the checks that are possible while workers are active. Returns the first violation.
    pub(crate) fn check(&mut self) -> Option<&str> {
        let wrong = self.locks.check();
        wrong.into_iter().for_each(|wrong| self.violate(wrong));
        self.violations.first().map(String::as_str)
    }

    /// Runs all checks, once all workers have finished.
    pub(crate) fn check_all(&mut self) -> &[String] {
        self.check();
        let registers = self.registers.check();
        let lost = self.leases.without_cause();
        let wrong = lost.into_iter().chain(registers.violations);
        wrong.for_each(|wrong| self.violate(wrong));
        self.counts
            .insert("registers checked".to_owned(), registers.checked);
        self.counts.insert(
            "registers too long to check".to_owned(),
            registers.unchecked,
        );
        &self.violations
    }

    pub(crate) fn lost_without_cause(&self) -> u64 {
        self.leases.without_cause().len() as u64
    }

    pub(crate) fn lost_by(&self, fault: &Fault) -> u64 {
        self.leases.lost_by(fault)
    }

    pub(crate) fn violations(&self) -> usize {
        self.violations.len()
    }

    pub(crate) fn registers(&self) -> Vec<String> {
        self.registers.keys()
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = self.counts.clone();
        counts.insert(
            "times when another client believed and was not the only one".to_owned(),
            self.locks.unpromised_overlaps(),
        );
        counts
    }
}

#[cfg(test)]
mod tests;
