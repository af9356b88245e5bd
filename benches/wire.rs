//! A server's own speed, without any client library: frames of ZooKeeper's protocol over plain connections. One JSON
//! object per line.
//!
//! `cargo bench -p lockkeeper-bench --bench wire -- --url lockkeeper://,zookeeper:// --mix get,locks`.
//! docs/performance.md explains the measurements.

#[path = "wire/args.rs"]
mod args;
#[path = "common/mod.rs"]
mod common;
#[path = "wire/flood.rs"]
mod flood;
#[path = "wire/load.rs"]
mod load;
#[path = "wire/mix.rs"]
mod mix;
#[path = "wire/sessions.rs"]
mod sessions;
#[path = "wire/usage.rs"]
mod usage;

use args::{Args, Measurement};
use clap::Parser;
use common::echo::{Cores, EchoFloor, Transport};
use common::store_server::StoreServer;
use common::{connection, disk, echo, figures, options, report, store_server};

use load::Load;

fn main() {
    common::echo::help();
    let args = Args::parse();
    usage::raise_file_limit();
    common::runtime(args.threads).block_on(run(&args));
}

async fn run(args: &Args) {
    let start = |url: &String| StoreServer::of_or_exit(url, &args.serving);
    let servers: Vec<StoreServer> = args.urls.iter().map(start).collect();
    let mut floor = args.serving.echo_floor();
    for &measurement in &args.mixes {
        match measurement {
            Measurement::Mix(mix) => {
                for (connections, in_flight) in args.cases(mix) {
                    let load = Load::new(mix, connections, in_flight);
                    measure(args, &servers, load, &mut floor).await;
                }
            }
            Measurement::Flood => flood::measure(args, &servers, &mut floor).await,
            Measurement::Sessions => {
                for server in &servers {
                    sessions::measure(args, server, &mut floor).await;
                }
            }
        }
    }
}

/// Measures one case on all servers in turns.
async fn measure(args: &Args, servers: &[StoreServer], load: Load, echo: &mut EchoFloor) {
    let mut grounds = Vec::new();
    for server in servers {
        let address = connection::address_of(server.url());
        grounds.push(load.prepare(&address, args.bytes).await);
    }
    let mut rounds: Vec<_> = servers.iter().map(|_| Vec::new()).collect();
    let overwrite = |folder| disk::Floor::make(folder, disk::Way::Overwrite);
    let mut floor = servers[0].folder().map(overwrite);
    let mut syncs = Vec::new();
    for _ in 0..args.timing.rounds {
        let sync = floor
            .as_mut()
            .map(|floor| floor.round(args.timing.round() / 4));
        syncs.extend(sync);
        for ((ground, rows), server) in grounds.iter_mut().zip(&mut rounds).zip(servers) {
            let transport = Transport::of(server.url());
            let floor = echo.round(transport, load.connections, args.timing.floor());
            let floor = floor.await;
            let (used, cores) = (usage::Usage::of(server.process()), Cores::now());
            let mut row = load.round(ground, args.timing.round()).await;
            used.write_since(&mut row);
            cores.write_since(&mut row);
            row.extend(floor);
            rows.push(row);
        }
    }
    for ground in grounds {
        load.clean(ground).await;
    }
    let line = |url: &str| {
        let line = args.line(url, load.mix.name());
        let line = line.with("connections", load.connections);
        line.with("in_flight", load.in_flight)
    };
    let mut medians: Vec<_> = rounds.iter().map(|rows| figures::medians(rows)).collect();
    let sync = (!syncs.is_empty()).then(|| figures::medians(&syncs)["sync_p50_us"]);
    medians[0].extend(sync.map(|sync| ("sync_p50_us".to_owned(), sync)));
    for (server, row) in servers.iter().zip(&medians) {
        let line = line(server.url()).with("rounds", args.timing.rounds);
        line.with("bytes", args.bytes).print(row);
    }
    if let Some(sync) = sync {
        let fields = ["request_p50_us", "acquire_p50_us", "release_p50_us"];
        for field in fields {
            if let Some(ours) = medians[0].get(field) {
                let to = format!("{} µs for 4 KiB and a sync", sync.round());
                line(servers[0].url()).print_ratio(field, &to, ours / sync);
            }
        }
    }
    for (server, row) in servers.iter().zip(&medians) {
        for (field, value) in echo::ratios(row) {
            line(server.url()).print_ratio(field, "echo", value);
        }
    }
    for (server, row) in servers.iter().zip(&medians).skip(1) {
        for (field, ours) in &medians[0] {
            if let Some(theirs) = row.get(field)
                && !field.ends_with("p99_us")
                && !echo::is_of_floor(field)
            {
                let line = line(servers[0].url());
                line.print_ratio(field, server.url(), ours / theirs);
            }
        }
    }
}
