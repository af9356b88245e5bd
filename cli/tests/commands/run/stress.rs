//! Sends signals to processes of `lockkeeper run` and to servers at random. Each command locks a file that all its
//! processes have open. The next command cannot lock the file while any of these processes lives.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use testkit::{Random, free_address};

use crate::local::{Home, Shell};
use crate::running::*;
use crate::server::{Server, bare};
use crate::support::*;

/// Keeps forking for a second, and leaves a process in the background behind.
const COMMAND: &str = r#"
    exec 9>"$0"
    flock --nonblock 9 || { echo second; exit 99; }
    echo begun
    (setsid sh -c 'n=0; while [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done' &)
    n=0
    while [ $n -lt 10 ]; do (sleep 0.02 &); sleep 0.1; n=$((n + 1)); done
    echo done"#;

/// A pause that does not end a lease. A session with a timeout of 4 s is renewed early enough after it.
const SHORT: Duration = Duration::from_millis(600);

/// A store whose server is killed and started again.
enum Place {
    Local(Home),
    /// A server at a TCP address, and its process while it runs.
    Tcp(TempFolder, SocketAddr, Mutex<Option<Server>>),
}

impl Place {
    fn tcp() -> Self {
        let place = Self::Tcp(TempFolder::short(), free_address(), Mutex::new(None));
        place.start_server();
        place
    }

    fn folder(&self) -> &TempFolder {
        match self {
            Self::Local(home) => home.folder(),
            Self::Tcp(folder, ..) => folder,
        }
    }

    fn run(&self) -> Running {
        let options = [
            "--session-timeout=4s",
            "--connect-timeout=1m",
            "--grace=300ms",
        ];
        let arguments = [&["run"], &options[..], &["a", "--", "sh", "-c", COMMAND]].concat();
        let mut command = match self {
            Self::Local(home) => home.command(Shell::Cron, &arguments),
            Self::Tcp(_, address, _) => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
                command
                    .arg(arguments[0])
                    .arg(format!("--url=lockkeeper://{address}"));
                command.args(&arguments[1..]);
                command
            }
        };
        command.arg(self.resource());
        Running::spawn(&mut command)
    }

    fn resource(&self) -> PathBuf {
        self.folder().at("resource")
    }

    fn server(&self) -> Option<Pid> {
        match self {
            Self::Local(home) => home.server(),
            Self::Tcp(_, _, server) => server.lock().unwrap().as_ref().map(Server::pid),
        }
    }

    /// Starts an ended server again, as a service manager would do. For the per-user store, clients do that.
    fn start_server(&self) {
        if let Self::Tcp(folder, address, server) = self {
            let mut server = server.lock().unwrap();
            drop(server.take());
            let mut command = bare();
            command.args(["--listen", &address.to_string(), "--data"]);
            *server = Some(Server::start(command.arg(folder.at("data"))));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Front,
    Guardian,
    Reaper,
    Command,
    Server,
}

#[derive(Default)]
struct Seen {
    rounds: AtomicUsize,
    /// Number of rounds in which front, guardian and reaper were killed or stopped simultaneously.
    unwatched: AtomicUsize,
    /// Number of rounds after which the command must have ended on its own.
    healthy: AtomicUsize,
    faults: Mutex<Vec<String>>,
}

/// Signals that were sent to the processes of one command, and their consequences.
#[derive(Default)]
struct Harm {
    done: Vec<(Target, Signal)>,
    stopped: Vec<(Target, Pid, Instant)>,
    killed: Vec<Target>,
    was_unwatched: bool,
    /// True if these signals may have ended the command.
    may_end: bool,
    /// True if processes of the command may have just started and may not handle signals yet.
    may_start: bool,
}

impl Harm {
    fn signal(&mut self, target: Target, pid: Pid, signal: Signal) {
        if kill_process(pid, signal).is_err() {
            return;
        }
        self.done.push((target, signal));
        match signal {
            Signal::STOP => self.stopped.push((target, pid, Instant::now())),
            Signal::CONT => self.continued(|of| of == target),
            Signal::KILL => self.killed.push(target),
            _ => {}
        }
        self.may_end |= match target {
            Target::Front | Target::Command => ![Signal::STOP, Signal::CONT].contains(&signal),
            Target::Guardian | Target::Reaper => {
                let is_asked = [Signal::TERM, Signal::INT].contains(&signal);
                signal == Signal::KILL || is_asked && self.may_start
            }
            Target::Server => false,
        };
        let is_away = |target| {
            self.killed.contains(&target) || self.stopped.iter().any(|(of, ..)| *of == target)
        };
        let watching = [Target::Front, Target::Guardian, Target::Reaper];
        self.was_unwatched |= watching.into_iter().all(is_away);
    }

    fn continued(&mut self, which: impl Fn(Target) -> bool) {
        for (target, pid, since) in std::mem::take(&mut self.stopped) {
            if !which(target) {
                self.stopped.push((target, pid, since));
                continue;
            }
            let _ = kill_process(pid, Signal::CONT);
            let costs_lease = matches!(target, Target::Guardian | Target::Server);
            self.may_end |= costs_lease && since.elapsed() > SHORT;
        }
    }
}

fn round(place: &Place, dice: &mut Random, seen: &Seen) {
    let is_waiting = dice.below(3) == 0;
    let mut harm = Harm {
        may_start: is_waiting,
        ..Harm::default()
    };
    let first = is_waiting.then(|| begun(place));
    let attacked = if is_waiting {
        place.run()
    } else {
        begun(place)
    };
    let next = place.run();
    let front = attacked.front();
    let (guardian, mut reaper, mut command) = (child_of(front), None, None);
    for _ in 0..=dice.below(4) {
        std::thread::sleep(Duration::from_millis(dice.below(400)));
        reaper = reaper.or_else(|| child_of(guardian?));
        command = command.or_else(|| child_of(reaper?));
        let targets = [
            (Target::Front, Some(front)),
            (Target::Guardian, guardian),
            (Target::Reaper, reaper),
            (Target::Command, command),
            (Target::Server, place.server()),
        ];
        let (target, pid) = targets[dice.below(5) as usize];
        let signals = [
            Signal::KILL,
            Signal::STOP,
            Signal::CONT,
            Signal::TERM,
            Signal::INT,
        ];
        let signal = signals[dice.below(5) as usize];
        let Some(pid) = pid else { continue };
        let ends = target == Target::Server && ![Signal::STOP, Signal::CONT].contains(&signal);
        if ends {
            harm.continued(|of| of == target);
        }
        harm.signal(target, pid, signal);
        if ends {
            place.start_server();
        }
    }
    // In a third of the rounds, this pause may last until after the end of the lease.
    let longest = if dice.below(3) == 0 { 6_000 } else { 400 };
    std::thread::sleep(Duration::from_millis(dice.below(longest)));
    harm.continued(|_| true);
    let mut told = Vec::new();
    for command in first.into_iter().chain([next]) {
        let (status, text, errors) = command.end();
        // The other command uses the same server, so it may also lose its lock.
        let is_lost = harm.may_end
            && (errors.contains("the lock was lost") || errors.contains("has expired"));
        if text.contains("second") || status != Some(0) && !is_lost {
            told.push(format!(
                "another command ended with {status:?}: {text:?} {errors:?}"
            ));
        }
    }
    let (status, text, errors) = attacked.end();
    let is_well = status == Some(0) && text.ends_with("done\n");
    if !harm.may_end && !is_well {
        told.push(format!(
            "a healthy command ended with {status:?}: {text:?} {errors:?}"
        ));
    }
    if text.contains("second") {
        told.push("it met another holder".into());
    }
    seen.rounds.fetch_add(1, Ordering::Relaxed);
    seen.healthy
        .fetch_add(usize::from(!harm.may_end), Ordering::Relaxed);
    seen.unwatched
        .fetch_add(usize::from(harm.was_unwatched), Ordering::Relaxed);
    if !harm.was_unwatched && !told.is_empty() {
        let done = &harm.done;
        seen.faults
            .lock()
            .unwrap()
            .push(format!("{done:?} while it waited: {is_waiting}: {told:?}"));
    }
    // The processes of an unwatched command end on their own. Wait for them.
    let resource = File::open(place.resource()).unwrap();
    resource.lock().unwrap();
}

/// Starts a command that gets the lock.
fn begun(place: &Place) -> Running {
    let mut command = place.run();
    let line = command.line();
    if line != "begun" {
        panic!("it has not begun: {line:?} {:?}", command.end());
    }
    command
}

fn child_of(parent: Pid) -> Option<Pid> {
    let parent = parent.as_raw_pid();
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    Pid::from_raw(children.ok()?.split_whitespace().next()?.parse().ok()?)
}

fn stress(place: impl Fn() -> Place + Sync) {
    let is_full = std::env::var("LOCKKEEPER_FULL").is_ok_and(|full| full == "1");
    let (lanes, rounds) = (5, if is_full { 60 } else { 2 });
    let seed = u64::from(std::process::id()) << 20 | 1;
    eprintln!("seed {seed}");
    let seen = Seen::default();
    std::thread::scope(|scope| {
        for lane in 0..lanes {
            let (place, seen) = (&place, &seen);
            scope.spawn(move || {
                let (place, mut dice) = (place(), Random(seed + 2 * lane));
                for _ in 0..rounds {
                    round(&place, &mut dice, seen);
                }
            });
        }
    });
    let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
    eprintln!(
        "{} rounds: {} left nobody to watch, after {} the command had to end by itself",
        count(&seen.rounds),
        count(&seen.unwatched),
        count(&seen.healthy),
    );
    assert_eq!(*seen.faults.lock().unwrap(), [""; 0]);
}

#[test]
fn no_second_holder_and_no_healthy_command_killed_in_the_local_store() {
    stress(|| Place::Local(Home::new()));
}

#[test]
fn no_second_holder_and_no_healthy_command_killed_over_tcp() {
    stress(Place::tcp);
}
