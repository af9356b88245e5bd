//! The parts of a simulation, for the package `lockkeeper-sim` alone: time, a network, a disk, a server and its clients,
//! all of them in one thread. Not part of the public API.
//!
//! Everything runs on one paused runtime of tokio, which moves its time when no task can run. So the same seed gives the
//! same run.

mod server;
mod time;

use std::sync::Arc;

pub use self::server::{Backup, Disk, DiskFaults, ServerHost};
pub use self::time::Time;
use crate::backend::served::{Endpoint, Served};
use crate::backend::{ConnectOptions, Connector};
use crate::clock::Clock;
use crate::connect::Client;
use crate::error::Result;
use crate::path::ZnodePath;
pub use crate::simnet::{Network, NetworkCounts, Weather};

/// Creates a network whose arrivals are seen at their own time.
pub fn network(seed: u64, weather: Weather, time: &Time) -> Network {
    let time = time.clone();
    Network::new(seed, weather, move || time.sync())
}

/// Opens a client of one host at the server of another, which lives by this clock.
///
/// # Errors
/// Those of [`connect`](crate::connect).
pub async fn connect(
    network: &Network,
    (client, server): (&str, &str),
    clock: &Clock,
    options: ConnectOptions,
) -> Result<Client> {
    let endpoint = Endpoint::Simulated {
        network: network.clone(),
        client: client.to_owned(),
        server: server.to_owned(),
    };
    let (root, url) = (ZnodePath::root(), format!("lockkeeper://{server}"));
    let served = Served::on_clock(endpoint, &root, url.clone(), clock.clone());
    Client::open(Arc::new(served) as Arc<dyn Connector>, url, options).await
}
