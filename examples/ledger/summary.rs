//! Summary: the results of the run, and the check of each.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::book::Book;
use crate::input::{Balances, Transfer};
use crate::observer::Arrivals;
use crate::worker::Tally;

/// Outcome of a run. Its JSON is the last line of the output under `--json`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) url: String,
    pub(crate) with_lock: bool,
    pub(crate) workers: usize,
    /// Workers that were to be cut off; `crashed` are those that were.
    pub(crate) crash: usize,
    /// Transfers of the input.
    pub(crate) transfers: usize,
    /// Transfers of the input that are in the ledger, each counted once.
    pub(crate) applied: usize,
    /// Transfers that were in the ledger when this run began.
    pub(crate) posted_before: usize,
    /// Transfers in the ledger that are duplicates, or not in the input.
    pub(crate) surplus: usize,
    /// True if every balance is the sum of the input, computed without locks.
    pub(crate) balances_correct: bool,
    #[serde(flatten)]
    pub(crate) tally: Tally,
    pub(crate) grants: usize,
    /// Grants with a token that was not above the previous grant's.
    pub(crate) token_regressions: usize,
    /// Grants to a contender that had arrived before the previous holder.
    pub(crate) order_violations: usize,
    /// Grants to a contender that the observer had not seen arrive.
    pub(crate) arrivals_unseen: usize,
    /// Interruptions of the observer's connection, in which arrivals may have gone unseen.
    pub(crate) observer_gaps: usize,
    pub(crate) wait_p50_us: u64,
    pub(crate) wait_p99_us: u64,
    pub(crate) elapsed_ms: u64,
    /// Path of the ledger that is kept, if anything is wrong with it.
    #[serde(skip)]
    pub(crate) kept: Option<PathBuf>,
}

impl Summary {
    /// Compares the ledger with the sum computed without locks.
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

    /// Compares the grants, in the ledger's order, with each other and with the arrivals.
    pub(crate) fn check_order(&mut self, arrivals: &Arrivals) {
        let grants = &mut self.tally.grants;
        grants.sort_unstable_by_key(|grant| grant.number);
        self.grants = grants.len();
        self.observer_gaps = arrivals.gaps;
        self.token_regressions = count_pairs(grants, |a, b| b.token <= a.token);

        let entries = arrivals.entries.iter().enumerate();
        let places: HashMap<&str, usize> = entries.map(|(at, entry)| (&**entry, at)).collect();
        let place = |entry: &str| places.get(entry).copied();
        let arrived: Vec<usize> = grants
            .iter()
            .filter_map(|grant| place(&grant.entry))
            .collect();
        self.arrivals_unseen = grants.len() - arrived.len();
        self.order_violations = count_pairs(&arrived, |a, b| b <= a);

        let mut waits: Vec<_> = grants.iter().map(|grant| grant.waited).collect();
        waits.sort_unstable();
        self.wait_p50_us = percentile_us(&waits, 50);
        self.wait_p99_us = percentile_us(&waits, 99);
    }

    /// Returns a description of each fault.
    pub(crate) fn faults(&self) -> Vec<String> {
        // The observer cannot vouch for the arrivals during an interruption.
        let unseen = if self.observer_gaps == 0 {
            self.arrivals_unseen
        } else {
            0
        };
        let not_refused = self.tally.crashed.abs_diff(self.tally.late_writes_refused);
        [
            (self.transfers - self.applied, "transfers are missing"),
            (self.surplus, "transfers are posted too often"),
            (
                usize::from(!self.balances_correct),
                "ledger has wrong balances",
            ),
            (self.tally.overlaps, "overlaps"),
            (self.token_regressions, "tokens went back"),
            (self.order_violations, "grants were out of order"),
            (unseen, "holders never arrived"),
            (
                self.crash.abs_diff(self.tally.crashed),
                "workers did not die as they should",
            ),
            (not_refused, "late writes were not refused"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, fault)| format!("{count} {fault}"))
        .collect()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            applied,
            transfers,
            grants,
            workers,
            url,
            ..
        } = self;
        write!(f, "transfers applied         {applied} of {transfers}")?;
        match self.posted_before {
            0 => writeln!(f)?,
            before => writeln!(f, ", {before} of them before this run")?,
        }
        let not = if self.balances_correct { "" } else { "NOT " };
        writeln!(
            f,
            "final balances            {not}as computed without locks"
        )?;
        writeln!(f, "overlaps seen             {}", self.tally.overlaps)?;
        if self.with_lock {
            let (regressions, violations) = (self.token_regressions, self.order_violations);
            writeln!(f, "tokens out of order       {regressions} of {grants}")?;
            write!(f, "grants out of order       {violations} of {grants}")?;
            writeln!(f, ", against the arrivals that another session saw")?;
            let (unseen, gaps) = (self.arrivals_unseen, self.observer_gaps);
            if unseen > 0 || gaps > 0 {
                writeln!(
                    f,
                    "arrivals not seen         {unseen} ({gaps} interruptions)"
                )?;
            }
            let (p50, p99) = (self.wait_p50_us, self.wait_p99_us);
            writeln!(f, "wait for the lock         p50 {p50} µs, p99 {p99} µs")?;
        }
        if self.crash > 0 {
            let (crashed, refused) = (self.tally.crashed, self.tally.late_writes_refused);
            writeln!(
                f,
                "workers that died         {crashed}; late writes refused: {refused}"
            )?;
        }
        let seconds = Duration::from_millis(self.elapsed_ms).as_secs_f64();
        let rate = self.tally.posted as f64 / seconds.max(0.001);
        write!(
            f,
            "{workers} workers on {url} in {seconds:.2} s: {rate:.0} transfers/s"
        )
    }
}

fn count_pairs<T>(items: &[T], wrong: impl Fn(&T, &T) -> bool) -> usize {
    items
        .windows(2)
        .filter(|pair| wrong(&pair[0], &pair[1]))
        .count()
}

/// Returns the smallest wait that this percentage of all waits does not exceed.
fn percentile_us(sorted: &[Duration], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    let wait = sorted.get(rank - 1).copied().unwrap_or_default();
    u64::try_from(wait.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Grant;

    /// Checks grants, as (entry, token), against arrivals; returns the faults.
    fn faults(granted: &[(&str, u64)], arrived: &[&str]) -> Vec<String> {
        let mut summary = Summary {
            balances_correct: true,
            ..Summary::default()
        };
        let grants = granted
            .iter()
            .enumerate()
            .map(|(number, (entry, token))| Grant {
                number: number as u64,
                entry: (*entry).to_owned(),
                token: token.to_string().parse().unwrap(),
                waited: Duration::ZERO,
            });
        summary.tally.grants = grants.collect();
        let entries = arrived.iter().map(|entry| (*entry).to_owned()).collect();
        summary.check_order(&Arrivals { entries, gaps: 0 });
        summary.faults()
    }

    // No run shows these faults while the lock is fair; `--without-lock` shows the others.
    #[test]
    fn grants_out_of_order_are_faults() {
        // "b" gave up before its turn.
        let right = faults(&[("a", 1), ("c", 3), ("d", 4)], &["a", "b", "c", "d"]);
        assert!(right.is_empty(), "{right:?}");
        let swapped = faults(&[("a", 1), ("c", 3), ("b", 2)], &["a", "b", "c"]);
        assert_eq!(
            swapped,
            ["1 tokens went back", "1 grants were out of order"]
        );
        let unseen = faults(&[("a", 1), ("ghost", 2)], &["a"]);
        assert_eq!(unseen, ["1 holders never arrived"]);
    }
}
