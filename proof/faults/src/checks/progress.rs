//! Times without progress. Does no I/O.

#[derive(Default)]
pub(crate) struct Progress {
    grants: Vec<u64>,
    answers: Vec<u64>,
}

impl Progress {
    pub(super) fn granted(&mut self, at: u64) {
        self.grants.push(at);
    }

    pub(super) fn answered(&mut self, at: u64) {
        self.answers.push(at);
    }

    /// Returns the longest time without a grant in this period.
    pub(crate) fn longest_without_grant(&self, from: u64, to: u64) -> u64 {
        longest_gap(&self.grants, from, to)
    }

    /// Returns the longest time without an answer to a call on a register in this period.
    pub(crate) fn longest_without_answer(&self, from: u64, to: u64) -> u64 {
        longest_gap(&self.answers, from, to)
    }
}

fn longest_gap(moments: &[u64], from: u64, to: u64) -> u64 {
    let within = moments.iter().copied().filter(|at| (from..to).contains(at));
    let mut all: Vec<_> = within.chain([from, to]).collect();
    all.sort_unstable();
    let gaps = all.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or(0)
}
