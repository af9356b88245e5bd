//! The command `lockkeeper`: serves a store, and looks after data directories: backup, restore, inspection, salvage.
//!
//! Exit codes: 0 done, 1 failed (`inspect`: also if the directory is damaged), 2 wrong usage; of the commands that use
//! a store, also those of [`exit`].

mod admin;
mod bench;
mod completions;
mod dashboard;
mod digest;
mod elect;
mod executable;
mod exit;
mod health;
mod http;
mod inspect;
mod live;
mod local;
mod locks;
mod man;
mod revoke;
mod run;
mod salvage;
mod serve;
mod target;
mod top;
mod values;
mod warden;
mod who;

use std::error::Error;
use std::ffi::OsString;
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
    /// Looks after a running server: lists and ends sessions, drains, reloads.
    ///
    /// It asks over the Unix socket of --admin-socket, as the server's own user or root. Exit codes: 0 done, 1 refused,
    /// 69 the server cannot be reached, 2 wrong usage.
    Admin(admin::Admin),
    /// Lists the locks that are held, and their holders.
    ///
    /// HELD counts from the moment at which the holder joined the queue, by the server's clock: a holder that had to
    /// wait has held for less. OVERDUE is the excess over the time that the holder expected, counted likewise from its
    /// joining or its last sign of life. A name without a slash in front stands below /locks.
    Locks(locks::Locks),
    /// Measures how fast locks are on a store, and checks meanwhile that they exclude.
    ///
    /// It opens sessions and takes locks below one new znode, which it removes at its end, also after SIGINT and SIGTERM;
    /// it touches nothing else, and takes less than half a minute. Meanwhile it sends requests as fast as they are answered:
    /// others at the same store wait longer. Exit codes: 0 done, 1 failed or interrupted, also if a lock was granted twice,
    /// 69 the store cannot be reached or was lost.
    Bench(bench::Bench),
    #[command(name = bench::HOLDER, hide = true)]
    BenchHolder(bench::Holder),
    /// Salvages what can be read of the damaged store in DIR, up to the first damage, into NEW.
    ///
    /// DIR is only read. NEW is created if it is missing, and must be empty otherwise. It holds the store as it was right
    /// before the first write that cannot be read, and the report says what is lost after it. The salvaged store goes on
    /// with higher fencing tokens than the original can have given out, in the lost part, too. The exit code is 0 if NEW
    /// was written, whatever is lost.
    Salvage(salvage::Arguments),
    /// Prints the completions of this command for a shell.
    ///
    /// Load them where the shell starts, as with `source <(lockkeeper completions bash)` in ~/.bashrc.
    Completions(completions::Arguments),
    /// Prints a manual page, or writes all of them.
    ///
    /// Read it with `lockkeeper man | man -l -`.
    Man(man::Arguments),
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
    /// Asks the holders of a lock to release it, or takes it away with --force.
    ///
    /// A holder that listens for revocation decides itself what to do. With --force it loses the lock at once, and may
    /// work on until it notices: safe only if every resource that the lock protects checks fencing tokens. Exit codes: 0
    /// done, 1 nobody holds it or nothing was done, 75 not released within --wait=DURATION.
    Revoke(revoke::Revoke),
    /// Asks a server if it is alive, as the health check of a container does.
    ///
    /// It asks for /healthz, or with --ready for /readyz, at the address of the server's --metrics-listen, and prints the
    /// answer. Exit codes: 0 it is, 1 it is not, and stderr tells the reason.
    Health(health::Health),
    /// Shows the locks as they change, on a whole terminal: sorted, filtered, and each with its queue.
    ///
    /// Press ? for the keys. A lock can be asked for, or taken from the holder that is shown, after a confirmation. Without
    /// a terminal, or as JSON: `lockkeeper locks --watch`.
    Top(top::Top),
    /// Serves a page for browsers that shows the locks as they change, until SIGTERM or SIGINT.
    ///
    /// stdout has one line, `lockkeeper dashboard URL`, once it is served. Only programs of this machine reach it, unless
    /// --listen says otherwise; then the token in the URL is needed to see anything.
    Dashboard(dashboard::Dashboard),
    /// Reports locks that are held for longer than their holders stated, until SIGTERM or SIGINT.
    ///
    /// It watches all locks below the prefix, also those that appear later, and times each holder from its first sight:
    /// late at times, and never early. stdout has a line for each report, stderr the log (its level is in
    /// LOCKKEEPER_LOG). Of several wardens with the same prefix one acts, and the others wait to take its place.
    Warden(warden::Warden),
    /// Shows this user's own store on this machine, which commands use without --url, and stops its server.
    ///
    /// The first command that needs the store starts its server in the background. It ends after 10 minutes without a
    /// client, or the time of LOCKKEEPER_LOCAL_IDLE; locks and sessions are kept on the disk.
    Local(local::Local),
    /// Runs this program in the background, with these arguments.
    #[command(hide = true)]
    Detach {
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
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
        Command::Admin(admin) => return Ok(ended(admin.run())),
        Command::Bench(bench) => return Ok(bench.run()),
        Command::BenchHolder(holder) => return Ok(in_a_store(holder.run())),
        Command::Health(health) => return Ok(ended(health.run())),
        Command::Locks(locks) => return Ok(in_a_store(locks.run())),
        Command::Revoke(revoke) => return Ok(in_a_store(revoke.run())),
        Command::Top(top) => return Ok(in_a_store(top.run())),
        Command::Dashboard(dashboard) => return Ok(in_a_store(dashboard.run())),
        Command::Warden(warden) => return Ok(in_a_store(warden.run())),
        Command::Completions(completions) => print(&completions.script(Arguments::command()))?,
        Command::Man(man) => man.run(Arguments::command())?,
        Command::Salvage(salvage) => return Ok(salvage.run()),
        Command::Run(run) => return Ok(run.front()),
        Command::RunGuardian(run) => return Ok(run.guardian()),
        Command::Elect(elect) => return Ok(elect.front()),
        Command::ElectGuardian(elect) => return Ok(elect.guardian()),
        Command::Who(who) => return Ok(in_a_store(who.run())),
        Command::Local(local) => return Ok(ended(local.run())),
        Command::Detach { arguments } => return Ok(ended(local::detach(&arguments))),
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
    ended(done)
}

fn ended(done: Result<(), Failure>) -> ExitCode {
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
