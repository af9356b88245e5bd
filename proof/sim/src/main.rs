//! Simulates a server, its clients, their network and its disk under faults. It is a single process with one thread,
//! one seed and virtual time per run.
//!
//! Each run draws its own kinds of faults (swarm testing). A run that breaks a promise prints its seed and its last
//! events, and `--seed N --trace` replays it exactly.

mod actor;
mod client_tasks;
mod faults;
mod filler;
mod history;
mod in_memory;
mod members;
mod memory;
mod observers;
mod permits;
mod register;
mod resource;
mod run;
mod watchman;
mod world;

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;

use self::run::{LEAST_OPERATIONS, Outcome, Plan, run};
use self::world::{StoreKind, Tally};

/// Simulates Lockkeeper under faults, and checks its promises all the time.
#[derive(Clone, Copy, Debug, Parser)]
struct Options {
    /// Number of seeds to run, from the first one on: 100, and with --seed 1, unless set.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Upper limit of the number of clients.
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    clients: u64,
    /// Upper limit of the waits of each task of a client.
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    turns: u64,
    /// Upper limit of the time with faults, in seconds.
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    faults: u64,
    /// Least number of operations of a run: until then its clients go on.
    #[arg(long, default_value_t = LEAST_OPERATIONS)]
    operations: u64,
    /// The servers: those that each seed draws, unless set.
    #[arg(long)]
    store: Option<StoreKind>,
    /// Ends with the first seed that fails.
    #[arg(long)]
    first_failure: bool,
    /// Prints all events of a run, not only the last ones of one that fails.
    #[arg(long)]
    trace: bool,
    /// Number of runs at the same time.
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

/// Number of events that a failed run prints.
const STORY: usize = 40;

#[derive(Default)]
struct Results {
    tally: Tally,
    runs: u64,
    failed: Vec<u64>,
    /// Number of operations of the run with the fewest.
    fewest_operations: Option<u64>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let start = Instant::now();
    let next = AtomicU64::new(options.seeds().start);
    let results = Mutex::new(Results::default());
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| work(options, &next, &results));
        }
    });
    let Results {
        tally,
        runs,
        failed,
        fewest_operations,
    } = results.into_inner().expect("no report panics");
    println!("{tally}");
    if let Some(fewest) = fewest_operations {
        println!(
            "operations of a seed: {} on average, {fewest} at least",
            tally.operations() / runs
        );
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{runs} seeds in {seconds:.1} s, {} failed {failed:?}",
        failed.len()
    );
    match failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn work(options: Options, next: &AtomicU64, results: &Mutex<Results>) {
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        let is_enough = |results: &Results| options.first_failure && !results.failed.is_empty();
        if seed >= options.seeds().end || is_enough(&results.lock().expect("no report panics")) {
            return;
        }
        let plan = options.plan(seed);
        let outcome = run(plan);
        report(plan, &outcome, options.trace);
        let mut results = results.lock().expect("no report panics");
        results.runs += 1;
        results.tally.add(&outcome.tally);
        let operations = outcome.tally.operations();
        let fewest = results.fewest_operations.unwrap_or(operations);
        results.fewest_operations = Some(fewest.min(operations));
        if outcome.violation.is_some() {
            results.failed.push(seed);
        }
    }
}

impl Options {
    fn seeds(self) -> Range<u64> {
        let count = self.seeds.unwrap_or(match self.seed {
            Some(_) => 1,
            None => 100,
        });
        let first = self.seed.unwrap_or(0);
        first..first.saturating_add(count)
    }

    fn plan(self, seed: u64) -> Plan {
        Plan {
            clients: self.clients,
            turns: self.turns,
            faults_s: self.faults,
            operations: self.operations,
            store: self.store,
            ..Plan::new(seed)
        }
    }
}

/// Prints the events of a run if requested, or the last events of the smallest failing run found.
fn report(plan: Plan, outcome: &Outcome, is_traced: bool) {
    if is_traced {
        println!("{}", outcome.story.join("\n"));
    }
    if outcome.violation.is_none() {
        return;
    }
    let shrunk = plan.shrunk();
    let Outcome {
        violation, story, ..
    } = run(shrunk);
    let last = &story[story.len().saturating_sub(STORY)..];
    println!("seed {}: {}", plan.seed, violation.unwrap_or_default());
    println!("  {}", last.join("\n  "));
    let Plan {
        seed,
        clients,
        turns,
        faults_s,
        operations,
        store,
        ..
    } = shrunk;
    let store = store.map_or(String::new(), |store| {
        format!(" --store {store:?}").to_lowercase()
    });
    println!(
        "run again with --seed {seed} --clients {clients} --turns {turns} --faults {faults_s} \
         --operations {operations}{store} --trace\n"
    );
}
