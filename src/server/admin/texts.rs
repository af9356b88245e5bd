//! [`Texts`]: composes the texts of the four-letter words.
//!
//! The numbers of sessions, ephemeral znodes and watches include in-process sessions, but the number of connections
//! does not.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::ListenAddresses;
use super::process;
use crate::engine::{Listed, Room};
use crate::model::path::ZnodePath;
use crate::model::types::{SessionId, Zxid};
use crate::server::connection_entry::{ConnectionEntry, LastResponse, LatencyStats, Traffic};
use crate::server::connection_table::Count;
use crate::server::stats::{Sources, Stats};
use crate::wire::admin::{
    Attached, Bucket, CONNECTIONS_RESET, Conf, Connection, Figures, Latency, Mode, Monitor,
    SERVER_RESET, Sessions, Value, Watchers, Word, conf, cons, dirs, dump, envi, mntr, srvr, stat,
    version, wchc, wchp, wchs,
};

pub(super) struct Texts {
    sources: Arc<Sources>,
    addresses: ListenAddresses,
    version: String,
}

const LIST_LIMIT: Room = Room {
    entries: 100_000,
    bytes: 8 << 20,
};

/// ZooKeeper counts the root twice, as `/` and as the empty path that clients with a chroot see.
const ROOT_AGAIN: usize = 1;

impl Texts {
    pub(super) fn new(sources: Arc<Sources>, addresses: ListenAddresses) -> Self {
        Self {
            sources,
            addresses,
            version: version(process::built_ms()),
        }
    }

    pub(super) fn is_at_work(&self) -> bool {
        self.sources.store.is_at_work()
    }

    /// Returns the text of a word. May block, so do not call it on a thread of the runtime.
    pub(super) fn of(&self, word: Word) -> String {
        match word {
            Word::Srvr => srvr(&self.figures()),
            Word::Stat => self.connections(|connections| stat(&self.figures(), connections)),
            Word::Cons => self.connections(|connections| cons(connections)),
            Word::Mntr => self.mntr(),
            Word::Dump => self.dump(),
            Word::Wchs => self.wchs(),
            Word::Wchc => self.wchc(),
            Word::Wchp => self.wchp(),
            Word::Envi => self.envi(),
            Word::Conf => self.conf(),
            Word::Dirs => self.dirs(),
            Word::Crst => {
                self.sources.table.reset_connections();
                CONNECTIONS_RESET.to_owned()
            }
            Word::Srst => {
                self.sources.table.reset_server();
                SERVER_RESET.to_owned()
            }
            // `Admin` answers `ruok` and `isro` itself.
            Word::Ruok | Word::Isro => String::new(),
        }
    }

    fn figures(&self) -> Figures<'_> {
        let (counts, traffic) = (self.sources.store.counts(), self.sources.table.traffic());
        Figures {
            version: &self.version,
            latency: latency(traffic.latency),
            received: traffic.received,
            sent: traffic.sent,
            connections: self.sources.table.connections(),
            outstanding: traffic.outstanding,
            zxid: counts.last_zxid,
            mode: Mode::Standalone,
            znodes: counts.znodes + ROOT_AGAIN,
        }
    }

    fn connections(&self, text: impl FnOnce(&[Connection]) -> String) -> String {
        let mut entries = self.sources.table.each();
        // Truncate a long list instead of refusing it, because the first entries are useful.
        let is_whole = entries.len() <= LIST_LIMIT.entries;
        entries.truncate(LIST_LIMIT.entries);
        let connections: Vec<_> = entries.iter().map(|entry| connection(entry)).collect();
        ended(text(&connections), is_whole)
    }

    fn mntr(&self) -> String {
        let stats = self.sources.read();
        let Stats {
            counts, traffic, ..
        } = &stats;
        mntr(&Monitor {
            version: &self.version,
            mode: Mode::Standalone,
            ephemerals: counts.ephemerals as u64,
            connections: stats.connections,
            outstanding: traffic.outstanding,
            znodes: (counts.znodes + ROOT_AGAIN) as u64,
            sessions: counts.sessions as u64,
            sent: traffic.sent,
            received: traffic.received,
            watches: counts.watches as u64,
            latency: latency(traffic.latency),
            data_bytes: counts.data_bytes as u64,
            open_files: stats.open_files,
            max_open_files: stats.max_open_files,
            uptime_ms: stats.uptime.as_millis() as u64,
            more: more(&stats),
        })
    }

    fn dump(&self) -> String {
        let (endings, owned) = (
            self.sources.store.endings(LIST_LIMIT),
            self.sources.store.ephemerals(LIST_LIMIT),
        );
        let is_whole = endings.is_whole && owned.is_whole;
        let buckets = endings.list.into_iter().map(|ending| Bucket {
            expires_ms: ending.at_ms,
            sessions: ending.sessions,
        });
        let ephemerals = owned.list.iter().map(|(session, paths)| {
            let paths = paths.iter().map(ZnodePath::as_str).collect();
            (*session, paths)
        });
        let sessions = Sessions {
            buckets: buckets.collect(),
            ephemerals: ephemerals.collect(),
        };
        ended(dump(&sessions), is_whole)
    }

    fn wchs(&self) -> String {
        let watched = self.sources.store.watched();
        wchs(&Watchers {
            connections: watched.sessions,
            paths: watched.paths,
            watches: watched.watches,
        })
    }

    fn wchc(&self) -> String {
        let Listed { list, is_whole } = self.sources.store.watching(LIST_LIMIT);
        let mut by_session = BTreeMap::<SessionId, Vec<&str>>::new();
        for (path, session) in &list {
            by_session.entry(*session).or_default().push(path.as_str());
        }
        ended(wchc(by_session), is_whole)
    }

    fn wchp(&self) -> String {
        let Listed { list, is_whole } = self.sources.store.watching(LIST_LIMIT);
        let mut by_path = BTreeMap::<&str, Vec<SessionId>>::new();
        for (path, session) in &list {
            by_path.entry(path.as_str()).or_default().push(*session);
        }
        ended(wchp(by_path), is_whole)
    }

    fn envi(&self) -> String {
        let memory = format!("{}MB", process::resident_bytes() >> 20);
        let mut environment = vec![
            ("zookeeper.version", self.version.clone()),
            ("lockkeeper.version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        environment.extend(process::environment());
        environment.push(("lockkeeper.memory.resident", memory));
        let environment: Vec<_> = environment
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        envi(&environment)
    }

    fn dirs(&self) -> String {
        let bytes = process::folder_files(Path::new(self.sources.store.place())).bytes;
        dirs(bytes, bytes)
    }

    fn conf(&self) -> String {
        let settings = self.sources.store.settings();
        let folder = Path::new(self.sources.store.place());
        let bytes = process::folder_files(folder).bytes;
        let port = |door: Option<std::net::SocketAddr>| door.map_or(-1, |door| door.port().into());
        conf(&Conf {
            port: port(self.addresses.plain),
            secure_port: port(self.addresses.tls),
            data: folder,
            data_bytes: bytes,
            log: folder,
            log_bytes: bytes,
            tick_ms: settings.tick.as_millis() as u64,
            max_connections: self.sources.table.max_per_address() as u64,
            shortest_timeout_ms: settings.shortest_timeout.as_millis() as u64,
            longest_timeout_ms: settings.longest_timeout.as_millis() as u64,
            backlog: super::super::listener::BACKLOG.into(),
        })
    }
}

/// Returns further figures for `mntr`: ZooKeeper's figures that have the same meaning here, and Lockkeeper's own. All
/// names start with `zk_`, because some monitors stop reading at a line without this prefix.
fn more(stats: &Stats) -> Vec<(&'static str, Value)> {
    let counted = |what| stats.counted(what);
    let full = counted(Count::RefusedConnections);
    let full_for_one = counted(Count::RefusedPerAddress);
    let (welcome, unwelcome) = (counted(Count::Handshake), counted(Count::HandshakeFailed));
    let (counts, traffic) = (&stats.counts, &stats.traffic);
    let more = vec![
        ("bytes_received_count", traffic.received_bytes),
        ("response_bytes", traffic.sent_bytes),
        ("connection_request_count", welcome + unwelcome),
        ("connection_rejected", full + full_for_one),
        (
            "sessionless_connections_expired",
            counted(Count::HandshakeTimedOut),
        ),
        ("auth_failed_count", counted(Count::AuthFailed)),
        ("lockkeeper_connections_entered", counted(Count::Entered)),
        ("lockkeeper_connections_half_open", stats.half_open),
        ("lockkeeper_connections_pushed_out", counted(Count::Evicted)),
        ("lockkeeper_refused_by_total", full),
        ("lockkeeper_refused_by_address", full_for_one),
        ("lockkeeper_handshakes_failed", unwelcome),
        ("lockkeeper_wrong_passwords", counted(Count::WrongPassword)),
        ("lockkeeper_frames_too_long", counted(Count::FrameTooLong)),
        ("lockkeeper_clients_not_reading", counted(Count::NotRead)),
        ("lockkeeper_znode_bytes", counts.znode_bytes as u64),
        ("lockkeeper_watch_bytes", counts.watch_bytes as u64),
        ("lockkeeper_session_bytes", counts.session_bytes as u64),
        ("lockkeeper_max_store_bytes", counts.max_bytes as u64),
        ("lockkeeper_outgoing_bytes", stats.unread_bytes),
        ("lockkeeper_unfinished_bytes", stats.unfinished_bytes),
        ("lockkeeper_resident_bytes", stats.resident_bytes),
    ];
    let more = more.into_iter().chain(log_figures(stats));
    more.map(|(name, value)| (name, Value::Whole(value)))
        .collect()
}

fn log_figures(stats: &Stats) -> Vec<(&'static str, u64)> {
    let Some(log) = &stats.log else {
        return Vec::new();
    };
    let us = |time: std::time::Duration| time.as_micros() as u64;
    vec![
        ("lockkeeper_log_batches", log.batches),
        ("lockkeeper_log_bytes", log.bytes),
        ("lockkeeper_log_waits", log.waits),
        ("lockkeeper_fsync_count", log.syncs.count),
        ("lockkeeper_fsync_us_sum", us(log.syncs.sum)),
        ("lockkeeper_fsync_us_max", us(log.longest_sync)),
    ]
}

fn ended(mut text: String, is_whole: bool) -> String {
    if !is_whole {
        let Room { entries, bytes } = LIST_LIMIT;
        text.push_str(&format!(
            "There is more: a list ends at {entries} entries, or {bytes} bytes of paths\n"
        ));
    }
    text
}

fn connection(entry: &ConnectionEntry) -> Connection {
    let traffic = entry.traffic();
    Connection {
        address: entry.address().to_string(),
        is_read: entry.is_reading(),
        queued: traffic.outstanding,
        received: traffic.received,
        sent: traffic.sent,
        session: entry
            .session()
            .map(|session| attached(entry, session, &traffic)),
    }
}

fn attached(
    entry: &ConnectionEntry,
    (id, timeout_ms): (SessionId, u64),
    traffic: &Traffic,
) -> Attached {
    let last = entry.last();
    Attached {
        id,
        last_op: last.as_ref().map_or("NA", LastResponse::letters),
        established_ms: entry.established_ms(),
        timeout_ms,
        last_xid: last.map(|last| last.xid),
        last_zxid: last.map_or(Zxid(-1), |last| last.zxid),
        last_answer_ms: last.map_or(0, |last| last.at.as_millis()),
        last_latency_ms: last.map_or(0, |last| last.took.as_millis() as u64),
        latency: latency(traffic.latency),
    }
}

fn latency(stats: LatencyStats) -> Latency {
    const NS_PER_MS: u64 = 1_000_000;
    if stats.count == 0 {
        return Latency::default();
    }
    Latency {
        min_ms: stats.min_ns / NS_PER_MS,
        mean_ms: stats.total_ns as f64 / stats.count as f64 / NS_PER_MS as f64,
        max_ms: stats.max_ns / NS_PER_MS,
    }
}
