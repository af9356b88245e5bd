//! Rounds that alternate between the systems, and the report of their medians.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::args::Args;
use crate::figures::{self, Row};
use crate::options::name;
use crate::report::Line;
use crate::systems::Lock;
use crate::workloads::{self, Case, Workload};

type Round = Box<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = Row>>>>;

/// A system that takes part in a case.
pub(crate) struct Contender {
    system: String,
    url: String,
    round: Round,
}

impl Contender {
    /// A system that is measured by this program's own workloads.
    pub(crate) fn of<L: Lock>(system: &str, url: &str, case: Case, locks: Vec<L>) -> Self {
        let locks: Arc<[L]> = locks.into();
        Self::new(system, url, move |time| {
            workloads::run(case, locks.clone(), time)
        })
    }

    /// A system that measures itself.
    pub(crate) fn new<F>(system: &str, url: &str, round: impl Fn(Duration) -> F + 'static) -> Self
    where
        F: Future<Output = Row> + 'static,
    {
        Self {
            system: system.into(),
            url: url.into(),
            round: Box::new(move |time| Box::pin(round(time))),
        }
    }
}

/// Runs the rounds of all contenders in turns, prints each one's medians and the ratios of the
/// first to the others, and answers those of the first.
pub(crate) async fn measure(args: &Args, case: Case, contenders: Vec<Contender>) -> Row {
    let time = args.timing.round();
    let mut rounds: Vec<Vec<Row>> = contenders.iter().map(|_| Vec::new()).collect();
    // In turns, so that other load on the machine affects all of them alike.
    for _ in 0..args.timing.rounds {
        for (contender, rounds) in contenders.iter().zip(&mut rounds) {
            rounds.push((contender.round)(time).await);
        }
    }
    let medians: Vec<Row> = rounds
        .iter()
        .map(|rounds| figures::medians(rounds))
        .collect();
    for (contender, row) in contenders.iter().zip(&medians) {
        print_row(args, case, contender, row);
    }
    for (contender, row) in contenders.iter().zip(&medians).skip(1) {
        for (field, ours) in &medians[0] {
            if let Some(theirs) = row.get(field)
                && COMPARED.contains(&field.as_str())
            {
                ratio(case, field, &contender.system, ours / theirs);
            }
        }
    }
    let syncs = medians.iter().find_map(|row| row.get("sync_p50_us"));
    if let (Some(sync), Some(acquire)) = (syncs, medians[0].get("acquire_p50_us")) {
        ratio(case, "acquire_p50_us", "a sync", acquire / sync);
    }
    medians.into_iter().next().expect("lockkeeper comes first")
}

/// Fields of which a ratio is printed.
const COMPARED: [&str; 6] = [
    "cycles_per_s",
    "handovers_per_s",
    "acquire_p50_us",
    "release_p50_us",
    "wait_p50_us",
    "handover_p50_us",
];

fn print_row(args: &Args, case: Case, contender: &Contender, row: &Row) {
    let line = line_of(case, &contender.system, &contender.url);
    line.with("recipe", name(args.recipe))
        .with("threads", args.threads)
        .with("rounds", args.timing.rounds)
        .print(row);
}

/// Prints the ratio of our figure to that of another system.
pub(crate) fn ratio(case: Case, field: &str, to: &str, value: f64) {
    line_of(case, "lockkeeper", "").print_ratio(field, to, value);
}

fn line_of(case: Case, system: &str, url: &str) -> Line {
    let line = Line::new(system, url, &name(case.workload));
    let line = line.with("clients", case.clients).with("n", case.n);
    match case.workload {
        Workload::W3 => line.with("release_from", case.from.name()),
        _ => line,
    }
}
