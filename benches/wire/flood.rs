//! Fairness: connections with one request at a time, with and without others that flood the server with requests.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use testkit::wire::{self, op, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use crate::args::Args;
use crate::common;
use crate::common::echo::{EchoFloor, Transport};
use crate::common::socket::Address;
use crate::connection::{self, Connection};
use crate::figures::{Row, medians};
use crate::load::Load;
use crate::mix::Mix;
use crate::store_server::StoreServer;
use crate::usage::Usage;

/// Default number of measured connections, and how long each pauses between an answer and its next request.
const MEASURED: usize = 16;
const PAUSE: Duration = Duration::from_millis(1);

/// The flood starts this long before the measurement and ends this long after it.
const MARGIN: Duration = Duration::from_millis(50);

/// Measures the servers in turns, half of each round without the flood and half with it.
pub(crate) async fn measure(args: &Args, servers: &[StoreServer], floor: &mut EchoFloor) {
    let load = Load::new(Mix::Get, args.connections.unwrap_or(MEASURED), 1).pausing(PAUSE);
    let mut grounds = Vec::new();
    for server in servers {
        let address = connection::address_of(server.url());
        grounds.push(load.prepare(&address, args.bytes).await);
    }
    let half = args.timing.round() / 2;
    let mut rounds: Vec<_> = servers.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.timing.rounds {
        for ((ground, rows), server) in grounds.iter_mut().zip(&mut rounds).zip(servers) {
            let transport = Transport::of(server.url());
            let mut row = floor
                .round(transport, load.connections, args.timing.floor())
                .await;
            row.extend(under("quiet", load.round(ground, half).await));
            let address = connection::address_of(server.url());
            let flood = Flood::start(address, args.flood, half + 2 * MARGIN).await;
            tokio::time::sleep(MARGIN).await;
            let used = Usage::of(server.process());
            row.extend(under("flooded", load.round(ground, half).await));
            used.write_since(&mut row);
            row.insert("flood_requests_per_s".into(), flood.end().await);
            for percentile in ["p50", "p99"] {
                let of = |when: &str| row[&format!("{when}_request_{percentile}_us")];
                let ratio = of("flooded") / of("quiet");
                row.insert(format!("flooded_to_quiet_{percentile}"), ratio);
            }
            rows.push(row);
        }
    }
    for ground in grounds {
        load.clean(ground).await;
    }
    for (server, rows) in servers.iter().zip(&rounds) {
        let line = args.line(server.url(), "flood");
        let line = line.with("connections", load.connections);
        let line = line.with("flooding", args.flood);
        line.with("rounds", args.timing.rounds)
            .print(&medians(rows));
    }
}

/// Prefixes the field names with `when`.
fn under(when: &str, row: Row) -> Row {
    let named = |(field, value)| (format!("{when}_{field}"), value);
    row.into_iter().map(named).collect()
}

/// Connections that send requests as fast as the server takes them. On a separate thread, because the measured
/// connections must not wait for the load generator.
struct Flood(JoinHandle<f64>);

impl Flood {
    /// Returns once the connections are open.
    async fn start(address: Address, connections: usize, time: Duration) -> Self {
        let (ready, is_ready) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            common::runtime(1).block_on(flood(address, connections, time, ready))
        });
        is_ready.await.expect("the flood begins");
        Self(thread)
    }

    /// Waits for its end. Returns the answered requests per second.
    async fn end(self) -> f64 {
        let ended = tokio::task::spawn_blocking(move || self.0.join()).await;
        let ended = ended.expect("a thread to wait on");
        ended.expect("the flood ends well")
    }
}

async fn flood(
    address: Address,
    connections: usize,
    time: Duration,
    ready: oneshot::Sender<()>,
) -> f64 {
    let mut opened = Vec::new();
    for _ in 0..connections {
        opened.push(Connection::open(&address).await);
    }
    let _ = ready.send(());
    let start = Instant::now();
    let flooding: Vec<_> = opened
        .into_iter()
        .map(|connection| tokio::spawn(flood_until(connection, start + time)))
        .collect();
    let mut requests = 0;
    for flooding in flooding {
        requests += flooding.await.expect("the flood ends well");
    }
    requests as f64 / start.elapsed().as_secs_f64()
}

/// Writes without waiting for answers, and reads them as they arrive. Returns the number of requests.
async fn flood_until(mut connection: Connection, end: Instant) -> usize {
    connection.put(1, op::GET_DATA, &wire::read("/", false));
    connection.flush().await;
    let answer_bytes = 4 + 16 + connection.next().await.body.len();
    let (mut from, mut to) = tokio::io::split(connection.into_stream());
    let writing = tokio::spawn(async move {
        let (block, mut blocks) = (block(), 0);
        while Instant::now() < end {
            to.write_all(&block).await.expect("the server reads");
            blocks += 1;
        }
        (to, blocks * BLOCK)
    });
    let (mut buffer, mut read) = (vec![0; 256 << 10], 0);
    while !writing.is_finished() {
        // If the flood has just ended, the last answers are still to be read.
        let more = tokio::time::timeout(MARGIN, from.read(&mut buffer)).await;
        read += more.map_or(0, |more| more.expect("the server writes"));
    }
    let (_to, requests) = writing.await.expect("the flood is written");
    while read < requests * answer_bytes {
        let more = from.read(&mut buffer).await.expect("the server writes");
        assert_ne!(more, 0, "the server hung up");
        read += more;
    }
    requests
}

const BLOCK: usize = 1_024;

fn block() -> Vec<u8> {
    request(1, op::GET_DATA, &wire::read("/", false)).repeat(BLOCK)
}
