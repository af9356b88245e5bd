//! Rounds that alternate between the systems, their medians, and the lines that say so.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::args::Args;
use crate::figures::{self, Row, rounded};
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
    let time = args.seconds / args.rounds;
    let mut rounds: Vec<Vec<Row>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.rounds {
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

/// The fields whose ratios are worth a line.
const COMPARED: [&str; 6] = [
    "cycles_per_s",
    "handovers_per_s",
    "acquire_p50_us",
    "release_p50_us",
    "wait_p50_us",
    "handover_p50_us",
];

fn print_row(args: &Args, case: Case, contender: &Contender, row: &Row) {
    let mut line = case_of(case);
    line["system"] = contender.system.as_str().into();
    line["url"] = contender.url.as_str().into();
    line["recipe"] = args.recipe.name().into();
    line["threads"] = args.threads.into();
    line["rounds"] = args.rounds.into();
    for (field, value) in row {
        line[field] = rounded(*value);
    }
    println!("{line}");
}

/// Prints how one measurement compares with another.
pub(crate) fn ratio(case: Case, field: &str, to: &str, value: f64) {
    let mut line = case_of(case);
    line["ratio"] = field.into();
    line["to"] = to.into();
    line["value"] = rounded(value);
    println!("{line}");
}

fn case_of(case: Case) -> Value {
    let mut line = json!({
        "workload": case.workload.name(),
        "clients": case.clients,
        "n": case.n,
    });
    if case.workload == Workload::W3 {
        line["release_from"] = case.from.name().into();
    }
    line
}
