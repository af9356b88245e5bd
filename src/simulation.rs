//! Building blocks of a simulation in one thread: time, a network, a disk, servers and clients. Only the package
//! `lockkeeper-sim` uses them.
//!
//! Everything runs on one paused tokio runtime, which advances its time when no task can run. So equal seeds give equal
//! runs.

mod dialer;
mod ensemble;
mod server;
mod stranger;
mod time;

use std::sync::Arc;
use std::time::Duration;

pub use self::ensemble::{Ensemble, EnsembleCounts, EnsembleOptions};
pub use self::server::{Backup, Disk, DiskFaults, ServerHost};
pub use self::stranger::intrude;
pub use self::time::Time;
use crate::backend::{ConnectOptions, Connector};
use crate::client::connect::Client;
use crate::client::served::Served;
use crate::model::error::Result;
use crate::model::path::ZnodePath;
use crate::runtime::clock::Clock;
pub use crate::runtime::simnet::{Network, NetworkCounts, Weather};

/// Creates a network that updates the hosts' clocks before each arrival of bytes.
pub fn network(seed: u64, weather: Weather, time: &Time) -> Network {
    let time = time.clone();
    Network::new(seed, weather, move || time.sync())
}

/// The servers of a store.
#[derive(Clone, Debug)]
pub struct Servers {
    /// The server's host, or the hosts of an ensemble's members.
    pub hosts: Vec<String>,
    /// An ensemble's tick. `None` for a single server.
    pub ensemble_tick: Option<Duration>,
    /// True for clients that do not know our protocol extension.
    pub is_plain: bool,
}

/// Connects a client on host `client` to the servers.
///
/// # Errors
/// The errors of [`connect`](crate::connect()).
pub async fn connect(
    network: &Network,
    (client, servers): (&str, &Servers),
    clock: &Clock,
    options: ConnectOptions,
) -> Result<Client> {
    let endpoint = dialer::endpoint(network, client, servers);
    let url = format!("lockkeeper://{}", servers.hosts.join(","));
    let root = ZnodePath::root();
    let options = match servers.ensemble_tick {
        Some(tick) => options.ensemble_tick(tick),
        None => options,
    };
    let served = Served::on_clock(endpoint, &root, url.clone(), clock.clone());
    Client::open(Arc::new(served) as Arc<dyn Connector>, url, options).await
}
