//! Rounds that alternate between the systems, their medians, and the lines that say so.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::args::Args;
use crate::systems::Lock;
use crate::workloads::{self, Case, Workload};

/// What a round has measured, by the names of the fields.
pub(crate) type Row = BTreeMap<String, f64>;

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
    let medians: Vec<Row> = rounds.iter().map(|rounds| summary(rounds)).collect();
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

/// The median of each field over the rounds; of faults the sum.
fn summary(rounds: &[Row]) -> Row {
    let mut summary = Row::new();
    for field in rounds[0].keys() {
        let mut values: Vec<f64> = rounds
            .iter()
            .filter_map(|row| row.get(field).copied())
            .collect();
        let value = if field.ends_with("_violations") {
            values.iter().sum()
        } else {
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        };
        summary.insert(field.clone(), value);
    }
    summary
}

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

/// Four significant digits; whole numbers as such.
fn rounded(value: f64) -> Value {
    if !value.is_finite() {
        return Value::Null;
    }
    let digits = 3 - value.abs().max(1e-9).log10().floor() as i32;
    if digits <= 0 || value.fract() == 0.0 {
        return json!(value.round() as i64);
    }
    let scale = 10f64.powi(digits);
    json!((value * scale).round() / scale)
}

/// Times of one kind, collected over a round.
#[derive(Default)]
pub(crate) struct Times(Vec<u64>);

impl Times {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time.as_nanos() as u64);
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Writes the median and the 99th percentile, in microseconds.
    pub(crate) fn write(mut self, row: &mut Row, what: &str) {
        if self.0.is_empty() {
            return;
        }
        self.0.sort_unstable();
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            let at = ((self.0.len() - 1) as f64 * share) as usize;
            row.insert(format!("{what}_{name}_us"), self.0[at] as f64 / 1e3);
        }
    }
}
