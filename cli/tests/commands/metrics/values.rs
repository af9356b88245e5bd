//! The values of metrics immediately after the events that they count.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper::Mutex;
use lockkeeper_store::{Client, ConnectOptions, CreateMode, Error, Op, connect_with};
use rustix::process::Signal;

use super::super::access::digest;
use super::*;

async fn create(client: &Client, path: &str, mode: CreateMode) -> Result<(), Error> {
    let session = client.session().await?;
    let created = session.create(&path.parse().unwrap(), "data", mode).await;
    created.map(drop)
}

#[test]
fn sessions_connections_and_znodes_are_counted_as_they_come_and_go() {
    let server = Server::start(&mut serve_metrics("memory"));
    let at = metrics_of(&server);
    let before = until(&at, "lockkeeper_server_locks_held", 0.0);
    assert_eq!(before.at("lockkeeper_sessions"), 0.0);
    assert_eq!(before.at("lockkeeper_connections{transport=\"tcp\"}"), 0.0);
    block_on(async {
        let client = server.connect().await;
        // Read the metrics after the first client has connected. This client creates the znode with the id of the new
        // store.
        let session = client.session().await.unwrap();
        let before = Samples::read(&at);
        create(&client, "/a", CreateMode::Persistent).await.unwrap();
        create(&client, "/b", CreateMode::Ephemeral).await.unwrap();
        let missing = session.get_data(&"/missing".parse().unwrap()).await;
        assert!(matches!(missing, Err(Error::NoNode { .. })));
        let watched = session.watch_data(&"/a".parse().unwrap()).await.unwrap();
        let during = Samples::read(&at);
        for (name, value) in [
            ("lockkeeper_sessions", 1.0),
            ("lockkeeper_connections{transport=\"tcp\"}", 1.0),
            ("lockkeeper_connections{transport=\"unix\"}", 0.0),
            ("lockkeeper_connections_accepted_total", 1.0),
            ("lockkeeper_handshakes_total", 1.0),
            ("lockkeeper_half_open_connections", 0.0),
            ("lockkeeper_ephemeral_znodes", 1.0),
            ("lockkeeper_outstanding_requests", 0.0),
            ("lockkeeper_ready", 1.0),
        ] {
            assert_eq!(during.at(name), value, "{name}");
        }
        let since = |name: &str| during.at(name) - before.at(name);
        assert_eq!(since("lockkeeper_znodes"), 2.0);
        assert_eq!(since("lockkeeper_watches"), 1.0);
        assert_eq!(
            since("lockkeeper_request_errors_total{code=\"no_node\"}"),
            1.0
        );
        assert_eq!(
            since("lockkeeper_requests_total{operation=\"get_data\"}"),
            2.0
        );
        assert_eq!(
            since("lockkeeper_requests_total{operation=\"set_data\"}"),
            0.0
        );
        assert!(since("lockkeeper_memory_bytes{budget=\"store\",use=\"znodes\"}") > 0.0);
        assert!(since("lockkeeper_memory_bytes{budget=\"store\",use=\"watches\"}") > 0.0);
        assert!(since("lockkeeper_received_bytes_total") > 0.0);
        assert!(during.at("lockkeeper_request_duration_seconds_count") >= 5.0);
        drop(watched);
        client.close().await.unwrap();
    });
    let after = Samples::read(&at);
    assert_eq!(after.at("lockkeeper_sessions"), 0.0);
    assert_eq!(after.at("lockkeeper_ephemeral_znodes"), 0.0);
    assert_eq!(
        after.at("lockkeeper_sessions_ended_total{reason=\"closed\"}"),
        1.0
    );
    assert_eq!(
        after.at("lockkeeper_sessions_ended_total{reason=\"expired\"}"),
        0.0
    );
    ended_well(&server.end(Signal::TERM));
}

/// Percentiles need the buckets of a histogram. Refused requests are also counted.
#[test]
fn every_request_is_in_the_histogram_of_durations() {
    let server = Server::start(&mut serve_metrics("memory"));
    let at = metrics_of(&server);
    block_on(async {
        let client = server.connect().await;
        create(&client, "/a", CreateMode::Persistent).await.unwrap();
        let again = create(&client, "/a", CreateMode::Persistent).await;
        again.unwrap_err();
    });
    let page = request(&at, "GET", "/metrics").body;
    let samples = Samples::of(&page);
    let of_requests = |line: &&str| line.starts_with("lockkeeper_requests_total{");
    let requests = page.lines().filter(of_requests);
    let requests = requests.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap());
    let name = "lockkeeper_request_duration_seconds";
    let up_to = |bound: &str| samples.at(&format!("{name}_bucket{{le=\"{bound}\"}}"));
    assert!(up_to("0.0001") <= up_to("0.01") && up_to("0.01") <= up_to("10"));
    assert_eq!(up_to("+Inf"), samples.at(&format!("{name}_count")));
    assert_eq!(up_to("+Inf"), requests.sum::<f64>());
    assert!(samples.at(&format!("{name}_sum")) > 0.0);
}

pub(super) fn until(at: &str, name: &str, value: f64) -> Samples {
    for _ in 0..1_000 {
        let samples = Samples::read(at);
        if samples.get(name) == Some(value) {
            return samples;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{name} is not {value}: {:#?}", Samples::read(at));
}

#[test]
fn holders_waiters_and_hand_overs_are_counted() {
    counts_locks(&mut serve_metrics("memory"));
}

#[test]
fn a_dashboard_and_the_metrics_count_the_same_locks() {
    counts_locks(serve_metrics("memory").arg("--dashboard=127.0.0.1:0"));
}

fn counts_locks(command: &mut Command) {
    let server = Server::start(command);
    let at = metrics_of(&server);
    let oldest = "lockkeeper_server_oldest_hold_seconds";
    let free = until(&at, "lockkeeper_server_locks_held", 0.0);
    assert_eq!(free.at(oldest), 0.0);
    block_on(async {
        let client = server.connect().await;
        // Read the metrics on another thread, so that the waiter can continue.
        let until = async |name: &'static str| {
            let at = at.clone();
            let read = tokio::task::spawn_blocking(move || until(&at, name, 1.0));
            read.await.unwrap()
        };
        let mutex = |name: &str| Mutex::new(&client, format!("/locks/{name}")).unwrap();
        let (one, _other) = (mutex("one"), mutex("other").lock().await.unwrap());
        let guard = one.lock().await.unwrap();
        let waiter = tokio::spawn(async move { one.lock().await });
        let held = until("lockkeeper_server_lock_waiters").await;
        assert_eq!(held.at("lockkeeper_server_locks_held"), 2.0);
        assert_eq!(held.at("lockkeeper_server_lock_hand_overs_total"), 0.0);
        assert!(held.at(oldest) > 0.0);
        guard.release().await.unwrap();
        let _next = waiter.await.unwrap().unwrap();
        let passed = until("lockkeeper_server_lock_hand_overs_total").await;
        assert_eq!(passed.at("lockkeeper_server_locks_held"), 2.0);
        assert_eq!(passed.at("lockkeeper_server_lock_waiters"), 0.0);
    });
}

#[test]
fn a_failed_multi_is_an_error_with_its_code() {
    let server = Server::start(&mut serve_metrics("memory"));
    let at = metrics_of(&server);
    block_on(async {
        let client = server.connect().await;
        let session = client.session().await.unwrap();
        let before = Samples::read(&at);
        let (path, version) = ("/a".parse().unwrap(), Some(7));
        create(&client, "/a", CreateMode::Persistent).await.unwrap();
        let ops = [Op::Delete { path, version }];
        session.multi(ops).await.unwrap_err();
        let after = Samples::read(&at);
        for name in [
            "lockkeeper_requests_total{operation=\"multi\"}",
            "lockkeeper_request_errors_total{code=\"bad_version\"}",
        ] {
            assert_eq!(after.at(name) - before.at(name), 1.0, "{name}");
        }
    });
}

#[test]
fn a_session_of_a_silent_client_is_counted_as_expired() {
    let server = Server::start(serve_metrics("memory").arg("--tick=100ms"));
    let at = metrics_of(&server);
    let mut stream = TcpStream::connect(server.address()).unwrap();
    // The fields of the handshake are version, last zxid, timeout in ms, session, password and read-only.
    let (timeout, length) = (200_u32.to_be_bytes(), 16_u32.to_be_bytes());
    let body = [&[0; 12][..], &timeout, &[0; 8], &length, &[0; 16], &[0]].concat();
    let length = (body.len() as u32).to_be_bytes();
    stream.write_all(&[&length[..], &body].concat()).unwrap();
    // The server closes the connection of an expired session.
    stream.read_to_end(&mut Vec::new()).unwrap();
    let after = Samples::read(&at);
    assert_eq!(
        after.at("lockkeeper_sessions_ended_total{reason=\"expired\"}"),
        1.0
    );
    assert_eq!(
        after.at("lockkeeper_sessions_ended_total{reason=\"closed\"}"),
        0.0
    );
    assert_eq!(after.at("lockkeeper_sessions"), 0.0);
}

#[cfg(target_os = "linux")]
#[test]
fn a_session_that_ends_with_its_process_is_counted_as_such() {
    let folder = TempFolder::short();
    let socket = format!("unix:{}", folder.at("s").display());
    let server = Server::start(serve_metrics("memory").args(["--listen", &socket]));
    let at = metrics_of(&server);
    let mut holder = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    holder.args([
        "bench-holder",
        "job",
        "--url",
        &format!("lockkeeper+{}", socket.replacen("unix:", "unix://", 1)),
    ]);
    holder.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    holder
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut [0; 1])
        .unwrap();
    let held = Samples::read(&at);
    assert_eq!(held.at("lockkeeper_connections{transport=\"unix\"}"), 1.0);
    assert_eq!(held.at("lockkeeper_ephemeral_znodes"), 1.0);
    holder.kill().unwrap();
    holder.wait().unwrap();
    server.logs("session ended with its process");
    let after = Samples::read(&at);
    assert_eq!(
        after.at("lockkeeper_sessions_ended_total{reason=\"process_exited\"}"),
        1.0
    );
    assert_eq!(
        after.at("lockkeeper_sessions_ended_total{reason=\"expired\"}"),
        0.0
    );
    assert_eq!(after.at("lockkeeper_ephemeral_znodes"), 0.0);
}

#[test]
fn refusals_are_counted_by_their_reason() {
    let mut command = serve_metrics("memory");
    command.args([
        "--max-sessions=2",
        "--max-znodes=8",
        "--max-connections-per-address=3",
    ]);
    let server = Server::start(&mut command);
    let at = metrics_of(&server);
    until(&at, "lockkeeper_server_locks_held", 0.0);
    let url = format!("lockkeeper://{}", server.address());
    block_on(async {
        let soon = || ConnectOptions::new().connect_timeout(Duration::from_secs(2));
        let (one, _two) = (server.connect().await, server.connect().await);
        connect_with(&url, soon()).await.unwrap_err();
        let samples = Samples::read(&at);
        assert!(samples.at("lockkeeper_sessions_refused_total{reason=\"limit\"}") >= 1.0);
        assert_eq!(samples.at("lockkeeper_sessions"), 2.0);

        let mut number = 0;
        let error = loop {
            number += 1;
            let created = create(&one, &format!("/n{number}"), CreateMode::Persistent).await;
            if let Err(error) = created {
                break error;
            }
        };
        let samples = Samples::read(&at);
        assert_eq!(
            samples.at("lockkeeper_requests_refused_total{reason=\"limit\"}"),
            1.0,
            "{error}"
        );
        assert_eq!(
            samples.at("lockkeeper_requests_refused_total{reason=\"disk_full\"}"),
            0.0
        );
        assert_eq!(
            samples.at("lockkeeper_request_errors_total{code=\"system_error\"}"),
            1.0
        );

        // The server allows three connections per address, and the two sessions already use two of them.
        let third = TcpStream::connect(server.address()).unwrap();
        let mut fourth = TcpStream::connect(server.address()).unwrap();
        fourth.read_to_end(&mut Vec::new()).unwrap();
        let samples = Samples::read(&at);
        assert!(
            samples.at("lockkeeper_connections_refused_total{reason=\"limit_of_address\"}") >= 1.0
        );
        assert_eq!(
            samples.at("lockkeeper_connections_refused_total{reason=\"limit\"}"),
            0.0
        );
        drop(third);
    });
}

#[test]
fn a_wrong_password_is_counted() {
    let mut command = serve_metrics("memory");
    command.args(["--require-auth", "--user", &digest("jane", "secret")]);
    let server = Server::start(&mut command);
    let at = metrics_of(&server);
    let url = format!("lockkeeper://{}", server.address());
    let connect = async |password: &str| {
        let options = ConnectOptions::new().auth("digest", password);
        let options = options.connect_timeout(Duration::from_secs(2));
        let client = connect_with(&url, options).await?;
        create(&client, "/a", CreateMode::Persistent).await
    };
    let failed = "lockkeeper_failed_logins_total{kind=\"identity\"}";
    block_on(async {
        connect("jane:secret").await.unwrap();
        assert_eq!(Samples::read(&at).at(failed), 0.0);
        connect("jane:wrong").await.unwrap_err();
        assert!(Samples::read(&at).at(failed) >= 1.0);
    });
}

#[test]
fn a_durable_write_is_a_sync_of_the_log() {
    let folder = TempFolder::short();
    let data = folder.at("data");
    let server = Server::start(&mut serve_metrics(data.to_str().unwrap()));
    let at = metrics_of(&server);
    let before = Samples::read(&at);
    // Keep the client until the end. Closing its session would cause another transaction at an unknown time.
    let client = block_on(async {
        let client = server.connect().await;
        put(&client, "/a", "kept").await;
        client
    });
    let after = Samples::read(&at);
    for name in [
        "lockkeeper_log_sync_seconds_count",
        "lockkeeper_log_sync_seconds_bucket{le=\"+Inf\"}",
        "lockkeeper_log_sync_seconds_sum",
        "lockkeeper_log_batches_total",
        "lockkeeper_log_written_bytes_total",
        "lockkeeper_zxid_in_epoch",
    ] {
        assert!(after.at(name) > before.at(name), "{name}");
    }
    let files = std::fs::read_dir(&data).unwrap();
    let bytes: u64 = files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert_eq!(after.at("lockkeeper_disk_bytes"), bytes as f64);
    assert_eq!(after.at("lockkeeper_disk_full"), 0.0);
    assert_eq!(after.at("lockkeeper_snapshots"), 0.0);
    assert_eq!(after.get("lockkeeper_snapshot_timestamp_seconds"), None);
    let seen = inspected(&data);
    let epoch = after.at("lockkeeper_zxid_epoch") as u64;
    let zxid = epoch << 32 | after.at("lockkeeper_zxid_in_epoch") as u64;
    assert_eq!(seen["zxid"], format!("{zxid:#x}"), "{seen}");
    let version = concat!(
        "lockkeeper_build_info{version=\"",
        env!("CARGO_PKG_VERSION"),
        "\"}"
    );
    assert_eq!(after.at(version), 1.0);
    drop(client);
    ended_well(&server.end(Signal::TERM));
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_is_the_servers() {
    let server = Server::start(&mut serve_metrics("memory"));
    let samples = Samples::read(&metrics_of(&server));
    let pid = server.pid().as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let high = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let high: f64 = high
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    let resident = samples.at("process_resident_memory_bytes");
    assert!(resident > 0.0 && resident <= high * 1024.0, "{resident}");
    let started = samples.at("process_start_time_seconds");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap().as_secs_f64();
    // Allow a difference of a tenth of a second, because the system rounds times to ticks.
    assert!(
        started < now + 0.1 && started > now - 600.0,
        "{started}, {now}"
    );
    assert!(samples.at("process_open_fds") > 3.0);
}

#[test]
fn mntr_and_the_metrics_show_the_same() {
    let mut command = serve_metrics("memory");
    let server = Server::start(command.arg("--four-letter-words=mntr"));
    let at = metrics_of(&server);
    until(&at, "lockkeeper_server_locks_held", 0.0);
    let client = block_on(async {
        let client = server.connect().await;
        create(&client, "/a", CreateMode::Persistent).await.unwrap();
        create(&client, "/b", CreateMode::Ephemeral).await.unwrap();
        client
    });
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(b"mntr").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let metrics = Samples::read(&at);
    let mntr = |name: &str| -> f64 {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        line.unwrap_or_else(|| panic!("no {name}: {text}"))
            .parse()
            .unwrap()
    };
    for (word, metric) in [
        ("zk_ephemerals_count", "lockkeeper_ephemeral_znodes"),
        ("zk_watch_count", "lockkeeper_watches"),
        ("zk_approximate_data_size", "lockkeeper_data_bytes"),
        (
            "zk_lockkeeper_connections_entered",
            "lockkeeper_connections_accepted_total",
        ),
        (
            "zk_lockkeeper_znode_bytes",
            "lockkeeper_memory_bytes{budget=\"store\",use=\"znodes\"}",
        ),
        (
            "zk_lockkeeper_session_bytes",
            "lockkeeper_memory_bytes{budget=\"store\",use=\"sessions\"}",
        ),
        (
            "zk_lockkeeper_max_store_bytes",
            "lockkeeper_memory_limit_bytes{budget=\"store\"}",
        ),
    ] {
        assert_eq!(mntr(word), metrics.at(metric), "{word}");
    }
    // ZooKeeper counts the root twice.
    assert_eq!(
        mntr("zk_znode_count"),
        metrics.at("lockkeeper_znodes") + 1.0
    );
    drop(client);
}

#[test]
fn prometheus_accepts_every_page() {
    let folder = TempFolder::short();
    for data in ["memory", folder.at("data").to_str().unwrap()] {
        let server = Server::start(&mut serve_metrics(data));
        block_on(async { put(&server.connect().await, "/a", "data").await });
        promtool(&request(&metrics_of(&server), "GET", "/metrics").body);
    }
    let registry = prometheus::Registry::new();
    lockkeeper::metrics::register(&registry).unwrap();
    block_on(async {
        let client = lockkeeper::connect("memory:").await.unwrap();
        let mutex = lockkeeper::Mutex::new(&client, "/lock").unwrap();
        drop(mutex.lock().await.unwrap());
    });
    let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather());
    let text = text.unwrap();
    assert!(
        text.contains("lockkeeper_lock_wait_seconds_count"),
        "{text}"
    );
    promtool(&text);
}
