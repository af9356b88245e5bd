//! The command `lockkeeper`: uses and inspects locks, serves the store, and manages its data.
//!
//! Exit codes: 0 success, 1 failure (`inspect`: also a damaged directory), 2 wrong usage. Commands that use a store
//! also use the codes in [`exit`].

mod admin;
mod bench;
mod completions;
mod config;
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
mod output;
mod permits;
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

use exit::{ended, failed, in_a_store};
use locks::names::escaped_lines;
use output::{print, print_to};

/// The command line of `lockkeeper`.
#[derive(Parser)]
#[command(name = "lockkeeper", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// In the order of [`GROUPS`].
#[derive(Subcommand)]
enum Command {
    /// Runs a command under a lock, and stops it if the lock is lost.
    ///
    /// Sets variables for the command: LOCKKEEPER_TOKEN is the fencing token, LOCKKEEPER_LOCK the path of the lock, and
    /// LOCKKEEPER_HELD_UNTIL_MS the time (in milliseconds since 1970) until which the lock is held even if it is not
    /// renewed. Renews the lock until the command ends, and then ends the processes that the command has left running.
    ///
    /// Exit codes: the command's exit code, 128 + N if signal N killed the command, 126 if the command cannot be
    /// executed, 127 if it is not found. Exit codes of lockkeeper itself: 69 if the store cannot be reached, 75 if the
    /// lock was not acquired in time, 76 if the lock was lost, 2 for wrong usage, 1 for another failure.
    Run(Box<run::Run>),
    #[command(name = run::GUARDIAN, hide = true)]
    RunGuardian(Box<run::Run>),
    /// Runs a command on the leader, and moves it as the leader changes.
    ///
    /// If this candidate loses the leadership, `elect` stops the command and campaigns again. When the command ends on
    /// its own, `elect` exits with the command's exit code. Environment, signals and exit codes are the same as for
    /// `run`.
    Elect(Box<elect::Elect>),
    #[command(name = elect::GUARDIAN, hide = true)]
    ElectGuardian(Box<elect::Elect>),
    /// Lists held locks and their holders.
    ///
    /// HELD is the time since the grant. If the store does not know the grant time, HELD shows `queued` and the time
    /// since the holder joined the queue. OVERDUE is how far the holder exceeds the time that it declared, counted from
    /// the grant or the last keep_alive. A name without a leading slash is a lock below /locks.
    Locks(locks::Locks),
    /// Shows the queue of a lock: the holder, then the waiters in order.
    Who(who::Who),
    /// Shows locks live in the terminal.
    ///
    /// Press ? to list the keys. The key r asks the holder of a lock to release it, and R takes the lock away, each
    /// after a confirmation. Without a terminal, use `lockkeeper locks --watch`, with --json for JSON.
    Top(top::Top),
    /// Serves a web page that shows locks live.
    ///
    /// Prints `lockkeeper dashboard URL` to stdout when it serves the page. By default, only programs on this machine
    /// can reach the page. If --listen lets other machines reach it, viewers need the token. Runs until SIGTERM or
    /// SIGINT.
    Dashboard(dashboard::Dashboard),
    /// Asks a holder to release its lock, or takes it away with --force.
    ///
    /// A holder that listens for revocation requests decides whether to release the lock. With --force the holder loses
    /// the lock immediately, but may continue to work until it notices. This is safe only if every resource that the
    /// lock protects checks fencing tokens. Exit codes: 0 done, 1 the lock has no holder or nothing was done, 75 not
    /// released within --wait=DURATION.
    Revoke(revoke::Revoke),
    /// Shows or changes the number of permits of a semaphore.
    ///
    /// A change applies to all clients, including current holders and waiters. A higher number lets waiters in. A lower
    /// number revokes no permits. After a change, commands that state the number, such as `run --permits 1/4`, must
    /// state the new number. Exit codes: 0 done, 1 no such semaphore, or more permits are taken than the new number, 2
    /// wrong usage.
    Permits(permits::Permits),
    /// Reports locks held longer than their holders declared.
    ///
    /// Watches the selected locks, including new ones. Times each holder from the moment when the warden first sees it,
    /// so a report can be late but is never early. Prints the reports to stdout and the log to stderr (LOCKKEEPER_LOG
    /// sets the level). Of several wardens with the same prefix, one acts, and the others wait to replace it. Runs
    /// until SIGTERM or SIGINT.
    Warden(warden::Warden),
    /// Serves a store to ZooKeeper clients of any language.
    ///
    /// Without options, serves ./lockkeeper-data on 127.0.0.1:2181, and syncs each write to disk before acknowledging
    /// it. Prints `lockkeeper ready ADDRESS` to stdout when it listens, and the log to stderr. Runs until SIGTERM or
    /// SIGINT. Durations are given as 500ms, 1.5s, 2m, 1h30m or 1d, and sizes as 1048575, 64K, 1MiB or 2G. Exit codes:
    /// 0 stopped cleanly, 1 failed, 2 wrong usage or configuration.
    Serve(Box<serve::Flags>),
    /// Lists or ends sessions, and drains or reloads a running server.
    ///
    /// Connects to the Unix socket of the server's --admin-socket. Only the server's own user and root may use it. Exit
    /// codes: 0 done, 1 refused, 69 the server cannot be reached, 2 wrong usage.
    Admin(admin::Admin),
    /// Checks that a server is alive, for container health checks.
    ///
    /// Requests /healthz, or /readyz with --ready, from the server's --metrics-listen, and prints the response. Exit
    /// codes: 0 the check succeeded, 1 it failed, with the reason on stderr.
    Health(health::Health),
    /// Shows or stops this user's store on this machine.
    ///
    /// Commands without a URL use this store. The first such command starts the store's server in the background. The
    /// server stops after 10 minutes without a client (LOCKKEEPER_LOCAL_IDLE sets another time). Locks and sessions
    /// stay on disk.
    Local(local::Local),
    /// Backs up a data directory, even while it is in use.
    ///
    /// Only reads DIR, and does not delay a server that uses it. An existing FILE must be a regular file, and is
    /// replaced atomically.
    Backup {
        /// The data directory.
        dir: PathBuf,
        /// The backup file, or `-` for stdout.
        file: PathBuf,
    },
    /// Restores a backup into a new data directory.
    ///
    /// Creates DIR if it is missing. An existing DIR must be empty. Fencing tokens of the restored store are greater
    /// than all tokens that the original could have issued, so resources that check tokens stay protected.
    Restore {
        /// The backup.
        file: PathBuf,
        /// The data directory to create.
        dir: PathBuf,
    },
    /// Shows the contents of a data directory, and any damage.
    ///
    /// Only reads DIR, which may be in use or damaged. Exits with 1 if DIR is damaged.
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
    /// Recovers the readable part of a damaged data directory.
    ///
    /// Only reads DIR. Creates NEW if it is missing. An existing NEW must be empty. NEW receives the store as it was
    /// right before the first unreadable write. The report lists all losses from that write on. Fencing tokens of the
    /// recovered store are greater than all tokens that the original could have issued, including its lost part. Exits
    /// with 0 if NEW was written, even if writes are lost.
    Salvage(salvage::Arguments),
    /// Shows which store commands use, and the source of each value.
    ///
    /// Reads the options, the environment and the profiles in ~/.config/lockkeeper/config.toml and
    /// /etc/lockkeeper/client.toml, as every command does, but does not connect. Hides passwords. The environment can
    /// select another store, and with two stores a lock can have two holders. Therefore run this command in the
    /// environment of the commands that take locks, for example in the crontab.
    Config(config::Config),
    /// Measures the speed of locks on a store.
    ///
    /// Opens sessions and takes locks below one new znode. Removes the znode at the end, also after SIGINT and SIGTERM,
    /// and changes nothing else. Takes less than half a minute by default, and checks that no lock is granted twice.
    /// Sends requests as fast as the store answers them, so other clients wait longer during the run. Exit codes: 0
    /// done, 1 failed, interrupted, or a lock was granted twice, 69 the store cannot be reached or was lost.
    Bench(bench::Bench),
    #[command(name = bench::HOLDER, hide = true)]
    BenchHolder(bench::HolderCommand),
    /// Prints the digest of a password, for --user and ACLs.
    ///
    /// Reads the password as one line from stdin, without echo on a terminal.
    Digest {
        /// The user name.
        user: String,
    },
    /// Prints a completion script for your shell.
    ///
    /// Load the script when the shell starts, for example with `source <(lockkeeper completions bash)` in ~/.bashrc.
    Completions(completions::Arguments),
    /// Prints a manual page, or writes all of them to a directory.
    ///
    /// Read the page with `lockkeeper man | man -l -`.
    Man(man::Arguments),
    /// Runs this program in the background, with these arguments.
    #[command(hide = true)]
    Detach {
        #[arg(last = true)]
        arguments: Vec<OsString>,
    },
}

const GROUPS: [(&str, &[&str]); 5] = [
    ("Use locks", &["run", "elect"]),
    (
        "Inspect locks",
        &[
            "locks",
            "who",
            "top",
            "dashboard",
            "revoke",
            "permits",
            "warden",
        ],
    ),
    ("Run a server", &["serve", "admin", "health", "local"]),
    (
        "Look after data",
        &["backup", "restore", "inspect", "salvage"],
    ),
    (
        "Other",
        &["config", "bench", "digest", "completions", "man"],
    ),
];

/// Returns the command line with subcommands in groups, which clap does not support.
fn command_line() -> clap::Command {
    let command = Arguments::command();
    let mut overview = String::new();
    for (heading, names) in GROUPS {
        overview += &format!("{heading}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(|it| it.get_about());
            overview += &format!("  {name:<11}  {}\n", about.cloned().unwrap_or_default());
        }
        overview += "\n";
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{overview}Options:\n{{options}}\n\n\
         `lockkeeper COMMAND --help` describes a command.\n"
    ))
}

fn main() -> ExitCode {
    // Check for the hidden subcommands first, because their arguments belong to another program.
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    executable::name_process(first.as_deref());
    match first {
        Some(first) if first == run::LAUNCHER => return run::launcher(arguments),
        Some(first) if first == run::REAPER => return run::reaper(arguments),
        _ => {}
    }
    let matches = command_line().get_matches();
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

fn run(command: Command) -> Result<ExitCode, Box<dyn Error>> {
    match command {
        Command::Serve(_) => {
            unreachable!("handled by `main`, since it needs the sources of its options")
        }
        Command::Digest { user } => {
            let password = digest::read_password()?;
            print(&format!("{}\n", digest::of(&user, &password)?))?;
        }
        Command::Backup { dir, file } if file.as_os_str() == "-" => {
            let made = disk::backup_to(&dir, std::io::stdout())?;
            print_to(
                std::io::stderr(),
                &format!("stdout has {}\n", content(&made)),
            )?;
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
                escaped_lines(&seen.to_string())
            };
            print(&format!("{text}\n"))?;
            if !seen.problems.is_empty() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Admin(admin) => return Ok(ended(admin.run())),
        Command::Config(config) => return Ok(ended(config.run())),
        Command::Bench(bench) => return Ok(bench.run()),
        Command::BenchHolder(holder) => return Ok(in_a_store(holder.run())),
        Command::Health(health) => return Ok(ended(health.run())),
        Command::Locks(locks) => return Ok(in_a_store(locks.run())),
        Command::Permits(permits) => return Ok(in_a_store(permits.run())),
        Command::Revoke(revoke) => return Ok(in_a_store(revoke.run())),
        Command::Top(top) => return Ok(in_a_store(top.run())),
        Command::Dashboard(dashboard) => return Ok(in_a_store(dashboard.run())),
        Command::Warden(warden) => return Ok(in_a_store(warden.run())),
        Command::Completions(completions) => print(&completions.script(command_line()))?,
        Command::Man(man) => man.run(command_line())?,
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

fn content(of: &disk::Summary) -> String {
    format!(
        "store {} up to zxid {}: {} znodes, {} sessions, {} bytes",
        of.store_id, of.zxid, of.znodes, of.sessions, of.bytes
    )
}
