//! Texts about the server and its store: mntr, envi, conf, dirs, dump, wchs, wchc and wchp.

use std::fmt;
use std::path::Path;

use super::clients::{Latency, Mode, mean_of};
use super::date::date;
use super::line;
use crate::model::types::SessionId;

/// Figures of mntr. ZooKeeper has about 500 figures, and we report only the figures that tools read.
#[derive(Clone, Debug)]
pub(crate) struct Monitor<'a> {
    pub(crate) version: &'a str,
    pub(crate) mode: Mode,
    pub(crate) ephemerals: u64,
    pub(crate) connections: u64,
    pub(crate) outstanding: u64,
    pub(crate) znodes: u64,
    pub(crate) sessions: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) watches: u64,
    pub(crate) latency: Latency,
    pub(crate) data_bytes: u64,
    pub(crate) open_files: u64,
    pub(crate) max_open_files: u64,
    pub(crate) uptime_ms: u64,
    /// Further figures, by their names without the prefix `zk_`.
    pub(crate) more: Vec<(&'a str, Value)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Whole(u64),
    Mean(f64),
}

impl fmt::Display for Value {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => write!(to, "{number}"),
            Self::Mean(number) => to.write_str(&mean_of(*number)),
        }
    }
}

pub(crate) fn mntr(monitor: &Monitor<'_>) -> String {
    use Value::{Mean, Whole};
    let mut text = String::new();
    line!(text, "zk_version\t{}", monitor.version);
    line!(text, "zk_server_state\t{}", monitor.mode.word());
    let figures = [
        ("ephemerals_count", Whole(monitor.ephemerals)),
        ("num_alive_connections", Whole(monitor.connections)),
        ("avg_latency", Mean(monitor.latency.mean_ms)),
        ("outstanding_requests", Whole(monitor.outstanding)),
        ("znode_count", Whole(monitor.znodes)),
        ("global_sessions", Whole(monitor.sessions)),
        ("packets_sent", Whole(monitor.sent)),
        ("packets_received", Whole(monitor.received)),
        ("watch_count", Whole(monitor.watches)),
        ("min_latency", Whole(monitor.latency.min_ms)),
        ("max_file_descriptor_count", Whole(monitor.max_open_files)),
        ("approximate_data_size", Whole(monitor.data_bytes)),
        ("open_file_descriptor_count", Whole(monitor.open_files)),
        // Local sessions exist only on one server of an ensemble. All our sessions are global.
        ("local_sessions", Whole(0)),
        ("uptime", Whole(monitor.uptime_ms)),
        ("max_latency", Whole(monitor.latency.max_ms)),
    ];
    for (name, value) in figures.iter().chain(&monitor.more) {
        line!(text, "zk_{name}\t{value}");
    }
    text
}

/// Names and values of envi, in order. The first name is `zookeeper.version`, which clients read.
pub(crate) type Environment<'a> = [(&'a str, &'a str)];

pub(crate) fn envi(environment: &Environment<'_>) -> String {
    let mut text = String::from("Environment:\n");
    for (name, value) in environment {
        line!(text, "{name}={value}");
    }
    text
}

#[derive(Clone, Debug)]
pub(crate) struct Conf<'a> {
    /// Port for plain connections, or -1 if there is none.
    pub(crate) port: i32,
    /// Port for TLS connections, or -1 if there is none.
    pub(crate) secure_port: i32,
    pub(crate) data: &'a Path,
    pub(crate) data_bytes: u64,
    pub(crate) log: &'a Path,
    pub(crate) log_bytes: u64,
    pub(crate) tick_ms: u64,
    /// Maximum number of connections from one address, or 0 for no limit.
    pub(crate) max_connections: u64,
    pub(crate) shortest_timeout_ms: u64,
    pub(crate) longest_timeout_ms: u64,
    /// Length of the listener's backlog, or -1 for the system's default.
    pub(crate) backlog: i64,
}

pub(crate) fn conf(conf: &Conf<'_>) -> String {
    let mut text = String::new();
    line!(text, "clientPort={}", conf.port);
    line!(text, "secureClientPort={}", conf.secure_port);
    line!(text, "dataDir={}", conf.data.display());
    line!(text, "dataDirSize={}", conf.data_bytes);
    line!(text, "dataLogDir={}", conf.log.display());
    line!(text, "dataLogSize={}", conf.log_bytes);
    line!(text, "tickTime={}", conf.tick_ms);
    line!(text, "maxClientCnxns={}", conf.max_connections);
    line!(text, "minSessionTimeout={}", conf.shortest_timeout_ms);
    line!(text, "maxSessionTimeout={}", conf.longest_timeout_ms);
    line!(text, "clientPortListenBacklog={}", conf.backlog);
    // A standalone server has no id.
    line!(text, "serverId=0");
    text
}

pub(crate) fn dirs(data_bytes: u64, log_bytes: u64) -> String {
    format!("datadir_size: {data_bytes}\nlogdir_size: {log_bytes}\n")
}

#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) expires_ms: i64,
    pub(crate) sessions: Vec<SessionId>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions<'a> {
    pub(crate) buckets: Vec<Bucket>,
    pub(crate) ephemerals: Vec<(SessionId, Vec<&'a str>)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Watchers {
    pub(crate) connections: usize,
    pub(crate) paths: usize,
    pub(crate) watches: usize,
}

pub(crate) fn dump(sessions: &Sessions<'_>) -> String {
    let mut text = String::new();
    let count = sessions.buckets.iter().map(|bucket| bucket.sessions.len());
    let count: usize = count.sum();
    line!(text, "SessionTracker dump:");
    line!(text, "Session Sets ({})/({count}):", sessions.buckets.len());
    for bucket in &sessions.buckets {
        let (count, at) = (bucket.sessions.len(), date(bucket.expires_ms));
        line!(text, "{count} expire at {at}:");
        for session in &bucket.sessions {
            line!(text, "\t{session}");
        }
    }
    let owners = sessions.ephemerals.len();
    line!(text, "ephemeral nodes dump:");
    line!(text, "Sessions with Ephemerals ({owners}):");
    for (session, paths) in &sessions.ephemerals {
        line!(text, "{session}:");
        paths.iter().for_each(|path| line!(text, "\t{path}"));
    }
    line!(text, "Connections dump:");
    text
}

pub(crate) fn wchs(watchers: &Watchers) -> String {
    let Watchers {
        connections,
        paths,
        watches,
    } = watchers;
    format!("{connections} connections watching {paths} paths\nTotal watches:{watches}\n")
}

pub(crate) fn wchc<'a, P: IntoIterator<Item = &'a str>>(
    sessions: impl IntoIterator<Item = (SessionId, P)>,
) -> String {
    let mut text = String::new();
    for (session, paths) in sessions {
        line!(text, "{session}");
        paths.into_iter().for_each(|path| line!(text, "\t{path}"));
    }
    line!(text);
    text
}

pub(crate) fn wchp<'a, S: IntoIterator<Item = SessionId>>(
    paths: impl IntoIterator<Item = (&'a str, S)>,
) -> String {
    let mut text = String::new();
    for (path, sessions) in paths {
        line!(text, "{path}");
        sessions
            .into_iter()
            .for_each(|session| line!(text, "\t{session}"));
    }
    line!(text);
    text
}
