//! An attack with a server, a well-behaved client and an attacker in separate processes. The attacker is this test
//! binary, started again for a single test.

use std::any::type_name_of_val;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use testkit::wire::{Conn, Session};
use testkit::{ChildProcess, again_at};

use super::good::{Good, Latency};
use super::served::{Memory, OTHER, Served};

/// Environment variable that is set in the attacker's process. It contains the address of the server to attack.
const ADDRESS: &str = "LOCKKEEPER_HOSTILE_ADDRESS";

/// Prefixes of the lines that the attacker prints for us. They distinguish these lines from the output of the test
/// harness.
const UNDER_WAY: &str = "attack: under way";
const RESULT: &str = "attack: result ";

pub(crate) const MIB: u64 = 1 << 20;

/// Timeout of an attacker's sessions. Many of them send nothing until the well-behaved client has been measured. None
/// may expire before that, even on a slow machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(600);

/// The attacker's view of the fight.
pub(crate) struct Field {
    pub(crate) address: SocketAddr,
    is_over: Arc<AtomicBool>,
}

impl Field {
    pub(crate) fn client(&self) -> Conn {
        let opened = Conn::open(self.address, &Session::none(TIMEOUT));
        opened.expect("the server takes a client").0
    }

    /// Reports that the attack has reached its full strength. The attacker calls this once.
    pub(crate) fn under_way(&self) {
        println!("\n{UNDER_WAY}");
    }

    /// Returns `true` once the well-behaved client has been measured for long enough.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    /// Waits until the measurement is over.
    pub(crate) fn wait(&self) {
        while !self.is_over() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(crate) struct Outcome {
    pub(crate) log: Vec<String>,
    /// The text that `attack` returned.
    pub(crate) result: String,
}

impl Outcome {
    /// Counts the lines of the log that contain all these words.
    pub(crate) fn logged(&self, words: &[&str]) -> usize {
        let has = |line: &&String| words.iter().all(|word| line.contains(word));
        self.log.iter().filter(has).count()
    }
}

/// Starts a server with these options and measures the well-behaved client. Then runs `attack`, and measures during the
/// attack and after it. `attack` checks the server's reactions and returns a text for the report. The server's memory
/// may never grow by more than `most` bytes.
///
/// Returns `None` in the attacker's process, where the test then ends.
pub(crate) fn fight(
    options: &[&str],
    most: u64,
    attack: impl FnOnce(&Field) -> String,
) -> Option<Outcome> {
    let name = type_name_of_val(&attack);
    let name = name.strip_suffix("::{{closure}}").expect("a closure");
    let (_, name) = name.split_once("::").expect("in a module");
    if let Ok(address) = env::var(ADDRESS) {
        be_the_attacker(address.parse().unwrap(), attack);
        return None;
    }
    // Run only one attack at a time, because concurrent attacks would disturb each other's measurements.
    static ARENA: Mutex<()> = Mutex::new(());
    let _alone = ARENA.lock().unwrap_or_else(|error| error.into_inner());
    raise_open_files();
    let options = [options, &["--max-session-timeout", "10m"]].concat();
    let server = Served::start(&options);
    let good = Good::start(server.address);
    good.measure(); // until it has warmed up
    let (before, at_rest) = (good.measure(), server.memory());
    let mut attacker = Attacker::start(name, server.address);
    attacker.wait_for_strength();
    let (during, attacked) = (good.measure(), server.memory());
    let result = attacker.finish(server.is_ours());
    let (after, left) = (good.measure(), server.memory());
    good.stop();
    let (_, short) = name.rsplit_once("::").unwrap_or(("", name));
    show(
        short,
        &result,
        [&before, &during, &after],
        [at_rest, attacked, left],
    );
    let is_ours = server.is_ours();
    let log = server.stop();
    let grown = left.peak.saturating_sub(at_rest.now);
    let told = format!("{} MiB more than at rest", grown / MIB);
    assert!(grown <= most || !is_ours, "{told}: {result}");
    Some(Outcome { log, result })
}

fn show(name: &str, result: &str, latency: [&Latency; 3], memory: [Memory; 3]) {
    let of = |latency: &Latency| {
        let [p50, p99] = [500, 990].map(|permille| latency.permille(permille).as_micros());
        format!("{p50}/{p99}")
    };
    let mib = |bytes: u64| bytes / MIB;
    let [before, during, after] = latency.map(of);
    let [at_rest, attacked, left] = memory.map(|memory| mib(memory.now));
    // Write to stderr directly, because the harness shows captured output only if the test fails. Ignore an error,
    // which means that the reader is gone.
    let _ = writeln!(
        std::io::stderr(),
        "{name}: p50/p99 in µs {before} quiet, {during} attacked ({} requests), {after} after; memory in MiB \
         {at_rest} at rest, {attacked} attacked, {left} after, {} at most; {result}",
        latency[1].count(),
        mib(memory[2].peak),
    );
}

fn be_the_attacker(address: SocketAddr, attack: impl FnOnce(&Field) -> String) {
    let is_over = Arc::<AtomicBool>::default();
    let to = is_over.clone();
    std::thread::spawn(move || {
        // Returns at a line from the parent process, or when the parent process has ended.
        let _ = std::io::stdin().read_line(&mut String::new());
        to.store(true, SeqCst);
    });
    let field = Field { address, is_over };
    let result = attack(&field);
    assert!(field.is_over(), "an attack goes on until it is measured");
    println!("\n{RESULT}{result}");
}

struct Attacker {
    child: ChildProcess,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Attacker {
    fn start(name: &str, address: SocketAddr) -> Self {
        let mut command = again_at(name);
        command.env(ADDRESS, address.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = ChildProcess::spawn(&mut command);
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self {
            stdin: child.stdin.take(),
            child,
            stdout,
        }
    }

    /// Returns the rest of the next line that has this prefix, or `None` if the attacker has ended.
    fn line(&mut self, beginning: &str) -> Option<String> {
        let mut lines = (&mut self.stdout).lines().map(|line| line.unwrap());
        lines.find_map(|line| line.strip_prefix(beginning).map(ToOwned::to_owned))
    }

    fn wait_for_strength(&mut self) {
        if self.line(UNDER_WAY).is_none() && env::var_os(OTHER).is_none() {
            panic!("the attacker has failed: {:?}", self.child.wait());
        }
    }

    /// Asks the attacker to end, and returns its result.
    fn finish(mut self, must_succeed: bool) -> String {
        drop(writeln!(self.stdin.take().unwrap()));
        let result = self.line(RESULT);
        let status = self.child.wait().unwrap();
        match result {
            Some(result) => result,
            None if must_succeed => panic!("the attacker has failed: {status}"),
            None => "this server does something else".into(),
        }
    }
}

/// Raises the limit of open files as high as possible for this process and its children, and returns it.
pub(crate) fn raise_open_files() -> u64 {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let limits = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, limits).expect("up to the hard limit anybody may go");
    maximum.unwrap_or(u64::MAX)
}
