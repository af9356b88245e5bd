//! Candidates stand for election; leaders work, and are killed; the next one takes over.
//!
//! ```text
//! cargo run --release --example leader_election
//! cargo run --release --example leader_election -- --url zookeeper://127.0.0.1:2181
//! cargo run --release --example leader_election -- --url zookeeper://127.0.0.1:2181 --processes
//! ```
//!
//! The first leader's session is dropped. The second is cut off from the store, as the death of its
//! machine would do, and its session expires; a write of its own arrives when the next one leads
//! already, and is refused. The others work and resign. With `--processes` each candidate is a
//! process of its own, and two leaders are killed with SIGKILL.
//!
//! An observer, in a session of its own, prints who leads. At the end the program checks that the
//! candidates led in the order of their arrival, that the epochs only grew, that the observer saw
//! each leader, and that the resource (a [`schedule::Schedule`] on disk) never accepted the work of
//! two leaders out of order. [`candidate`] shows the use of the recipe.

mod args;
mod candidate;
#[path = "../common/mortal.rs"]
mod mortal;
mod observer;
mod processes;
mod schedule;
mod tasks;

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use lockkeeper::{ConnectOptions, Election, connect_with, observe};

use crate::args::{Args, HELP};
use crate::candidate::Failure;
use crate::observer::Observer;
use crate::schedule::Schedule;

/// What an election came to.
pub(crate) struct Outcome {
    /// The candidates that led, in the order of their arrival, as far as they should have led.
    pub(crate) expected: Vec<String>,
    /// How many writes of those who had lost were refused, at the least.
    pub(crate) refused: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = match Args::parse(lexopt::Parser::from_env()) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("leader_election: {error} (see --help)");
            return ExitCode::from(2);
        }
    };
    if args.help {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let done = match &args.child {
        Some(child) => processes::be_a_candidate(&args, child).await,
        None => direct(&args).await,
    };
    match done {
        Ok(wrongs) if wrongs.is_empty() => ExitCode::SUCCESS,
        Ok(wrongs) => {
            println!("WRONG: {}.", wrongs.join("; "));
            ExitCode::FAILURE
        }
        Err(failure) => {
            eprintln!("leader_election: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Has the candidates stand, and answers what went wrong.
async fn direct(args: &Args) -> Result<Vec<String>, Failure> {
    let options = ConnectOptions::new().create_chroot();
    let client = connect_with(args.target.clone(), options).await?;
    let began = BEGAN
        .get_or_init(SystemTime::now)
        .duration_since(UNIX_EPOCH)?;
    let run = format!("{}-{}", std::process::id(), began.as_nanos());
    let election = Election::new(&client, format!("/election/{run}"))?;
    let folder = std::env::temp_dir().join(format!("lockkeeper-election-{run}"));
    std::fs::create_dir(&folder)?;
    let schedule = Schedule::at(&folder.join("schedule.json"));
    let observer = Arc::new(Observer::start(&election));

    let outcome = if args.processes {
        processes::stand(args, &election, &schedule, &observer).await
    } else {
        tasks::stand(args, &election, &schedule, &observer).await
    }?;

    let observer = Arc::into_inner(observer).ok_or("a candidate is left")?;
    let mut wrongs = observer.finish(&outcome.expected).await?;
    let checked = schedule.check()?;
    wrongs.extend(checked.wrongs);
    if checked.terms != outcome.expected.len() {
        let expected = outcome.expected.len();
        wrongs.push(format!(
            "{} leaders have worked, not {expected}",
            checked.terms
        ));
    }
    if checked.refused < outcome.refused {
        wrongs.push("a late write was not refused".to_owned());
    }
    client.close().await?;
    std::fs::remove_dir_all(&folder)?;
    println!(
        "\n{} leaders, {} entries of theirs accepted, {} refused.",
        checked.terms, checked.entries, checked.refused
    );
    if wrongs.is_empty() {
        println!(
            "All is right: they led in the order of arrival, epochs only grew, and the schedule \
            never took the work of two leaders out of order."
        );
    }
    Ok(wrongs)
}

/// Waits until so many stand, in whatever order they have come.
pub(crate) async fn until_they_stand(election: &Election, count: usize) -> Result<(), Failure> {
    let mut line = observe(election.client(), election.path().clone())?;
    while let Some(candidates) = line.next().await {
        if candidates?.len() >= count {
            return Ok(());
        }
    }
    Err("the line cannot be seen".into())
}

/// When it all began; a process that is one candidate is told.
pub(crate) static BEGAN: OnceLock<SystemTime> = OnceLock::new();

/// Says what somebody does.
pub(crate) fn tell(who: &str, what: &str) {
    let began = BEGAN.get_or_init(SystemTime::now);
    let seconds = began.elapsed().unwrap_or_default().as_secs_f64();
    println!("{seconds:>8.3} s  {who} {what}");
}
