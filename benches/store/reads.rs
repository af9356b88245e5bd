//! Some clients read while others write, the same znodes or others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lockkeeper::{Session, ZnodePath};

use crate::args::{Args, Workload};
use crate::figures::{Row, Times, WriteTimes, medians};
use crate::ground::Ground;
use crate::writes::{Writer, write_for};

#[derive(Clone, Copy)]
enum Which {
    /// Znodes that are never written.
    Unwritten,
    /// Znodes that the writers write.
    Written,
}

pub(crate) async fn measure(args: &Args) {
    for clients in args.clients(&[1, 8, 64]) {
        measure_with(args, clients).await;
    }
}

/// Measures readers without writers, and with as many writers.
async fn measure_with(args: &Args, clients: usize) {
    let mut ground = Ground::fresh(args).await;
    let (mut writers, mut unwritten) = (Vec::new(), Vec::new());
    for _ in 0..clients {
        writers.push(Writer::make(&mut ground, Workload::Set, args.bytes).await);
        let other = Writer::make(&mut ground, Workload::Set, args.bytes).await;
        unwritten.push(other.path().clone());
    }
    let written = writers.iter().map(|writer| writer.path().clone()).collect();
    let sessions = ground.sessions(clients).await;
    let cases = [
        ("unwritten", None),
        ("unwritten", Some(Which::Unwritten)),
        ("written", Some(Which::Written)),
    ];
    let mut rounds = cases.map(|_| Vec::new());
    for _ in 0..args.timing.rounds {
        for ((_, beside), rows) in cases.iter().zip(&mut rounds) {
            let paths = match beside {
                Some(Which::Written) => &written,
                _ => &unwritten,
            };
            let writers = beside.map_or(&[][..], |_| &writers[..]);
            rows.push(round(&sessions, paths, writers, args.round()).await);
        }
    }
    let medians = rounds.each_ref().map(|rows| medians(rows));
    for ((znodes, beside), row) in cases.iter().zip(&medians) {
        let writers = beside.map_or(0, |_| clients);
        let line = args.line("reads").with("clients", clients);
        let line = line.with("writers", writers).with("znodes", *znodes);
        line.with("bytes", args.bytes)
            .with("rounds", args.timing.rounds)
            .print(row);
    }
    for ((znodes, _), row) in cases.iter().zip(&medians).skip(1) {
        for field in ["reads_per_s", "read_p50_us", "read_p99_us"] {
            let line = args.line("reads").with("clients", clients);
            let line = line.with("znodes", *znodes);
            line.print_ratio(field, "without writers", row[field] / medians[0][field]);
        }
    }
    drop((writers, sessions));
    ground.end().await;
}

async fn round(
    sessions: &[Session],
    paths: &Vec<ZnodePath>,
    writers: &[Arc<Writer>],
    time: Duration,
) -> Row {
    let stop = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let readers: Vec<_> = sessions
        .iter()
        .zip(paths)
        .map(|(session, path)| tokio::spawn(read(session.clone(), path.clone(), stop.clone())))
        .collect();
    let (writes, writes_per_s) = write_for(writers, time).await;
    stop.store(true, Relaxed);
    let mut reads = Times::default();
    for reader in readers {
        reads.append(reader.await.expect("a reader ends well"));
    }
    let mut row = Row::new();
    let per_s = reads.count() as f64 / start.elapsed().as_secs_f64();
    row.insert("reads_per_s".into(), per_s);
    reads.write(&mut row, "read");
    if writes.count() > 0 {
        row.insert("writes_per_s".into(), writes_per_s);
        writes.write(&mut row, "commit");
    }
    row
}

async fn read(session: Session, path: ZnodePath, stop: Arc<AtomicBool>) -> Times {
    let mut times = Times::default();
    while !stop.load(Relaxed) {
        let asked = Instant::now();
        session.get_data(&path).await.expect("data");
        times.push(asked.elapsed());
        // See `Writing::begin`.
        tokio::task::coop::consume_budget().await;
    }
    times
}
