//! Rounds that alternate between the systems, and the report of their medians.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::args::{Args, Recipe};
use crate::common::echo::{self, Cores, EchoFloor, Transport};
use crate::figures::{self, Row};
use crate::options::name;
use crate::report::Line;
use crate::workloads::{self, Case, Relayed, Workload};

type Round = Box<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = Row>>>>;

/// A system that takes part in a case.
pub(crate) struct Contender {
    system: String,
    recipe: Recipe,
    url: String,
    transport: Transport,
    is_ours: bool,
    round: Round,
}

impl Contender {
    /// A system measured by the workloads of this program.
    pub(crate) fn of<L: Relayed>(system: &str, url: &str, case: Case, locks: Vec<L>) -> Self {
        let locks: Arc<[L]> = locks.into();
        Self::new(system, url, move |time| {
            workloads::run(case, locks.clone(), time)
        })
    }

    /// Uses the Unix socket's floor, for a system without a URL.
    pub(crate) fn over_unix(self) -> Self {
        let transport = Transport::Unix;
        Self { transport, ..self }
    }

    /// Sets the measured recipe, if it is not the mutex.
    pub(crate) fn with_recipe(self, recipe: Recipe) -> Self {
        Self { recipe, ..self }
    }

    /// A system that measures itself.
    pub(crate) fn new<F>(system: &str, url: &str, round: impl Fn(Duration) -> F + 'static) -> Self
    where
        F: Future<Output = Row> + 'static,
    {
        Self {
            system: system.into(),
            recipe: Recipe::Mutex,
            url: url.into(),
            transport: Transport::of(url),
            is_ours: system.starts_with("lockkeeper"),
            round: Box::new(move |time| Box::pin(round(time))),
        }
    }
}

/// Runs the rounds of all contenders in turns, with the floor in each round of a served case. Prints the medians and
/// our ratios to the others. Returns the first contender's medians.
pub(crate) async fn measure(
    args: &Args,
    case: Case,
    contenders: Vec<Contender>,
    mut floor: Option<&mut EchoFloor>,
) -> Row {
    let time = args.timing.round();
    if !args.timing.warm_up.is_zero() {
        for contender in &contenders {
            (contender.round)(args.timing.warm_up).await;
        }
    }
    let mut rounds: Vec<Vec<Row>> = contenders.iter().map(|_| Vec::new()).collect();
    // In turns, so that other load on the machine affects all of them alike.
    for _ in 0..args.timing.rounds {
        for (contender, rounds) in contenders.iter().zip(&mut rounds) {
            let mut floor_row = Row::new();
            if let Some(floor) = &mut floor {
                let beside = floor.round(contender.transport, case.clients, args.timing.floor());
                floor_row = beside.await;
            }
            let cores = Cores::now();
            let mut row = (contender.round)(time).await;
            if floor.is_some() {
                cores.write_since(&mut row);
            }
            row.extend(floor_row);
            rounds.push(row);
        }
    }
    let medians: Vec<Row> = rounds
        .iter()
        .map(|rounds| figures::medians(rounds))
        .collect();
    for (contender, row) in contenders.iter().zip(&medians) {
        print_row(args, case, contender, row);
    }
    for (ours, our_row) in contenders.iter().zip(&medians) {
        let others = contenders.iter().zip(&medians);
        let others = others.filter(|it| !it.0.is_ours && it.0.recipe == ours.recipe);
        for (other, their_row) in others.filter(|_| ours.is_ours) {
            for field in COMPARED {
                if let (Some(ours_is), Some(theirs)) = (our_row.get(field), their_row.get(field)) {
                    let line = line_of(case, &ours.system, "");
                    let line = line.with("recipe", name(ours.recipe));
                    line.print_ratio(field, &other.system, ours_is / theirs);
                }
            }
        }
        for (field, value) in echo::ratios(our_row) {
            ratio(case, &ours.system, field, "echo", value);
        }
    }
    let syncs = medians.iter().find_map(|row| row.get("sync_p50_us"));
    if let (Some(sync), Some(acquire)) = (syncs, medians[0].get("acquire_p50_us")) {
        ratio(
            case,
            "lockkeeper",
            "acquire_p50_us",
            "a sync",
            acquire / sync,
        );
    }
    medians.into_iter().next().expect("lockkeeper comes first")
}

/// Fields whose ratios are printed.
const COMPARED: [&str; 7] = [
    "cycles_per_s",
    "handovers_per_s",
    "acquire_p50_us",
    "release_p50_us",
    "wait_p50_us",
    "handover_p50_us",
    "kill_to_grant_p50_us",
];

fn print_row(args: &Args, case: Case, contender: &Contender, row: &Row) {
    let line = line_of(case, &contender.system, &contender.url);
    line.with("recipe", name(contender.recipe))
        .with("threads", args.threads)
        .with("server_threads", args.serving.server_threads())
        .with("rounds", args.timing.rounds)
        .print(row);
}

pub(crate) fn ratio(case: Case, system: &str, field: &str, to: &str, value: f64) {
    line_of(case, system, "").print_ratio(field, to, value);
}

fn line_of(case: Case, system: &str, url: &str) -> Line {
    let line = Line::new(system, url, &name(case.workload));
    let line = line.with("clients", case.clients).with("n", case.n);
    match case.workload {
        Workload::W3 | Workload::Cold | Workload::Bytes => {
            line.with("release_from", case.from.name())
        }
        _ => line,
    }
}
