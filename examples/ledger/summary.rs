//! Summary: the results of the run, and their checks.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::book::Book;
use crate::input::{Balances, Transfer};
use crate::worker::Tally;

/// Result of a run. With `--json` it is the last line of the output.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) url: String,
    pub(crate) with_lock: bool,
    pub(crate) workers: usize,
    /// Number of workers that should be cut off. `crashed` is the number of workers that were cut off.
    pub(crate) crash: usize,
    pub(crate) transfers: usize,
    /// Transfers of the input that are in the ledger, each counted once.
    pub(crate) applied: usize,
    /// Transfers that were in the ledger when this run started.
    pub(crate) posted_before: usize,
    /// Transfers in the ledger that are duplicates or not in the input.
    pub(crate) surplus: usize,
    /// True if every balance is equal to the balance that we compute from the input without locks.
    pub(crate) balances_correct: bool,
    #[serde(flatten)]
    pub(crate) tally: Tally,
    pub(crate) grants: usize,
    /// Number of grants whose token was not greater than the token of the previous grant.
    pub(crate) token_regressions: usize,
    pub(crate) wait_p50_us: u64,
    pub(crate) wait_p99_us: u64,
    pub(crate) elapsed_ms: u64,
    /// Path of the ledger. It is `None` unless the ledger is kept because it is wrong.
    #[serde(skip)]
    pub(crate) kept: Option<PathBuf>,
}

impl Summary {
    /// Compares the ledger with the balances that we compute from the input without locks.
    pub(crate) fn check_book(&mut self, book: &Book, opening: Balances, transfers: &[Transfer]) {
        let mut balances = opening;
        for transfer in transfers {
            transfer.apply(&mut balances);
        }
        let wanted: HashSet<i64> = transfers.iter().map(|transfer| transfer.id).collect();
        let posted: HashSet<i64> = book.posted.iter().copied().collect();
        self.transfers = transfers.len();
        self.applied = posted.intersection(&wanted).count();
        self.surplus = book.posted.len() - self.applied;
        self.balances_correct = book.balances == balances;
    }

    pub(crate) fn check_grants(&mut self) {
        let grants = &mut self.tally.grants;
        grants.sort_unstable_by_key(|grant| grant.number);
        self.grants = grants.len();
        let regressions = grants.windows(2).filter(|two| two[1].token <= two[0].token);
        self.token_regressions = regressions.count();
        let mut waits: Vec<_> = grants.iter().map(|grant| grant.waited).collect();
        waits.sort_unstable();
        self.wait_p50_us = percentile_us(&waits, 50);
        self.wait_p99_us = percentile_us(&waits, 99);
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        let tally = &self.tally;
        let missing = self.transfers - self.applied;
        let wrong_balances = usize::from(!self.balances_correct);
        let alive = self.crash.abs_diff(tally.crashed);
        let not_refused = tally.crashed.abs_diff(tally.late_writes_refused);
        let faults = [
            (missing, "transfers are missing"),
            (self.surplus, "transfers are posted too often"),
            (wrong_balances, "ledger has wrong balances"),
            (tally.overlaps, "overlaps"),
            (self.token_regressions, "tokens went back"),
            (alive, "workers did not die as they should"),
            (not_refused, "late writes were not refused"),
        ];
        let faults = faults.into_iter().filter(|(count, _)| *count > 0);
        faults
            .map(|(count, fault)| format!("{count} {fault}"))
            .collect()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (applied, transfers, tally) = (self.applied, self.transfers, &self.tally);
        write!(f, "transfers applied         {applied} of {transfers}")?;
        if self.posted_before > 0 {
            write!(f, ", {} of them before this run", self.posted_before)?;
        }
        let not = if self.balances_correct { "" } else { "NOT " };
        write!(
            f,
            "\nfinal balances            {not}as computed without locks"
        )?;
        writeln!(f, "\noverlaps seen             {}", tally.overlaps)?;
        if self.with_lock {
            let (regressions, grants) = (self.token_regressions, self.grants);
            writeln!(f, "tokens out of order       {regressions} of {grants}")?;
            let (p50, p99) = (self.wait_p50_us, self.wait_p99_us);
            writeln!(f, "wait for the lock         p50 {p50} µs, p99 {p99} µs")?;
        }
        if self.crash > 0 {
            let (crashed, refused) = (tally.crashed, tally.late_writes_refused);
            write!(f, "workers that died         {crashed}; ")?;
            writeln!(f, "late writes of theirs refused: {refused}")?;
        }
        let seconds = Duration::from_millis(self.elapsed_ms).as_secs_f64();
        let rate = tally.posted as f64 / seconds.max(0.001);
        write!(
            f,
            "{} workers on {} in {seconds:.2} s: ",
            self.workers, self.url
        )?;
        write!(f, "{rate:.0} transfers/s")
    }
}

/// Returns the smallest wait that this percentage of waits does not exceed.
fn percentile_us(sorted: &[Duration], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    let wait = sorted.get(rank - 1).copied().unwrap_or_default();
    u64::try_from(wait.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Grant;

    // We can only test this fault with made-up numbers, because the lock is fair. A run with `--without-lock` shows the
    // other faults.
    #[test]
    fn a_token_that_goes_back_is_a_fault() {
        let mut summary = Summary {
            balances_correct: true,
            ..Summary::default()
        };
        let grants = [(1, "5"), (3, "7"), (2, "8")].map(|(number, token)| Grant {
            number,
            token: token.parse().unwrap(),
            waited: Duration::ZERO,
        });
        summary.tally.grants = grants.into();
        summary.check_grants();
        assert_eq!(summary.faults(), ["1 tokens went back"]);
    }
}
