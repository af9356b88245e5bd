//! A guard dropped as the program ends releases its lock, in each way in which a program can drop it.
//!
//! The program is this test binary, started for one test. A proxy between it and the server records everything that it
//! has written before it ends.

mod child;
mod drops;

use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};

use testkit::{
    ChildProcess, Lines, Proxy, SWEEP, Served, TempFolder, again, rounds, within_reason,
};

use child::{LOCKS, Recipe, TEST, WAYS, Way};

use crate::common::LONG;

const DELETE: i32 = 2;
const MULTI: i32 = 14;
const CLOSE_SESSION: i32 = -11;

const RUNS: u64 = 2;

#[test]
fn a_process_that_ends() {
    child::run();
}

#[tokio::test]
async fn every_end_releases_what_was_held_served() {
    let served = Served::start(SWEEP);
    within_reason(every_end("lockkeeper", served.address())).await;
}

#[tokio::test]
async fn every_end_releases_what_was_held_zookeeper() {
    let server = testkit::zookeeper();
    within_reason(every_end("zookeeper", server.address())).await;
}

#[tokio::test]
async fn every_end_releases_what_was_held_file() {
    for (way, recipe) in WAYS.into_iter().zip(LOCKS.into_iter().cycle()) {
        let folder = TempFolder::new("end");
        let url = format!("file:{}", folder.path().display());
        let (mut child, _lines) = start(&url, way, recipe);
        let status = child.wait().unwrap();
        assert!(way.ends_with(status), "{way:?}, {recipe:?}: {status}");
        is_free(&url, recipe).await;
    }
}

/// The program sends its release over HTTP/2, so look at the queue and not at the bytes.
#[tokio::test]
async fn every_end_releases_what_was_held_etcd() {
    let server = testkit::etcd().address();
    for (way, recipe) in WAYS.into_iter().zip(LOCKS.into_iter().cycle()) {
        let url = format!("etcd://{server}/{}", testkit::unique("end"));
        let (mut child, mut lines) = start(&url, way, recipe);
        let status = child.wait().unwrap();
        assert!(way.ends_with(status), "{way:?}, {recipe:?}: {status}");
        let is_late = lines.any(|line| line.contains(child::LATE));
        let is_free = tokio::time::timeout(LONG / 4, is_free(&url, recipe)).await;
        assert!(is_free.is_ok() || is_late, "{way:?} leaves {recipe:?}");
    }
}

async fn every_end(scheme: &str, server: SocketAddr) {
    let mut left = Vec::new();
    for _ in rounds(RUNS) {
        for way in WAYS {
            for recipe in LOCKS {
                let mut end = End::new(scheme, server);
                let mut outcome = end.of(way, recipe);
                // The library gave up waiting and logged a warning. This happens on a busy machine and is no fault. A
                // missing release without the warning is one.
                while outcome == Outcome::Late {
                    end = End::new(scheme, server);
                    outcome = end.of(way, recipe);
                }
                match outcome {
                    Outcome::Released => is_free(&end.direct, recipe).await,
                    _ => left.push((way, recipe)),
                }
            }
        }
    }
    assert!(
        left.is_empty(),
        "locks outlived {} processes: {left:?}",
        left.len()
    );
}

/// What became of the lock of a process that has ended.
#[derive(Clone, Copy, PartialEq)]
enum Outcome {
    /// Its release was completely written.
    Released,
    Left,
    /// The drop waited as long as it may. On a busy machine the writing thread may not run in that time.
    Late,
}

/// A lock for one child, and the proxy to it.
struct End {
    proxy: Proxy,
    /// The URL without the proxy.
    direct: String,
    url: String,
}

impl End {
    fn new(scheme: &str, server: SocketAddr) -> Self {
        let (proxy, chroot) = (Proxy::to(server), testkit::unique("end"));
        Self {
            direct: format!("{scheme}://{server}/{chroot}"),
            url: format!("{scheme}://{}/{chroot}", proxy.hosts()),
            proxy,
        }
    }

    fn of(&self, way: Way, recipe: Recipe) -> Outcome {
        let (mut child, mut lines) = start(&self.url, way, recipe);
        self.proxy.take_frames();
        let status = child.wait().unwrap();
        assert!(way.ends_with(status), "{way:?}, {recipe:?}: {status}");
        // The process has ended, but its last frames may still be in the proxy's sockets.
        self.proxy.wait_until_closed();
        let is_late = lines.any(|line| line.contains(child::LATE));
        let frames = self.proxy.take_frames();
        let written = |operation| {
            let sent = frames.iter().filter(|frame| frame.to_server);
            sent.filter(|frame| frame.operation == operation).count()
        };
        let is_closed = written(CLOSE_SESSION) > 0;
        let is_released = match way {
            // The abandoned wait does not know its entry, so closeSession removes it.
            Way::LastClient => is_closed,
            _ => is_closed || written(DELETE) + written(MULTI) >= recipe.nodes(),
        };
        match is_released {
            true => Outcome::Released,
            false if is_late => Outcome::Late,
            false => Outcome::Left,
        }
    }
}

fn start(url: &str, way: Way, recipe: Recipe) -> (ChildProcess, Lines) {
    let mut child = ChildProcess::spawn(
        again(module_path!(), TEST)
            .envs(child::environment(url, way, recipe))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null()),
    );
    let mut lines = child.lines();
    lines.wait_for(child::HOLDS);
    (child, lines)
}

/// Asserts that the next contender is let in long before the ended process's session expires.
async fn is_free(url: &str, recipe: Recipe) {
    let client = child::connect(url).await;
    drop(recipe.take(&client).await);
    client.close().await.unwrap();
}

impl Way {
    fn ends_with(self, status: ExitStatus) -> bool {
        match self {
            Self::Killed => status.code().is_none(),
            way => status.code() == Some(way.code()),
        }
    }
}
