//! The command `lockkeeper`: serves a store, and looks after data directories: backup, restore, inspection.
//!
//! Exit codes: 0 done, 1 failed (`inspect`: also if the directory is damaged), 2 wrong usage; of the commands that use
//! a store, also those of [`exit`].

mod digest;
mod elect;
mod exit;
mod inspect;
mod run;
mod serve;
mod target;
mod values;
mod who;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use lockkeeper::disk;

use exit::Failure;

/// Serves a Lockkeeper store to ZooKeeper clients, and looks after its data directories.
#[derive(Parser)]
#[command(name = "lockkeeper", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves the store in a directory to ZooKeeper clients, until SIGTERM or SIGINT.
    ///
    /// Without options it serves ./lockkeeper-data on 127.0.0.1:2181, and syncs each write to the disk before it
    /// acknowledges it. stdout has one line, `lockkeeper ready ADDRESS`, once it listens; the log goes to stderr. A
    /// duration is written as 500ms, 2s or 1m, a size as 1048575, 64K, 1MiB or 2G. Exit codes: 0 drained, 1 failed, 2
    /// wrong usage or configuration.
    Serve(Box<serve::Flags>),
    /// Reads a password from stdin and prints its digest for --user, --super-digest and access control lists.
    ///
    /// Reads one line; a terminal does not echo it.
    Digest {
        /// The name.
        user: String,
    },
    /// Writes a backup of the store in DIR to FILE.
    ///
    /// DIR may be in use: it is only read, and its server does not wait. An existing FILE is replaced atomically.
    Backup {
        /// The data directory.
        dir: PathBuf,
        /// The backup.
        file: PathBuf,
    },
    /// Restores the backup FILE into DIR.
    ///
    /// DIR is created if it is missing, and must be empty otherwise. The restored store goes on with higher fencing
    /// tokens than the original can have given out, so resources that check tokens stay protected.
    Restore {
        /// The backup.
        file: PathBuf,
        /// The data directory to create.
        dir: PathBuf,
    },
    /// Shows the content of DIR, and the first place that cannot be read.
    ///
    /// DIR may be in use or damaged: it is only read. The exit code is 1 if it is damaged.
    Inspect {
        /// The data directory.
        dir: PathBuf,
        /// Prints one JSON object.
        #[arg(long)]
        json: bool,
        /// Number of the largest subtrees to show.
        #[arg(long, value_name = "N", default_value_t = 10)]
        top: usize,
    },
    /// Runs a command while a lock is held, and ends it before the lock could be another's.
    ///
    /// The command gets LOCKKEEPER_TOKEN, the fencing token, LOCKKEEPER_LOCK, the path of the lock, and
    /// LOCKKEEPER_HELD_UNTIL_MS, the time (in milliseconds since 1970) until which the lock is certain if it is not renewed;
    /// it is renewed until the command has ended. What the command leaves running is ended with it.
    ///
    /// Exit codes: that of the command, 128 + N if signal N has killed it, 126 and 127 if it cannot be executed or is not
    /// found; of this program itself 69 if the store is not reachable, 75 if the lock was not acquired in time, 76 if it was
    /// lost, 2 for wrong usage, 1 for another failure.
    Run(Box<run::Run>),
    #[command(name = run::GUARDIAN, hide = true)]
    RunGuardian(Box<run::Run>),
    /// Runs a command while this candidate leads, ends it on a loss, and campaigns again.
    ///
    /// It ends when the command ends by itself, with its status. Environment, signals and exit codes are those of `run`.
    Elect(Box<elect::Elect>),
    #[command(name = elect::GUARDIAN, hide = true)]
    ElectGuardian(Box<elect::Elect>),
    /// Shows the queue of a lock: its holder first, then the waiters in the order of their arrival.
    Who(who::Who),
}

fn main() -> ExitCode {
    // Before anything else: its arguments are another program's.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == run::LAUNCHER) {
        return run::launcher(arguments);
    }
    let matches = Arguments::command().get_matches();
    if let Some(("serve", given)) = matches.subcommand() {
        return serve::run(given);
    }
    let arguments = match Arguments::from_arg_matches(&matches) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    match run(arguments.command) {
        Ok(code) => code,
        Err(error) => failed(&*error),
    }
}

fn failed(error: &dyn Error) -> ExitCode {
    print_error(error);
    ExitCode::FAILURE
}

/// Prints to stderr, and ignores a reader that has gone; `eprintln!` panics then.
fn print_error(error: &dyn Error) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "lockkeeper: {error}");
}

fn run(command: Command) -> Result<ExitCode, Box<dyn Error>> {
    match command {
        Command::Serve(_) => {
            unreachable!("handled by `main`, since it needs the sources of its options")
        }
        Command::Digest { user } => {
            let password = digest::read_password()?;
            print(&format!("{}\n", digest::of(&user, &password)?))?;
        }
        Command::Backup { dir, file } => {
            let made = disk::backup(&dir, &file)?;
            print(&format!("{} has {}\n", file.display(), content(&made)))?;
        }
        Command::Restore { file, dir } => {
            let restored = disk::restore(&file, &dir)?;
            let text = format!(
                "{} has {}; its fencing tokens continue above all earlier ones, and its sessions end when it is opened\n",
                dir.display(),
                content(&restored)
            );
            print(&text)?;
        }
        Command::Inspect { dir, json, top } => {
            let seen = disk::inspect_top(&dir, top)?;
            let text = if json {
                inspect::json(&seen).to_string()
            } else {
                seen.to_string()
            };
            print(&format!("{text}\n"))?;
            if !seen.problems.is_empty() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Run(run) => return Ok(run.front()),
        Command::RunGuardian(run) => return Ok(run.guardian()),
        Command::Elect(elect) => return Ok(elect.front()),
        Command::ElectGuardian(elect) => return Ok(elect.guardian()),
        Command::Who(who) => return Ok(in_a_store(who.run())),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a command that uses a store, to its exit status.
fn in_a_store(command: impl Future<Output = Result<(), Failure>>) -> ExitCode {
    // One thread: it starts soonest, and a command of its own has little to do at the same time.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = runtime
        .map_err(Failure::from)
        .and_then(|it| it.block_on(command));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn content(of: &disk::Summary) -> String {
    format!(
        "store {} up to zxid {}: {} znodes, {} sessions, {} bytes",
        of.store_id, of.zxid, of.znodes, of.sessions, of.bytes
    )
}

/// Prints to stdout, and ignores a reader that has gone, as `head`; `println!` panics then.
fn print(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
