//! A real process is stopped (SIGSTOP) past its session timeout and continued (SIGCONT).
//!
//! The process is this test binary, started for one test with environment variables that make it the child.

use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

use lockkeeper::{
    ConnectOptions, FencingGate, FencingToken, LockError, Mutex, StaleToken, connect_with, queue,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};
use testkit::{ChildProcess, Env, TempFolder, again, within_reason};
use tokio::sync::mpsc;

use crate::common::*;

/// The child's session timeout: enough for a busy machine, and short to wait for.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Resource behind the lock: a file that is changed under the system's lock and refuses tokens older than the newest it
/// has seen.
#[derive(Default, Serialize, Deserialize)]
struct Ledger {
    gate: FencingGate,
    entries: Vec<String>,
}

impl Ledger {
    fn append(at: &Path, entry: &str, token: FencingToken) -> Result<(), StaleToken> {
        let lock = File::create(at.with_extension("lock")).unwrap();
        lock.lock().unwrap();
        let mut ledger = Self::read(at);
        ledger.gate.admit(token)?;
        ledger.entries.push(entry.to_owned());
        let next = at.with_extension("next");
        fs::write(&next, serde_json::to_vec(&ledger).unwrap()).unwrap();
        fs::rename(next, at).unwrap();
        Ok(())
    }

    fn read(at: &Path) -> Self {
        match fs::read(at) {
            Ok(json) => serde_json::from_slice(&json).unwrap(),
            Err(_) => Self::default(),
        }
    }
}

fn ledger_in(folder: &TempFolder) -> PathBuf {
    folder.path().join("ledger")
}

/// Prefix of the child's lines, because the test harness writes to the same output.
const SAYS: &str = "child: ";

/// Make a process the child: the store's URL and its ledger's path.
const URL: &str = "LOCKKEEPER_STOPPED_URL";
const LEDGER: &str = "LOCKKEEPER_STOPPED_LEDGER";

struct Me {
    mutex: Mutex,
    ledger: PathBuf,
}

impl Me {
    /// Returns `None` in a process that is not the child.
    async fn if_child() -> Option<Self> {
        let url = env::var(URL).ok()?;
        let options = ConnectOptions::new().session_timeout(TIMEOUT);
        let client = connect_with(url.as_str(), options).await.unwrap();
        Some(Self {
            mutex: Mutex::new(&client, LOCK).unwrap(),
            ledger: env::var_os(LEDGER).unwrap().into(),
        })
    }

    fn say(&self, what: &str) {
        // The harness may have left a line unfinished.
        let line = format!("\n{SAYS}{what}\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
        std::io::stdout().flush().unwrap();
    }

    /// Waits for a word, blocking everything in this process except the store's threads.
    fn hear(&self, word: &str) {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        assert_eq!(line.trim(), word);
    }

    fn append(&self, entry: &str, token: FencingToken) -> Result<(), StaleToken> {
        Ledger::append(&self.ledger, entry, token)
    }

    async fn hold(self) {
        let guard = self.mutex.lock().await.unwrap();
        self.append("first", guard.fencing_token()).unwrap();
        self.say("holds");
        self.hear("go on");
        // The first check, before anything else in this process can have run.
        let held = guard.is_held();
        let late = self.append("too late", guard.fencing_token());
        self.say(if held { "believes" } else { "knows" });
        self.say(if late.is_err() { "refused" } else { "let in" });
        let release = guard.release().await;
        assert!(matches!(release, Err(LockError::Lost(_))), "{release:?}");
        self.lock_again().await;
    }

    async fn wait(self) {
        let refusal = self.mutex.lock().await.unwrap_err();
        self.say(if refusal.is_session_end() {
            "passed over"
        } else {
            "confused"
        });
        self.lock_again().await;
    }

    /// A process that lost its session continues with another.
    async fn lock_again(self) {
        let guard = self.mutex.lock().await.unwrap();
        self.append("again", guard.fencing_token()).unwrap();
        guard.release().await.unwrap();
        self.mutex.client().close().await.unwrap();
        self.say("done");
    }
}

struct Process {
    child: ChildProcess,
    orders: ChildStdin,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Process {
    fn start(test: &str, world: &World, ledger: &Path) -> Self {
        let mut child = ChildProcess::spawn(
            again(module_path!(), test)
                .env(URL, world.env.target())
                .env(LEDGER, ledger)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped()),
        );
        let orders = child.stdin.take().unwrap();
        let (sender, lines) = mpsc::unbounded_channel();
        child.hear_lines(move |line| {
            if let Some(said) = line.as_deref().and_then(|line| line.strip_prefix(SAYS)) {
                // The receiver is dropped when the test is over.
                let _ = sender.send(said.to_owned());
            }
        });
        Self {
            child,
            orders,
            lines,
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn tell(&mut self, word: &str) {
        writeln!(self.orders, "{word}").expect("the child lives");
    }

    async fn says(&mut self, what: &str) {
        let said = self.lines.recv().await;
        let said = said.expect("the child lives: its stderr says what it died of");
        assert_eq!(said, what);
    }

    fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(self.pid()), WaitOptions::UNTRACED)
            .unwrap()
            .unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    fn ended_well(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

#[tokio::test]
async fn a_holder_that_was_stopped_knows_at_its_first_look_and_is_refused_served() {
    match Me::if_child().await {
        Some(me) => me.hold().await,
        None => {
            a_stopped_holder(
                Env::served().await,
                "a_holder_that_was_stopped_knows_at_its_first_look_and_is_refused_served",
            )
            .await
        }
    }
}

#[tokio::test]
async fn a_holder_that_was_stopped_knows_at_its_first_look_and_is_refused_zookeeper() {
    match Me::if_child().await {
        Some(me) => me.hold().await,
        None => {
            a_stopped_holder(
                Env::zookeeper().await,
                "a_holder_that_was_stopped_knows_at_its_first_look_and_is_refused_zookeeper",
            )
            .await
        }
    }
}

#[tokio::test]
async fn a_waiter_that_was_stopped_is_passed_over_served() {
    match Me::if_child().await {
        Some(me) => me.wait().await,
        None => {
            a_stopped_waiter(
                Env::served().await,
                "a_waiter_that_was_stopped_is_passed_over_served",
            )
            .await
        }
    }
}

#[tokio::test]
async fn a_waiter_that_was_stopped_is_passed_over_zookeeper() {
    match Me::if_child().await {
        Some(me) => me.wait().await,
        None => {
            a_stopped_waiter(
                Env::zookeeper().await,
                "a_waiter_that_was_stopped_is_passed_over_zookeeper",
            )
            .await
        }
    }
}

async fn a_stopped_holder(env: Env, test: &str) {
    within_reason(async {
        let world = World::new(env).await;
        let folder = TempFolder::new("stopped");
        let mut process = Process::start(test, &world, &ledger_in(&folder));
        process.says("holds").await;
        let waiter = world.queue_up(&world.mutex().await).await;
        process.stop();
        // The server ends its session after the timeout, and the next one holds.
        let next = granted(waiter).await;
        Ledger::append(&ledger_in(&folder), "next", next.fencing_token()).unwrap();

        // The command is waiting before the process can take another step.
        process.tell("go on");
        process.go_on();
        process.says("knows").await;
        process.says("refused").await;
        world.until_count(2).await;
        assert!(next.is_held(), "what the late one did disturbed nobody");
        next.release().await.unwrap();
        process.says("done").await;
        process.ended_well();
        assert_eq!(
            Ledger::read(&ledger_in(&folder)).entries,
            ["first", "next", "again"]
        );
        world.until_count(0).await;
    })
    .await;
}

async fn a_stopped_waiter(env: Env, test: &str) {
    within_reason(async {
        let world = World::new(env).await;
        let folder = TempFolder::new("stopped");
        let holder = world.mutex().await.lock().await.unwrap();
        let mut process = Process::start(test, &world, &ledger_in(&folder));
        world.until_count(2).await;
        let behind = world.queue_up(&world.mutex().await).await;
        process.stop();
        world.until_count(2).await;
        let owners = queue(&world.observer, LOCK).await.unwrap();
        assert_eq!(owners[0].path, *holder.path());
        holder.release().await.unwrap();
        let behind = granted(behind).await;
        assert_eq!(*behind.path(), owners[1].path);

        process.go_on();
        process.says("passed over").await;
        world.until_count(2).await;
        behind.release().await.unwrap();
        process.says("done").await;
        process.ended_well();
        world.until_count(0).await;
    })
    .await;
}
