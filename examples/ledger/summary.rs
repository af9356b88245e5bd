//! The summary: what the run came to, and whether that is right.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::book::Book;
use crate::input::{Balances, Transfer};
use crate::observer::Arrivals;
use crate::worker::Grant;

/// Outcome of a run. Its JSON is the last line of the output under `--json`.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Summary {
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
    /// Workers that met another one at the ledger, or overwrote another's write.
    pub(crate) overlaps: usize,
    pub(crate) grants: usize,
    /// Grants whose token was not above that of the grant before.
    pub(crate) token_regressions: usize,
    /// Grants to a contender that had arrived before the previous holder.
    pub(crate) order_violations: usize,
    /// Grants to a contender whose arrival the observer had not seen.
    pub(crate) arrivals_unseen: usize,
    /// Interruptions of the observer's connection, in which arrivals may have gone unseen.
    pub(crate) observer_gaps: usize,
    pub(crate) wait_p50_us: u64,
    pub(crate) wait_p99_us: u64,
    pub(crate) workers: usize,
    /// Workers that were to be cut off; `crashed` are those that were.
    pub(crate) crash: usize,
    pub(crate) crashed: usize,
    pub(crate) late_writes_refused: usize,
    pub(crate) with_lock: bool,
    pub(crate) url: String,
    pub(crate) elapsed_ms: u64,
    /// Path of the ledger that is kept, if anything is wrong with it.
    #[serde(skip)]
    pub(crate) kept: Option<PathBuf>,
}

impl Summary {
    /// Compares the ledger with the sum computed without locks.
    pub(crate) fn check_book(&mut self, book: &Book, opening: &Balances, transfers: &[Transfer]) {
        let mut right = opening.clone();
        for transfer in transfers {
            transfer.apply(&mut right);
        }
        let wanted: HashSet<u64> = transfers.iter().map(|transfer| transfer.id).collect();
        let posted: HashSet<u64> = book.posted.iter().copied().collect();
        self.transfers = transfers.len();
        self.applied = posted.intersection(&wanted).count();
        self.surplus = book.posted.len() - self.applied;
        self.balances_correct = book.balances == right;
    }

    /// Compares the grants, in the ledger's order, with each other and with the arrivals.
    pub(crate) fn check_order(&mut self, mut grants: Vec<Grant>, arrivals: &Arrivals) {
        grants.sort_unstable_by_key(|grant| grant.place);
        self.grants = grants.len();
        self.observer_gaps = arrivals.gaps;
        self.token_regressions = count_pairs(&grants, |a, b| b.token <= a.token);
        let mut waits: Vec<_> = grants.iter().map(|grant| grant.waited).collect();
        waits.sort_unstable();
        self.wait_p50_us = percentile_us(&waits, 50);
        self.wait_p99_us = percentile_us(&waits, 99);

        let places: HashMap<&str, usize> = arrivals
            .seen
            .iter()
            .enumerate()
            .map(|(place, arrival)| (arrival.entry.as_str(), place))
            .collect();
        let arrived: Vec<usize> = grants
            .iter()
            .filter_map(|grant| places.get(grant.entry.as_str()).copied())
            .collect();
        self.arrivals_unseen = grants.len() - arrived.len();
        // The order in which the store told of the creates must be that of their zxids.
        let czxids: Vec<_> = arrivals.seen.iter().filter_map(|seen| seen.czxid).collect();
        self.order_violations =
            count_pairs(&arrived, |a, b| b <= a) + count_pairs(&czxids, |a, b| b <= a);
    }

    /// Returns a description of each fault.
    pub(crate) fn wrongs(&self) -> Vec<String> {
        let mut wrongs = Vec::new();
        let mut check = |count: usize, fault: &str| {
            if count > 0 {
                wrongs.push(format!("{count} {fault}"));
            }
        };
        let unseen = if self.observer_gaps == 0 {
            self.arrivals_unseen
        } else {
            0
        };
        check(self.transfers - self.applied, "transfers are missing");
        check(self.surplus, "transfers are posted too often");
        check(self.overlaps, "overlaps");
        check(self.token_regressions, "tokens went back");
        check(self.order_violations, "grants were out of order");
        check(unseen, "holders never arrived");
        check(
            self.crash.abs_diff(self.crashed),
            "workers did not die as they should",
        );
        check(
            self.crashed.abs_diff(self.late_writes_refused),
            "late writes were not refused",
        );
        if !self.balances_correct {
            wrongs.push("the balances are wrong".to_owned());
        }
        wrongs
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String| writeln!(f, "{name:<26}{value}");
        let (applied, transfers, grants) = (self.applied, self.transfers, self.grants);
        let before = match self.posted_before {
            0 => String::new(),
            before => format!(", {before} of them before this run"),
        };
        line(
            "transfers applied",
            format!("{applied} of {transfers}{before}"),
        )?;
        let not = if self.balances_correct { "" } else { "NOT " };
        line("final balances", format!("{not}as computed without locks"))?;
        line("overlaps seen", self.overlaps.to_string())?;
        if self.with_lock {
            let (regressions, violations) = (self.token_regressions, self.order_violations);
            line("tokens out of order", format!("{regressions} of {grants}"))?;
            let against = "against the arrivals that another session saw";
            line(
                "grants out of order",
                format!("{violations} of {grants}, {against}"),
            )?;
            let (unseen, gaps) = (self.arrivals_unseen, self.observer_gaps);
            if unseen > 0 || gaps > 0 {
                line(
                    "arrivals not seen",
                    format!("{unseen} ({gaps} interruptions)"),
                )?;
            }
            let (p50, p99) = (self.wait_p50_us, self.wait_p99_us);
            line("wait for the lock", format!("p50 {p50} µs, p99 {p99} µs"))?;
        }
        if self.crash > 0 {
            let (crashed, refused) = (self.crashed, self.late_writes_refused);
            line(
                "workers that died",
                format!("{crashed}; late writes of theirs refused: {refused}"),
            )?;
        }
        let seconds = Duration::from_millis(self.elapsed_ms).as_secs_f64();
        let rate = self.applied.saturating_sub(self.posted_before) as f64 / seconds.max(0.001);
        let (workers, url) = (self.workers, &self.url);
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

/// The smallest wait that this percentage of all waits does not exceed.
fn percentile_us(sorted: &[Duration], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    let wait = sorted.get(rank - 1).copied().unwrap_or_default();
    u64::try_from(wait.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Arrival;

    fn grants(entries: &[(&str, u64)]) -> Vec<Grant> {
        let grant = |(place, (entry, token)): (usize, &(&str, u64))| Grant {
            place: place as u64,
            entry: (*entry).to_owned(),
            token: token.to_string().parse().unwrap(),
            waited: Duration::ZERO,
        };
        entries.iter().enumerate().map(grant).collect()
    }

    fn arrivals(entries: &[&str]) -> Arrivals {
        let arrival = |entry: &&str| Arrival {
            entry: (*entry).to_owned(),
            czxid: None,
        };
        Arrivals {
            seen: entries.iter().map(arrival).collect(),
            gaps: 0,
        }
    }

    fn checked(granted: &[(&str, u64)], arrived: &[&str]) -> Summary {
        let mut summary = Summary {
            balances_correct: true,
            ..Summary::default()
        };
        summary.check_order(grants(granted), &arrivals(arrived));
        summary
    }

    #[test]
    fn grants_in_order_of_arrival_are_right() {
        // One that gave up, "b", is no violation.
        let summary = checked(&[("a", 1), ("c", 3), ("d", 4)], &["a", "b", "c", "d"]);
        assert_eq!(summary.wrongs(), Vec::<String>::new());
    }

    #[test]
    fn a_grant_out_of_turn_is_seen() {
        let summary = checked(&[("a", 1), ("c", 3), ("b", 2)], &["a", "b", "c"]);
        assert_eq!(summary.order_violations, 1);
        assert_eq!(summary.token_regressions, 1);
        assert_eq!(summary.wrongs().len(), 2);
    }

    #[test]
    fn a_holder_that_never_arrived_is_seen() {
        let summary = checked(&[("a", 1), ("ghost", 2)], &["a"]);
        assert_eq!(summary.arrivals_unseen, 1);
        assert_eq!(summary.wrongs(), ["1 holders never arrived"]);
    }

    #[test]
    fn what_is_missing_or_posted_twice_is_seen() {
        let transfer = |id| Transfer {
            id,
            from: "a".into(),
            to: "b".into(),
            cents: 5,
        };
        let opening = Balances::from([("a".into(), 10), ("b".into(), 0)]);
        let transfers = [transfer(1), transfer(2)];
        let mut book = Book {
            balances: opening.clone(),
            ..Book::default()
        };
        book.post(&transfers[0]).unwrap();
        assert!(book.post(&transfers[0]).is_err());

        let mut summary = Summary::default();
        summary.check_book(&book, &opening, &transfers);
        assert_eq!((summary.applied, summary.surplus), (1, 0));
        assert!(!summary.balances_correct);

        book.posted.push(1);
        summary.check_book(&book, &opening, &transfers[..1]);
        assert_eq!((summary.applied, summary.surplus), (1, 1));
        assert!(summary.balances_correct && !summary.wrongs().is_empty());
    }
}
