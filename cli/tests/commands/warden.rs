//! `lockkeeper warden`.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use lockkeeper::{Client, Guard, LockOptions, LostReason, Mutex};
use rustix::process::Signal;
use serde_json::Value;
use testkit::ChildProcess;

use super::locks::named;
use super::metrics::http::{Samples, promtool, request};
use super::stores::*;
use super::support::*;

/// A running warden. Dropping this kills the warden.
struct Running {
    child: ChildProcess,
    stdout: Option<BufReader<ChildStdout>>,
    log: Receiver<String>,
}

impl Running {
    fn start(store: &StoreAt, arguments: &[&str]) -> Self {
        let arguments = [&["warden", "--session-timeout", "2s"], arguments].concat();
        let mut command = store.command(&arguments);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = ChildProcess::spawn(command);
        let log = lines_of(child.stderr.take().unwrap());
        Self {
            stdout: child.stdout.take().map(BufReader::new),
            child,
            log,
        }
    }

    /// Starts a warden, and waits until it leads.
    fn acting(store: &StoreAt, arguments: &[&str]) -> Self {
        let warden = Self::start(store, arguments);
        warden.logs(" leads ");
        warden
    }

    /// Waits for a log line that contains this text.
    fn logs(&self, text: &str) -> String {
        let line = self.log.iter().find(|line| line.contains(text));
        line.unwrap_or_else(|| panic!("it ended, and never logged {text:?}"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.as_mut().unwrap().read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "it has ended");
        line.trim_end().into()
    }

    fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    /// Sends a signal, and returns the exit status and the rest of stdout.
    fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        self.signal(signal);
        let mut rest = String::new();
        let mut stdout = self.stdout.take().unwrap();
        stdout.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

/// Acquires a lock whose holder is overdue immediately.
async fn overdue(client: &Client, name: &str) -> Guard {
    let options = LockOptions::new().label("billing\u{1b}");
    let options = options.alert_after(Duration::from_millis(1));
    let options = options.auto_unlock_after(Duration::from_millis(2));
    let mutex = Mutex::new(client, named(name)).unwrap();
    mutex.lock_with(options).await.unwrap()
}

on_each_store! {
    async fn its_metrics_count_the_locks_that_it_times(store: StoreAt) {
        let client = store.connect().await;
        let slow = overdue(&client, "jobs/slow").await;
        let other = LockOptions::new().expected_hold(Duration::from_secs(3_600));
        let mutex = Mutex::new(&client, named("jobs/punctual")).unwrap();
        let punctual = mutex.lock_with(other).await.unwrap();
        let unstated = Mutex::new(&client, named("jobs/unstated")).unwrap().lock().await.unwrap();
        let mut warden = Running::start(&store, &["jobs/", "--metrics-listen", "127.0.0.1:0"]);
        let line = warden.logs("metrics and health");
        let at = line.rsplit_once("address=").unwrap().1.to_owned();
        warden.logs(" leads ");
        let (first, second) = (warden.line(), warden.line());
        assert!(first.contains("jobs/slow") && second.contains("jobs/slow"), "{first}, {second}");
        let mut waiter = Box::pin(async { Mutex::new(&client, named("jobs/slow")).unwrap().lock().await });
        let counted = async {
            loop {
                let samples = Samples::read(&at);
                if samples.at("lockkeeper_warden_waiters") == 1.0
                    && samples.at("lockkeeper_warden_locks") == 2.0
                {
                    break samples;
                }
                tokio::task::yield_now().await;
            }
        };
        let samples = tokio::select! {
            samples = counted => samples,
            _ = &mut waiter => unreachable!("it is held"),
        };
        for (name, value) in [
            ("lockkeeper_warden_leads", 1.0),
            ("lockkeeper_warden_holders", 2.0),
            ("lockkeeper_warden_overdue_holders{level=\"auto_unlock\"}", 1.0),
            ("lockkeeper_warden_overdue_holders{level=\"alert\"}", 0.0),
            ("lockkeeper_warden_overdue_holders{level=\"expected\"}", 0.0),
            ("lockkeeper_overdue_locks_total{level=\"alert\"}", 1.0),
            ("lockkeeper_locks_held{kind=\"election\"}", 1.0),
        ] {
            assert_eq!(samples.at(name), value, "{name}");
        }
        assert!(samples.at("lockkeeper_warden_longest_hold_seconds") >= 0.002);
        let page = request(&at, "GET", "/metrics").body;
        promtool(&page);
        assert!(!page.contains("jobs"), "no lock's name: {page}");
        assert_eq!(request(&at, "GET", "/readyz").body, "ready\n");
        slow.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        punctual.release().await.unwrap();
        unstated.release().await.unwrap();
        while Samples::read(&at).at("lockkeeper_warden_locks") > 0.0 {}
        let samples = Samples::read(&at);
        assert_eq!(samples.at("lockkeeper_warden_overdue_holders{level=\"auto_unlock\"}"), 0.0);
        assert_eq!(samples.at("lockkeeper_warden_longest_hold_seconds"), 0.0);
        assert_eq!(warden.end(Signal::TERM).0, Some(0));
    }

    async fn overdue_locks_are_reported_and_stay(store: StoreAt) {
        let client = store.connect().await;
        let early = overdue(&client, "jobs/early").await;
        let _other = overdue(&client, "other").await;
        let mut warden = Running::acting(&store, &["jobs/", "--json"]);
        let mut json = Running::acting(&store, &["/"]);
        let first: Value = serde_json::from_str(&warden.line()).unwrap();
        assert_eq!(first["event"], "overdue");
        assert_eq!(first["level"], "alert");
        assert_eq!((&first["lock"], &first["path"]), (&"jobs/early".into(), &"/locks/jobs%2Fearly".into()));
        assert_eq!(first["token"], early.fencing_token().to_string());
        assert_eq!(first["label"], "billing\u{1b}");
        assert!(first["seen_ms"].is_u64() && first["over_ms"].is_u64(), "{first}");
        let second: Value = serde_json::from_str(&warden.line()).unwrap();
        assert_eq!(second["level"], "auto_unlock");
        let late = overdue(&client, "jobs/late").await;
        let third: Value = serde_json::from_str(&warden.line()).unwrap();
        assert_eq!(third["token"], late.fencing_token().to_string());
        assert!(early.is_held() && late.is_held());
        assert_eq!(lockkeeper::queue(&client, named("jobs/early")).await.unwrap().len(), 1);
        let shown = json.line();
        assert!(shown.starts_with("overdue ") && shown.contains(r"billing\u{1b}, host "), "{shown}");
        for (signal, warden) in [(Signal::TERM, warden), (Signal::INT, json)] {
            assert_eq!(warden.end(signal).0, Some(0));
        }
        // The elections of the wardens have left no znodes behind.
        let seen = success(&store.run(&["locks", "/lockkeeper", "--json"]));
        assert_eq!(seen, "");
    }

    async fn overdue_locks_are_removed_and_logged(store: StoreAt) {
        let client = store.connect().await;
        let mut warden = Running::acting(&store, &["--auto-unlock", "/locks"]);
        let guard = overdue(&client, "a").await;
        let lines = [warden.line(), warden.line(), warden.line()];
        let token = format!("token {}", guard.fencing_token());
        assert!(lines.iter().all(|line| line.contains(&token)), "{lines:?}");
        assert!(lines[0].starts_with("overdue a: ") && lines[2].starts_with("removed a: "), "{lines:?}");
        let logged = warden.logs("an overdue lock was taken away");
        assert!(logged.contains("WARN") && logged.contains(&token), "{logged}");
        assert!(!logged.contains('\u{1b}'), "{logged:?}");
        assert_eq!(guard.lost().await, LostReason::Revoked);
        assert_eq!(warden.end(Signal::TERM), (Some(0), String::new()));
    }

    async fn another_warden_takes_the_place_of_one_that_was_killed(store: StoreAt) {
        let client = store.connect().await;
        let mut first = Running::acting(&store, &["--auto-unlock"]);
        let mut second = Running::start(&store, &["--auto-unlock"]);
        second.logs("waits for its turn");
        let guard = overdue(&client, "a").await;
        while !first.line().starts_with("removed a") {}
        assert_eq!(guard.lost().await, LostReason::Revoked);
        first.child.kill();
        second.logs(" leads ");
        let guard = overdue(&client, "b").await;
        // The first line is about the lock b, so this warden has not reported the earlier lock.
        assert!(second.line().starts_with("overdue b"));
        while !second.line().starts_with("removed b") {}
        assert_eq!(guard.lost().await, LostReason::Revoked);
    }

    async fn a_warden_that_was_stopped_knows_that_another_acts(store: StoreAt) {
        let client = store.connect().await;
        let first = Running::acting(&store, &["--auto-unlock"]);
        first.signal(Signal::STOP);
        let mut second = Running::acting(&store, &["--auto-unlock"]);
        first.signal(Signal::CONT);
        first.logs("another warden may act now");
        let guard = overdue(&client, "a").await;
        while !second.line().starts_with("removed a") {}
        assert_eq!(guard.lost().await, LostReason::Revoked);
        // The first warden waits in the election again. It has removed and reported nothing, and ends normally.
        first.logs("waits for its turn");
        assert_eq!(first.end(Signal::TERM), (Some(0), String::new()));
    }

    async fn a_warden_ends_when_nobody_reads_it(store: StoreAt) {
        let client = store.connect().await;
        let mut warden = Running::acting(&store, &[]);
        drop(warden.stdout.take());
        let _guard = overdue(&client, "a").await;
        assert_eq!(warden.child.wait().unwrap().code(), Some(0));
    }
}
