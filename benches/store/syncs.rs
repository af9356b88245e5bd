//! The disk's own time for the writes of a log, which is the floor of every durable write.

use crate::args::Args;
use crate::common::disk::{Floor, Way};
use crate::figures::medians;
use crate::{ground, sketch, writes};

/// Measures the ways in turns, round by round, then the minimal group commit.
pub(crate) async fn measure(args: &Args) {
    let Some(parent) = args.folder() else {
        return args
            .line("syncs")
            .print_skipped("only file: has a disk of its own");
    };
    let folder = ground::fresh_folder(&parent);
    let mut floors = Way::ALL.map(|way| Some(Floor::make(&folder, way)));
    let mut rounds = Way::ALL.map(|_| Vec::new());
    for _ in 0..args.timing.rounds {
        for (floor, rows) in floors.iter_mut().zip(&mut rounds) {
            let taken = floor.take().expect("put back");
            let (taken, row) = taken.round_aside(args.round()).await;
            *floor = Some(taken);
            rows.push(row);
        }
    }
    for (way, rows) in Way::ALL.into_iter().zip(&rounds) {
        let line = args.line("syncs").with("way", way.name());
        line.with("bytes", way.bytes()).print(&medians(rows));
    }
    drop(floors);
    for clients in args.clients(&[1, 8, 64, 512]) {
        let mut rows = Vec::new();
        for _ in 0..args.timing.rounds {
            let (times, per_s) = sketch::round(&folder, clients, args.bytes, args.round()).await;
            rows.push(writes::row_of(times, per_s));
        }
        let line = args.line("syncs").with("system", "sketch");
        let line = line.with("way", "group").with("clients", clients);
        line.with("bytes", args.bytes).print(&medians(&rows));
    }
    ground::remove_folder(&folder);
}
