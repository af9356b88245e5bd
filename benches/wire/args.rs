//! The command line.

use std::str::FromStr;
use std::time::Duration;

use clap::Parser;

use crate::mix::Mix;
use crate::options::{Serving, Timing, count, seconds};
use crate::report::Line;

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measurement {
    Mix(Mix),
    /// Many sessions with one watch each.
    Sessions,
    /// A few connections while others flood the server.
    Flood,
}

impl FromStr for Measurement {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut all = Mix::ALL.into_iter();
        match all.find(|mix| mix.name() == name) {
            Some(mix) => Ok(Self::Mix(mix)),
            None if name == "sessions" => Ok(Self::Sessions),
            None if name == "flood" => Ok(Self::Flood),
            None => Err(format!("{name} is not known")),
        }
    }
}

/// A server's own speed, without any client library.
#[derive(Debug, Parser)]
#[command(name = "wire")]
pub(crate) struct Args {
    /// lockkeeper://[HOST:PORT], lockkeeper+unix://[PATH] or zookeeper://[HOST:PORT]. Without a host, the server is
    /// started. The first is compared with the others, in turns
    #[arg(long = "url", value_delimiter = ',', default_values = ["lockkeeper://", "zookeeper://"])]
    pub(crate) urls: Vec<String>,
    #[command(flatten)]
    pub(crate) serving: Serving,
    /// Loads: ping, get, set, create (and delete), locks (create, list, delete; 10,000 keys), sessions, flood
    #[arg(long = "mix", value_delimiter = ',')]
    #[arg(default_values = ["ping", "get", "set", "create", "locks", "sessions", "flood"])]
    pub(crate) mixes: Vec<Measurement>,
    /// Only this many connections
    #[arg(long, value_parser = count)]
    pub(crate) connections: Option<usize>,
    /// Only this many requests in flight on each connection
    #[arg(long, value_parser = count)]
    in_flight: Option<usize>,
    /// For flood, the connections that send reads as fast as the server takes them, while 16 others with one request at
    /// a time are measured
    #[arg(long, default_value_t = 4, value_parser = count)]
    pub(crate) flood: usize,
    /// Bytes of data in a znode
    #[arg(long, default_value_t = 100)]
    pub(crate) bytes: usize,
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// Threads of the load. By default the server has the other core
    #[arg(long, default_value_t = 1, value_parser = count)]
    pub(crate) threads: usize,
    /// For sessions, their numbers
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000, 10_000])]
    pub(crate) sessions: Vec<usize>,
    /// For sessions, the time in which they only ping
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) rest: Duration,
}

impl Args {
    /// Returns the numbers of connections, and of requests in flight on each.
    pub(crate) fn cases(&self, mix: Mix) -> Vec<(usize, usize)> {
        match (self.connections, self.in_flight) {
            (None, None) => mix.cases().to_vec(),
            (connections, in_flight) => vec![(connections.unwrap_or(1), in_flight.unwrap_or(1))],
        }
    }

    pub(crate) fn line(&self, url: &str, workload: &str) -> Line {
        let system = url.split(':').next().unwrap_or(url);
        Line::new(system, url, workload)
            .with("threads", self.threads)
            .with("server_threads", self.serving.server_threads())
    }
}
