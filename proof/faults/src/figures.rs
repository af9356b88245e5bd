//! Figures of a run as Markdown tables. Does no I/O.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::checks::{Checker, Fault};
use crate::time::seconds;

#[derive(Default)]
struct OfKind {
    count: u64,
    longest: u64,
    without_grant: u64,
    without_answer: u64,
    lost: u64,
}

pub(crate) fn tables(checker: &Checker, faults: &[Fault], (from, to): (u64, u64)) -> String {
    let mut text = String::from(
        "\n| fault | times | longest until well again, s | longest without a grant, s \
         | longest without an answer, s | leases lost |\n|---|---|---|---|---|---|\n",
    );
    for (kind, figures) in of_kinds(checker, faults, to) {
        let _ = writeln!(
            text,
            "| {kind} | {} | {:.1} | {:.1} | {:.1} | {} |",
            figures.count,
            seconds(figures.longest),
            seconds(figures.without_grant),
            seconds(figures.without_answer),
            figures.lost
        );
    }
    let _ = writeln!(text, "\n| | |\n|---|---|");
    let _ = writeln!(text, "| seconds | {:.0} |", seconds(to - from));
    let _ = writeln!(text, "| faults | {} |", faults.len());
    for (what, count) in checker.counts() {
        let _ = writeln!(text, "| {what} | {count} |");
    }
    let lost = checker.lost_without_cause();
    let _ = writeln!(text, "| leases lost without cause | {lost} |");
    let _ = writeln!(text, "| violations | {} |", checker.violations());
    text
}

fn of_kinds(checker: &Checker, faults: &[Fault], end: u64) -> BTreeMap<&'static str, OfKind> {
    let mut kinds = BTreeMap::<_, OfKind>::new();
    for (place, fault) in faults.iter().enumerate() {
        let next = faults.get(place + 1).map_or(end, |next| next.from);
        let figures = kinds.entry(fault.kind).or_default();
        let (without_grant, without_answer) = (
            checker.progress.longest_without_grant(fault.from, next),
            checker.progress.longest_without_answer(fault.from, next),
        );
        figures.count += 1;
        figures.longest = figures.longest.max(fault.to - fault.from);
        figures.without_grant = figures.without_grant.max(without_grant);
        figures.without_answer = figures.without_answer.max(without_answer);
        figures.lost += checker.lost_by(fault);
    }
    kinds
}
