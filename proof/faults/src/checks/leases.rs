//! Lost leases, and the faults that explain them. Does no I/O.

use super::locks::WorkerId;

/// A fault and its time, from its start until the system was healthy again.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: &'static str,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The worker that it hits, or `None` if it may hit all.
    pub(crate) victim: Option<usize>,
}

/// A lease that its holder did not end itself.
pub(super) struct Loss {
    pub(super) worker: WorkerId,
    pub(super) at: u64,
    pub(super) story: String,
}

pub(super) struct Leases {
    /// Time after a fault for which the fault explains a lost lease. This is the session timeout, because proofs from
    /// before the fault hold that long, and the time of a reconnection.
    allowance: u64,
    faults: Vec<Fault>,
    losses: Vec<Loss>,
}

impl Leases {
    pub(super) fn new(allowance: u64) -> Self {
        Self {
            allowance,
            faults: Vec::new(),
            losses: Vec::new(),
        }
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub(super) fn lost(&mut self, loss: Loss) {
        self.losses.push(loss);
    }

    pub(super) fn without_cause(&self) -> Vec<String> {
        let explained = |loss: &&Loss| self.faults.iter().any(|fault| self.explains(fault, loss));
        let losses = self.losses.iter().filter(|loss| !explained(loss));
        losses
            .map(|loss| format!("leases: {}", loss.story))
            .collect()
    }

    pub(super) fn lost_by(&self, fault: &Fault) -> u64 {
        let losses = self.losses.iter();
        losses.filter(|loss| self.explains(fault, loss)).count() as u64
    }

    fn explains(&self, fault: &Fault, loss: &Loss) -> bool {
        let hits = fault
            .victim
            .is_none_or(|victim| victim == loss.worker.number);
        hits && (fault.from..=fault.to + self.allowance).contains(&loss.at)
    }
}
