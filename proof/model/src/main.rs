//! `lockkeeper-model`: checks the model of the queue protocol, and prints statistics.

use std::process::ExitCode;
use std::thread::available_parallelism;

use clap::Parser;
use lockkeeper_model::{Config, Mistake, StoreKind, check, shortest_violation};

/// Checks a model of the queue protocol in all states.
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
        if !holds(config, threads) {
            exit = ExitCode::FAILURE;
        }
    }
    exit
}

/// Checks a configuration, prints the result, and returns `true` if all properties hold.
fn holds(config: Config, threads: usize) -> bool {
    let outcome = check(config, threads);
    println!("{config}");
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
    let (length, violation) = match shortest_violation(config) {
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
