//! Draining.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use lockkeeper::Mutex;
use lockkeeper_store::{CreateMode, NotReady};
use rustix::process::Signal;

#[cfg(target_os = "linux")]
use super::super::dashboard::client::Events;
use super::super::locks::named;
use super::super::metrics::http::{Samples, request};
use super::*;

const MEMORY: &str = "data = \"memory\"\n";

async fn refused(server: &Server) {
    let options = ConnectOptions::new().connect_timeout(Duration::from_secs(1));
    let url = format!("lockkeeper://{}", server.address());
    let refused = connect_with(&url, options).await;
    assert!(
        matches!(refused, Err(Error::ConnectFailed { .. })),
        "{refused:?}"
    );
}

#[test]
fn holders_and_waiters_finish_and_then_the_server_stops() {
    let place = Place::new(MEMORY);
    let server = place.start(&["--metrics-listen=127.0.0.1:0"]);
    let (_, metrics) = server.ready.rsplit_once(" metrics ").unwrap();
    let mut waiting = block_on(async {
        let (holder, waiter) = (server.connect().await, server.connect().await);
        let guard = Mutex::new(&holder, named("a"))
            .unwrap()
            .lock()
            .await
            .unwrap();
        let queued = tokio::spawn({
            let mutex = Mutex::new(&waiter, named("a")).unwrap();
            async move { mutex.lock().await }
        });
        while place
            .sessions()
            .iter()
            .filter(|it| it["ephemerals"] == 1)
            .count()
            < 2
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut waiting = place.admin_command(&["drain", "--wait"]);
        let waiting = waiting.stdout(Stdio::piped()).spawn().unwrap();
        server.logs("draining: no more sessions are opened");
        let ready = request(metrics, "GET", "/readyz");
        assert_eq!(
            (ready.status, ready.body),
            (503, format!("{}\n", NotReady::Draining))
        );
        assert_eq!(request(metrics, "GET", "/healthz").status, 200);
        assert_eq!(Samples::read(metrics).at("lockkeeper_draining"), 1.0);
        assert_eq!(success(&place.admin(&["word", "isro"])), "null\n");
        assert_eq!(success(&place.admin(&["word", "ruok"])), "imok\n");
        refused(&server).await;
        assert!(
            Samples::read(metrics).at("lockkeeper_sessions_refused_total{reason=\"draining\"}")
                > 0.0
        );

        guard.release().await.unwrap();
        let guard = queued.await.unwrap().unwrap();
        holder.close().await.unwrap();
        assert!(guard.is_held());
        guard.release().await.unwrap();
        waiter.close().await.unwrap();
        waiting
    });
    ended_well(&server.ended());
    let status = waiting.wait().unwrap();
    assert!(status.success());
    let told = waiting.wait_with_output().unwrap();
    assert_eq!(
        out(&told),
        "draining: 2 sessions are left\nthe server has stopped\n"
    );
}

#[test]
fn a_drain_is_undone() {
    let place = Place::new(MEMORY);
    let server = place.start(&["--drain-timeout=1h"]);
    block_on(async {
        let _client = server.connect().await;
        assert_eq!(
            success(&place.admin(&["drain"])),
            "draining: 1 sessions are left\n"
        );
        refused(&server).await;
        assert_eq!(
            success(&place.admin(&["undrain"])),
            "sessions are opened again\n"
        );
        server.connect().await;
        let twice = place.admin(&["undrain"]);
        assert_eq!(failure(&twice), "lockkeeper: the server is not draining\n");
    });
    ended_well(&server.end(Signal::TERM));
}

/// Regression test: the server must not keep the connection of each such client until the end of the drain.
#[cfg(target_os = "linux")]
#[test]
fn clients_that_no_longer_wait_for_a_drain_leave_nothing_behind() {
    let place = Place::new(MEMORY);
    let server = place.start(&["--drain-timeout=1h"]);
    let files = format!("/proc/{}/fd", server.pid().as_raw_pid());
    let open = || std::fs::read_dir(&files).unwrap().count();
    let _client = block_on(server.connect());
    let before = open();
    for _ in 0..10 {
        let mut waiting = place.admin_command(&["drain", "--wait"]);
        let mut waiting = waiting.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(waiting.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        waiting.kill().unwrap();
        waiting.wait().unwrap();
    }
    let start = Instant::now();
    while open() > before {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{before} files were open: {}",
            open()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn after_its_time_it_stops_and_sessions_are_kept_for_the_next_start() {
    let place = Place::new("");
    let data = place.at("data");
    let data = data.to_str().unwrap();
    let server = place.start(&["--data", data, "--drain-timeout=100ms"]);
    let ended = block_on(async {
        let client = server.connect().await;
        let session = client.session().await.unwrap();
        let path = "/held".parse().unwrap();
        session
            .create(&path, "", CreateMode::Ephemeral)
            .await
            .unwrap();
        success(&place.admin(&["drain"]));
        server.ended()
    });
    ended_well(&ended);
    assert!(ended.log.contains("the drain's time is over"), "{ended:?}");
    let server = place.start(&["--data", data]);
    assert_eq!(
        place.sessions()[0]["ephemerals"],
        1,
        "it may come back to its lock"
    );
    ended_well(&server.end(Signal::TERM));
}

#[test]
fn an_empty_server_stops_at_once_and_the_answer_arrives() {
    let place = Place::new(MEMORY);
    let server = place.start(&[]);
    assert_eq!(
        success(&place.admin(&["drain"])),
        "draining: 0 sessions are left\n"
    );
    ended_well(&server.ended());
    assert_eq!(
        place.admin(&["sessions"]).status.code(),
        Some(69),
        "no server"
    );
}

/// A ZooKeeper client has a list of servers, and tries the next one when a server refuses a session.
#[test]
fn a_client_goes_to_the_next_server() {
    let (one, other) = (Place::new(MEMORY), Place::new(MEMORY));
    let (draining, open) = (one.start(&[]), other.start(&[]));
    block_on(async {
        let _keeps_it = draining.connect().await;
        success(&one.admin(&["drain"]));
        let url = format!("zookeeper://{},{}", draining.address(), open.address());
        let client = connect_with(&url, ConnectOptions::new()).await.unwrap();
        assert_eq!(other.sessions().len(), 1);
        assert_eq!(one.sessions().len(), 1);
        client.close().await.unwrap();
    });
    // The server ends with its last session. We send it no signal, because a signal during the drain would stop it
    // immediately.
    ended_well(&draining.ended());
    ended_well(&open.end(Signal::TERM));
}

#[cfg(target_os = "linux")]
#[test]
fn the_dashboard_stays_until_the_clients_have_gone_and_a_drain_does_not_wait_for_it() {
    let place = Place::new(MEMORY);
    let server = place.start(&["--dashboard=127.0.0.1:0"]);
    let (_, dashboard) = server.ready.rsplit_once(" dashboard ").unwrap();
    let mut list = Events::of(dashboard, "/api/locks");
    list.until("locks", |it| it["locks"] == 0);
    block_on(async {
        let client = server.connect().await;
        let mutex = Mutex::new(&client, named("a")).unwrap();
        let guard = mutex.lock().await.unwrap();
        success(&place.admin(&["drain"]));
        server.logs("draining: no more sessions are opened");
        list.until("locks", |it| it["held"] == 1);
        guard.release().await.unwrap();
        list.until("locks", |it| it["held"] == 0);
        client.close().await.unwrap();
    });
    ended_well(&server.ended());
    while list.next().is_some() {}
}
