//! Time from a set of a znode until the last of its many watchers has the event.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::time::{Duration, Instant};

use lockkeeper::{Session, ZnodePath};
use lockkeeper_store::CreateMode;
use tokio::sync::mpsc;

use crate::args::Args;
use crate::common::workloads::count_first_poll;
use crate::figures::{Row, Times, WriteTimes, medians};
use crate::ground::Ground;

/// More watchers share sessions.
const MOST_SESSIONS: usize = 100;

pub(crate) async fn measure(args: &Args) {
    for &watchers in &args.watchers {
        measure_with(args, watchers).await;
    }
}

async fn measure_with(args: &Args, watchers: usize) {
    let mut ground = Ground::fresh(args).await;
    let setter = ground.session().await;
    let sessions = ground.sessions(watchers.min(MOST_SESSIONS)).await;
    let path = ground.root().join("watched").expect("a valid path");
    let made = setter.create(&path, "", CreateMode::Persistent);
    made.await.expect("a znode to watch");
    let mut rounds = Vec::new();
    for _ in 0..args.timing.rounds {
        rounds.push(round(&setter, &sessions, &path, watchers, args).await);
    }
    let line = args.line("fanout").with("watchers", watchers);
    let line = line.with("sessions", sessions.len());
    let line = line.with("bytes", args.bytes);
    line.with("rounds", args.timing.rounds)
        .print(&medians(&rounds));
    drop((setter, sessions));
    ground.end().await;
}

async fn round(
    setter: &Session,
    sessions: &[Session],
    path: &ZnodePath,
    watchers: usize,
    args: &Args,
) -> Row {
    let (mut lasts, mut sets) = (Times::default(), Times::default());
    let data = vec![b'x'; args.bytes];
    let start = Instant::now();
    while start.elapsed() < args.round() || lasts.count() == 0 {
        let mut last = watch(sessions, path, watchers).await;
        let asked = Instant::now();
        let set = setter.set_data(path, data.clone(), None);
        set.await.expect("set");
        sets.push(asked.elapsed());
        let heard: Instant = last.recv().await.expect("the last one says so");
        lasts.push(heard.saturating_duration_since(asked));
    }
    let mut row = Row::new();
    lasts.write(&mut row, "last_event");
    sets.write(&mut row, "commit");
    row
}

/// Starts tasks that wait for the event. The last of them to get it sends the time.
async fn watch(
    sessions: &[Session],
    path: &ZnodePath,
    watchers: usize,
) -> mpsc::UnboundedReceiver<Instant> {
    let (say, last) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let left = Arc::new(AtomicUsize::new(watchers));
    for number in 0..watchers {
        let session = &sessions[number % sessions.len()];
        let (_, _, watcher) = session.watch_data(path).await.expect("a watch");
        let (say, waiting, left) = (say.clone(), waiting.clone(), left.clone());
        tokio::spawn(async move {
            let event = count_first_poll(watcher, &waiting).await;
            event.expect("the event");
            if left.fetch_sub(1, AcqRel) == 1 {
                // The receiver is gone if the benchmark has failed.
                let _ = say.send(Instant::now());
            }
        });
    }
    while waiting.load(Acquire) < watchers {
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    last
}
