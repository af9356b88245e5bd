//! `lockkeeper bench`. Checks counts and states, but no durations.

use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

use lockkeeper::{Acl, Client, ConnectOptions, Mutex, ZnodePath};
use lockkeeper_store::CreateMode;
use rustix::process::Signal;
use serde_json::Value;
use testkit::ChildProcess;

use super::locks::{named, objects};
use super::server::{Server, serve};
use super::stores::*;
use super::support::*;

const WORKLOADS: [&str; 8] = [
    "round-trip",
    "write",
    "acquire",
    "hand-over",
    "keys",
    "semaphore",
    "rwlock",
    "expiry",
];

const SHORT: [&str; 7] = [
    "bench",
    "--seconds",
    "0.05",
    "--warm-up",
    "0.01",
    "--keys",
    "20",
];

fn short<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SHORT[..], more].concat()
}

async fn children(client: &Client, path: &str) -> Vec<String> {
    let session = client.session().await.unwrap();
    let (mut names, _) = session.get_children(&path.parse().unwrap()).await.unwrap();
    names.sort_unstable();
    names
}

/// A run that has printed the path of its znode. Dropping this kills the run.
struct Running {
    child: ChildProcess,
    stdout: Option<BufReader<ChildStdout>>,
    znode: String,
}

impl Running {
    fn start(store: &StoreAt, arguments: &[&str]) -> Self {
        let arguments = [&["bench", "--json"], arguments].concat();
        let mut command = store.command(&arguments);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = ChildProcess::spawn(command);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let started: Value = serde_json::from_str(&line).unwrap();
        let znode = started["znode"].as_str().unwrap().to_owned();
        Self {
            child,
            stdout: Some(stdout),
            znode,
        }
    }

    async fn has_entries(&self, client: &Client, workload: &str, count: usize) {
        let queue = format!("{}/{workload}", self.znode);
        while entries(client, &queue).await < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    /// Waits for the end of the run. Returns its status and stderr.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

/// Returns the number of entries in a queue, or 0 if the queue does not exist.
async fn entries(client: &Client, queue: &str) -> usize {
    let session = client.session().await.unwrap();
    let path: ZnodePath = queue.parse().unwrap();
    let listed = session.get_children(&path).await;
    listed.map_or(0, |(names, _)| names.len())
}

on_each_store! {
    async fn every_workload_is_measured_and_nothing_is_left(store: StoreAt) {
        let client = store.connect().await;
        let guard = Mutex::new(&client, named("another's")).unwrap().lock().await.unwrap();
        let before = children(&client, "/").await;
        let lines = objects(&success(&store.run(&short(&["--json", "--clients", "4"]))));
        let (started, measured) = lines.split_first().unwrap();
        assert_eq!(started["event"], "started");
        let server = started["server_version"].as_str().unwrap_or("unknown");
        let expected = match store.url.split_once(':').unwrap().0 {
            "zookeeper" => "ZooKeeper 3.",
            "etcd" => "unknown",
            _ => "Lockkeeper 0.",
        };
        assert!(server.starts_with(expected), "{server}");
        assert_eq!(started["server_mode"].is_null(), expected == "unknown");
        for field in [
            "version", "cores", "system", "threads", "url", "session_timeout_ms", "round_trip_us", "clients", "keys",
            "seconds", "znode",
        ] {
            assert!(!started[field].is_null(), "{field}: {started}");
        }
        let mut names: Vec<_> = measured.iter().map(|line| line["workload"].as_str().unwrap()).collect();
        names.dedup();
        assert_eq!(names, WORKLOADS);
        for line in measured {
            assert_eq!(line["event"], "measured");
            for field in ["operation", "clients", "keys", "count", "p50_us", "p99_us", "p999_us", "max_us", "round_trips"] {
                assert!(!line[field].is_null(), "{field}: {line}");
            }
            assert!(line["count"].as_u64().unwrap() > 0, "{line}");
            assert_eq!(line["per_s"].is_null(), line["workload"] == "expiry", "{line}");
            let of = |field: &str| line[field].as_f64().unwrap();
            assert!(of("p50_us") <= of("p99_us") && of("p99_us") <= of("p999_us") && of("p999_us") <= of("max_us"), "{line}");
        }
        let of = |workload: &str| measured.iter().find(|line| line["workload"] == workload).unwrap();
        for workload in ["hand-over", "semaphore", "rwlock"] {
            assert_eq!(of(workload)["clients"], 4);
            assert_eq!(of(workload)["exclusion_violations"], 0);
            assert_eq!(of(workload)["order_violations"], 0);
        }
        assert_eq!((&of("keys")["keys"], &of("keys")["clients"]), (&20.into(), &2.into()));
        assert!(of("expiry")["session_timeout_ms"].is_u64());
        assert_eq!(children(&client, "/").await, before);
        assert!(guard.is_held());
    }

    async fn chosen_workloads_stand_in_a_table(store: StoreAt) {
        let client = store.connect().await;
        let shown = success(&store.run(&short(&["acquire", "round-trip", "--threads", "1", "--clients", "1"])));
        let (heading, table) = shown.split_once("\n\n").unwrap();
        assert!(heading.starts_with("lockkeeper ") && heading.contains(&store.url), "{shown}");
        let words: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0][..4], ["WORKLOAD", "OPERATION", "CLIENTS", "COUNT"]);
        let rows: Vec<_> = words[1..].iter().map(|row| (row[0], row[1], row[2])).collect();
        assert_eq!(rows, [("acquire", "acquire", "1"), ("acquire", "release", "1"), ("round-trip", "exists", "1")]);
        assert!(!children(&client, "/").await.iter().any(|name| name.contains("bench")));
    }

    async fn a_signal_ends_it_and_it_removes_its_znodes(store: StoreAt) {
        let client = store.connect().await;
        let before = children(&client, "/").await;
        let signals = [("hand-over", Signal::INT), ("semaphore/locks", Signal::TERM), ("keys", Signal::HUP)];
        for (workload, signal) in signals {
            let running = Running::start(&store, &[workload.split('/').next().unwrap(), "--keys", "50", "--seconds", "600"]);
            running.has_entries(&client, workload, 3).await;
            // Send the signal twice, because `timeout` signals both the process and its group.
            running.signal(signal);
            running.signal(signal);
            let (status, said) = running.ended();
            assert_eq!(status, Some(1), "{said}");
            assert!(said.contains("interrupted by SIG") && said.lines().count() == 1, "{said}");
            assert_eq!(children(&client, "/").await, before, "{workload}");
        }
    }

    async fn after_kill_9_no_process_goes_on_to_hold_a_lock(store: StoreAt) {
        let client = store.connect().await;
        let mut running = Running::start(&store, &["expiry", "--seconds", "600", "--session-timeout", "4s"]);
        running.has_entries(&client, "expiry", 2).await;
        running.child.kill();
        let queue = format!("{}/expiry", running.znode);
        while entries(&client, &queue).await > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn an_expired_session_ends_it_and_its_znodes_are_removed(store: StoreAt) {
        let client = store.connect().await;
        let before = children(&client, "/").await;
        let running = Running::start(&store, &["hand-over", "--seconds", "600", "--session-timeout", "4s"]);
        running.has_entries(&client, "hand-over", 3).await;
        running.signal(Signal::STOP);
        let queue = format!("{}/hand-over", running.znode);
        while entries(&client, &queue).await > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        running.signal(Signal::CONT);
        let (status, said) = running.ended();
        assert_eq!(status, Some(69), "{said}");
        assert!(said.starts_with("lockkeeper: hand-over: "), "{said}");
        assert_eq!(children(&client, "/").await, before);
    }

    async fn without_a_reader_it_ends(store: StoreAt) {
        let client = store.connect().await;
        let before = children(&client, "/").await;
        let mut running = Running::start(&store, &["acquire", "hand-over", "--seconds", "1"]);
        running.stdout = None;
        let (status, said) = running.ended();
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("nobody reads the output"), "{said}");
        assert_eq!(children(&client, "/").await, before);
    }
}

on_each_znode_store! {
    async fn it_stays_where_it_may_write(store: StoreAt) {
        drop(store.connect().await);
        let options = ConnectOptions::new().auth("digest", "jane:secret").acl(Acl::creator_all());
        let owner = lockkeeper::connect_with(&store.url, options).await.unwrap();
        let session = owner.session().await.unwrap();
        session.create(&"/closed".parse().unwrap(), "", CreateMode::Persistent).await.unwrap();
        let refused = store.run(&short(&["acquire", "--prefix", "/closed/mine"]));
        assert!(failure(&refused).contains("/closed/mine-"), "{refused:?}");
        let allowed = store.run(&short(&["acquire", "--json", "--prefix", "/closed/mine", "--auth", "jane:secret"]));
        let lines = objects(&success(&allowed));
        assert!(lines[0]["znode"].as_str().unwrap().starts_with("/closed/mine-"));
        assert_eq!(children(&owner, "/closed").await, [""; 0]);
        // The command does not create missing parents, because it would have to remove them at the end.
        let missing = store.run(&short(&["acquire", "--prefix", "/missing/mine"]));
        assert!(failure(&missing).contains("/missing"), "{missing:?}");
    }
}

#[test]
fn a_server_that_is_killed_ends_it() {
    let server = Server::start(serve().args(["--data", "memory"]));
    let store = StoreAt::at(format!("lockkeeper://{}", server.address()));
    let arguments = [
        "--seconds",
        "600",
        "--session-timeout",
        "4s",
        "--connect-timeout",
        "500ms",
        "hand-over",
    ];
    let running = Running::start(&store, &arguments);
    block_on(async {
        let client = server.connect().await;
        running.has_entries(&client, "hand-over", 3).await;
        server.signal(Signal::KILL);
    });
    let znode = running.znode.clone();
    let (status, said) = running.ended();
    assert_eq!(status, Some(69), "{said}");
    assert!(
        said.contains(&format!("{znode} could not be removed")),
        "{said}"
    );
    assert!(said.contains("lockkeeper: hand-over: "), "{said}");
}

#[test]
fn stores_of_this_process_have_all_workloads_but_the_expiry() {
    let folder = TempFolder::short();
    let file = format!("file:{}", folder.at("data").display());
    for url in ["memory:", &file] {
        let store = StoreAt::at(url.to_owned());
        let lines = objects(&success(&store.run(&short(&["--json"]))));
        let skipped: Vec<_> = lines
            .iter()
            .filter(|line| line["event"] == "skipped")
            .collect();
        assert_eq!(skipped.len(), 1, "{lines:?}");
        assert_eq!(skipped[0]["workload"], "expiry");
        assert!(skipped[0]["reason"].is_string());
        assert_eq!(lines[0]["server_version"], Value::Null);
    }
}

#[test]
fn a_signal_ends_it_at_a_store_whose_answers_never_wait() {
    let store = StoreAt::at("memory:".into());
    for workload in ["round-trip", "write", "acquire"] {
        for threads in ["1", "2"] {
            // The run is long enough to be interrupted, but short enough that a failing test ends soon.
            let arguments = ["--seconds", "10", "--threads", threads, workload];
            let running = Running::start(&store, &arguments);
            running.signal(Signal::INT);
            let (status, said) = running.ended();
            assert_eq!(status, Some(1), "{workload}, {threads} threads: {said}");
            assert_eq!(said, "lockkeeper: interrupted by SIGINT\n");
        }
    }
}

#[test]
fn one_client_hands_nothing_over() {
    let store = StoreAt::at("memory:".into());
    let alone = ["--json", "--clients", "1", "hand-over", "rwlock"];
    let lines = objects(&success(&store.run(&short(&alone))));
    let text = |line: &Value, field: &str| line[field].as_str().unwrap().to_owned();
    let events: Vec<_> = lines[1..]
        .iter()
        .map(|line| [text(line, "event"), text(line, "workload")])
        .collect();
    assert_eq!(events, [["skipped", "hand-over"], ["measured", "rwlock"]]);
}

#[test]
fn a_server_with_too_few_places_is_told() {
    let server = Server::start(serve().args(["--data", "memory", "--max-connections", "4"]));
    let store = StoreAt::at(format!("lockkeeper://{}", server.address()));
    let refused = store.run(&short(&[
        "acquire",
        "--clients",
        "9",
        "--connect-timeout",
        "500ms",
    ]));
    assert_eq!(refused.status.code(), Some(69), "{refused:?}");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("of 9 clients could connect"), "{said}");
}

#[test]
fn a_store_that_is_not_there_and_wrong_usage_have_statuses_of_their_own() {
    let store = StoreAt::served();
    for wrong in [
        &["--clients", "0"][..],
        &["--clients", "1001"],
        &["--keys", "0"],
        &["--keys", "100001"],
        &["--seconds", "0"],
        &["--seconds", "3601"],
        &["--seconds", "nan"],
        &["--seconds", "2s"],
        &["--warm-up", "-1"],
        &["--threads", "0"],
        &["--threads", "65"],
        &["--prefix", "/"],
        &["--prefix", "no-path"],
        &["--prefix", "/a/"],
        &["--url", "x://y"],
        &["burn"],
    ] {
        let output = store.run(&[&["bench"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?} {output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
    let url = store.url.clone();
    drop(store);
    let gone = StoreAt::at(url).run(&short(&["--connect-timeout", "200ms"]));
    assert_eq!(gone.status.code(), Some(69), "{gone:?}");
    assert!(gone.stdout.is_empty(), "{gone:?}");
}
