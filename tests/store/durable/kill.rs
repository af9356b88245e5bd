//! A process that writes under load is killed (SIGKILL) at random moments, over and over on the same directory. Every
//! acknowledged operation must survive.
//!
//! The process is this test binary, started for one test with environment variables that make it the child.

use std::env;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper_store::{CreateMode, Durability, Store, StoreOptions, ZnodePath};
use testkit::{ChildProcess, Lines, Random, TempFolder, again, report, scaled, within_reason};

use super::child::{live, look_around};
use super::history::History;
use super::report::Said;

/// Make a process the child: the store's directory, and the number of its life.
const FOLDER: &str = "LOCKKEEPER_KILL_FOLDER";
const LIFE: &str = "LOCKKEEPER_KILL_LIFE";

const SEED: u64 = 0x10c4_4ee9;

/// A kill during startup happens within this time, other kills within this many reports.
const START: Duration = Duration::from_millis(60);
const REPORTS: u64 = 6_000;

/// 20 lives, or 100 with `tests/run --full`.
fn lives() -> u64 {
    scaled(20).min(100)
}

#[derive(Clone, Copy, Debug)]
enum KillPoint {
    /// This long after its start, while or soon after it opens the store. This test may sleep, because the kill may hit
    /// any moment.
    Start(Duration),
    /// After this many reports of acknowledged work.
    Reports(u64),
}

impl KillPoint {
    /// One in four is a [`Start`](Self::Start).
    fn random(dice: &mut Random) -> Self {
        match dice.below(4) {
            0 => Self::Start(Duration::from_micros(dice.below(START.as_micros() as u64))),
            _ => Self::Reports(dice.below(REPORTS)),
        }
    }
}

/// Small segments, so that the log switches often.
fn options(durability: Durability) -> StoreOptions {
    StoreOptions::new()
        .durability(durability)
        .segment_bytes(128 << 10, 512 << 10)
}

fn start(test: &str, folder: &Path, life: u64) -> ChildProcess {
    ChildProcess::spawn(
        again(module_path!(), test)
            .env(FOLDER, folder)
            .env(LIFE, life.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped()),
    )
}

/// Skips the test harness's own output.
fn reports(lines: &mut Lines) -> impl Iterator<Item = Said> {
    lines.filter_map(|line| Said::parse(&line))
}

fn live_and_die(test: &str, folder: &Path, life: u64, death: KillPoint, history: &mut History) {
    history.next_life();
    let mut child = start(test, folder, life);
    let mut lines = child.lines();
    match death {
        KillPoint::Start(after) => std::thread::sleep(after),
        KillPoint::Reports(count) => {
            let mut heard = 0;
            for said in reports(&mut lines).take(count as usize) {
                history.hear(said, life);
                heard += 1;
            }
            assert_eq!(heard, count, "the child has died: see its stderr");
        }
    }
    child.kill();
    // What it reported before its death was acknowledged too.
    for said in reports(&mut lines) {
        history.hear(said, life);
    }
}

fn survives(test: &str, durability: Durability) {
    // Children inherit the variable.
    let seed = env::var("LOCKKEEPER_KILL_SEED").map_or(SEED, |seed| seed.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    if let (Some(folder), Ok(life)) = (env::var_os(FOLDER), env::var(LIFE)) {
        println!();
        let life = life.parse().unwrap();
        return runtime.block_on(live(folder.as_ref(), options(durability), seed, life));
    }
    let start = Instant::now();
    let folder = TempFolder::new("kill");
    let mut history = History::new(seed, durability);
    let mut dice = Random(seed ^ durability as u64);
    for life in 0..lives() {
        let death = KillPoint::random(&mut dice);
        live_and_die(test, folder.path(), life, death, &mut history);
    }
    // Finally check in this process, once after the kill and once after a clean shutdown.
    for life in [lives(), lives() + 1] {
        history.next_life();
        let found = runtime.block_on(async {
            let store = Store::file_with(folder.path(), options(durability)).unwrap();
            let client = store.connect().await.unwrap();
            history.hear(Said::Store(client.store_id().unwrap().to_owned()), life);
            look_around(&client.session().await.unwrap()).await
        });
        for found in found {
            history.hear(Said::Found(found), life);
        }
        history.hear(Said::Ready, life);
    }
    assert!(history.acknowledged > 100 * lives(), "it was no load");
    runtime.block_on(within_reason(leave_behind(folder.path(), durability)));
    report(format_args!(
        "{test}: {} lives, {} operations acknowledged, {} of them lost, {} not taken, in {:.1?}",
        lives(),
        history.acknowledged,
        history.lost,
        history.refused,
        start.elapsed()
    ));
}

/// Writes until a snapshot replaces the first segment. Short lives on a busy machine may make no snapshot, because a
/// low-priority thread writes them.
async fn leave_behind(folder: &Path, durability: Durability) {
    let store = Store::file_with(folder, options(durability)).unwrap();
    let session = store.connect().await.unwrap().session().await.unwrap();
    let filler: ZnodePath = "/filler".parse().unwrap();
    let made = session.create_all(&filler, CreateMode::Persistent).await;
    made.unwrap();
    let data = vec![b'x'; 16 << 10];
    while names_in(folder).contains(&FIRST_SEGMENT.to_owned()) {
        let written = session.set_data(&filler, data.clone(), None).await;
        written.unwrap();
    }
    let has_snapshot = |name: &String| name.starts_with("snapshot-");
    assert!(names_in(folder).iter().any(has_snapshot));
}

const FIRST_SEGMENT: &str = "log-0000000000000000";

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn synced_writes_survive_every_kill() {
    survives("synced_writes_survive_every_kill", Durability::Fsync);
}

#[test]
fn persistent_znodes_survive_every_kill_when_ephemerals_are_not_synced() {
    survives(
        "persistent_znodes_survive_every_kill_when_ephemerals_are_not_synced",
        Durability::DelayedRestart,
    );
}

#[test]
fn a_log_that_is_never_synced_is_cut_at_one_point_by_every_kill() {
    survives(
        "a_log_that_is_never_synced_is_cut_at_one_point_by_every_kill",
        Durability::None,
    );
}
