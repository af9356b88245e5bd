//! `lockkeeper-model`: checks the models of the queue protocol and of etcd's leases, and prints statistics.

use std::fmt::Display;
use std::process::ExitCode;
use std::thread::available_parallelism;

use clap::Parser;
use lockkeeper_model::{
    Config, Mistake, Outcome, StoreKind, Violation, check, check_lease, shortest_violation,
};

/// Checks models of the queue protocol and of etcd's leases in all states.
#[derive(Parser)]
struct Options {
    /// Number of clients.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=4))]
    clients: u8,
    /// Check this kind of store alone.
    #[arg(long)]
    store: Option<StoreKind>,
    /// Number of threads; one for each core by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Change one rule of the protocol, to see which property notices.
    #[arg(long = "break", value_name = "MISTAKE", hide = true)]
    mistake: Option<Mistake>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let threads = options
        .threads
        .unwrap_or_else(|| available_parallelism().map_or(1, Into::into));
    let mut exit = ExitCode::SUCCESS;
    let configs = match options.mistake {
        Some(mistake) => vec![mistake.demonstration()],
        None => Config::standard(options.clients),
    };
    for config in configs {
        if options.store.is_some_and(|store| store != config.store) {
            continue;
        }
        let shortest = || shortest_violation(config);
        if !holds(&config, check(config, threads), shortest) {
            exit = ExitCode::FAILURE;
        }
    }
    let has_all = options.mistake.is_none() && options.store.is_none();
    if has_all && !holds(&"a lease of etcd", check_lease(None), || None) {
        exit = ExitCode::FAILURE;
    }
    exit
}

/// Prints the result of a check, and returns `true` if all properties hold.
fn holds(
    name: &dyn Display,
    outcome: Outcome,
    shortest: impl FnOnce() -> Option<Violation>,
) -> bool {
    println!("{name}");
    let (states, depth, seconds) = (outcome.states, outcome.depth, outcome.time.as_secs_f64());
    println!("  {states} states, longest path {depth}, {seconds:.1} s");
    if outcome.failed.is_empty() {
        outcome
            .held
            .iter()
            .for_each(|name| println!("  holds  {name}"));
        return true;
    }
    outcome
        .failed
        .iter()
        .for_each(|name| println!("  FAILS  {name}"));
    let (length, violation) = match shortest() {
        Some(shortest) => ("shortest", Some(shortest)),
        None => ("first", outcome.violation),
    };
    if let Some(violation) = violation {
        println!(
            "  the {length} way to a violation of {}",
            violation.property
        );
        for (number, line) in (1..).zip(&violation.story) {
            println!("  {number:>3}. {line}");
        }
    }
    false
}
