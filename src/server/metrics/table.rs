//! The table of a server's metrics. A test compares it with docs/server-reference.md.

use std::time::UNIX_EPOCH;

use prometheus::proto::MetricType::{COUNTER, GAUGE, HISTOGRAM};

use super::Readings;
use super::family::{Metric, each, histogram, named, one, whole};
use crate::server::connection_table::Count;
use crate::wire::{Code, Op};

pub(super) const METRICS: &[Metric<Readings>] = &[
    Metric {
        name: "lockkeeper_ready",
        help: "1 while the server opens sessions, else 0.",
        kind: GAUGE,
        labels: &[],
        read: |of| whole(of.is_ready.into()),
    },
    Metric {
        name: "lockkeeper_draining",
        help: "1 while the server drains: it opens no sessions, and serves those that it has. Else 0.",
        kind: GAUGE,
        labels: &[],
        read: |of| whole(of.is_draining.into()),
    },
    Metric {
        name: "lockkeeper_sessions",
        help: "Sessions of clients, with and without a connection; those of the server's own process do not count.",
        kind: GAUGE,
        labels: &[],
        read: |of| whole(of.stats.counts.remote_sessions as u64),
    },
    Metric {
        name: "lockkeeper_sessions_ended_total",
        help: "Sessions that have ended.",
        kind: COUNTER,
        labels: &["reason"],
        read: |of| {
            let ended = of.stats.counts.ended;
            each([
                (["closed"], ended.closed),
                (["expired"], ended.expired),
                (["process_exited"], ended.exited),
                (["kicked"], ended.kicked),
            ])
        },
    },
    Metric {
        name: "lockkeeper_sessions_refused_total",
        help: "Sessions that were not opened, since there are too many, since the disk is full or has failed, or since the server drains.",
        kind: COUNTER,
        labels: &["reason"],
        read: |of| {
            each([
                (["limit"], of.stats.counted(Count::SessionOverLimit)),
                (["disk_full"], of.stats.counted(Count::SessionDiskFull)),
                (["failed"], of.stats.counted(Count::SessionFailed)),
                (["draining"], of.stats.counted(Count::SessionDraining)),
            ])
        },
    },
    Metric {
        name: "lockkeeper_connections",
        help: "Connections of clients.",
        kind: GAUGE,
        labels: &["transport"],
        read: |of| {
            let open = of.transports;
            each([
                (["tcp"], open.tcp),
                (["tls"], open.tls),
                (["unix"], open.unix),
            ])
        },
    },
    Metric {
        name: "lockkeeper_half_open_connections",
        help: "Connections without a session, or without the authentication that is required.",
        kind: GAUGE,
        labels: &[],
        read: |of| whole(of.stats.half_open),
    },
    Metric {
        name: "lockkeeper_max_connections",
        help: "Limit of connections.",
        kind: GAUGE,
        labels: &[],
        read: |of| whole(of.max_connections),
    },
    Metric {
        name: "lockkeeper_connections_accepted_total",
        help: "Connections that were let in.",
        kind: COUNTER,
        labels: &[],
        read: |of| whole(of.stats.counted(Count::Entered)),
    },
    Metric {
        name: "lockkeeper_connections_refused_total",
        help: "Connections that were refused: too many of all, or of one address.",
        kind: COUNTER,
        labels: &["reason"],
        read: |of| {
            each([
                (["limit"], of.stats.counted(Count::RefusedConnections)),
                (
                    ["limit_of_address"],
                    of.stats.counted(Count::RefusedPerAddress),
                ),
            ])
        },
    },
    Metric {
        name: "lockkeeper_connections_closed_total",
        help: "Connections that the server has closed for a fault of their clients, or to make room.",
        kind: COUNTER,
        labels: &["reason"],
        read: |of| {
            let counted = |what| of.stats.counted(what);
            each([
                (["evicted"], counted(Count::Evicted)),
                (["frame_too_long"], counted(Count::FrameTooLong)),
                (["handshake_failed"], counted(Count::HandshakeFailed)),
                (["handshake_timed_out"], counted(Count::HandshakeTimedOut)),
                (["not_reading"], counted(Count::NotRead)),
            ])
        },
    },
    Metric {
        name: "lockkeeper_handshakes_total",
        help: "Connections that have opened a session, or taken one up again.",
        kind: COUNTER,
        labels: &[],
        read: |of| whole(of.stats.counted(Count::Handshake)),
    },
    Metric {
        name: "lockkeeper_failed_logins_total",
        help: "Wrong passwords: of an identity, or of a session that a client wants to take up.",
        kind: COUNTER,
        labels: &["kind"],
        read: |of| {
            each([
                (["identity"], of.stats.counted(Count::AuthFailed)),
                (["session"], of.stats.counted(Count::WrongPassword)),
            ])
        },
    },
    Metric {
        name: "lockkeeper_requests_total",
        help: "Requests that were answered.",
        kind: COUNTER,
        labels: &["operation"],
        read: |of| {
            let known = Op::ALL
                .iter()
                .map(|op| (snake_case(op.name()), of.requests.of(Some(*op))));
            let unknown = [("unknown".to_owned(), of.requests.of(None))];
            named(known.chain(unknown))
        },
    },
    Metric {
        name: "lockkeeper_request_errors_total",
        help: "Requests that were answered with an error, by its code.",
        kind: COUNTER,
        labels: &["code"],
        read: |of| {
            let errors = Code::ALL.iter().filter(|code| **code != Code::Ok);
            named(errors.map(|code| (snake_case(code.name()), of.requests.with(*code))))
        },
    },
    Metric {
        name: "lockkeeper_requests_refused_total",
        help: "Requests that were refused for lack of room: at a limit, or since the disk is full.",
        kind: COUNTER,
        labels: &["reason"],
        read: |of| {
            each([
                (["limit"], of.requests.over_limit()),
                (["disk_full"], of.requests.disk_full()),
            ])
        },
    },
    Metric {
        name: "lockkeeper_outstanding_requests",
        help: "Requests that are not answered yet.",
        kind: GAUGE,
        labels: &[],
        read: |of| whole(of.stats.traffic.outstanding),
    },
    Metric {
        name: "lockkeeper_request_duration_seconds",
        help: "Time from the arrival of a request to its answer.",
        kind: HISTOGRAM,
        labels: &[],
        read: |of| histogram(Some(&of.requests.durations())),
    },
    Metric {
        name: "lockkeeper_received_bytes_total",
        help: "Bytes that clients have sent.",
        kind: COUNTER,
        labels: &[],
        read: |of| whole(of.stats.traffic.received_bytes),
    },
    Metric {
        name: "lockkeeper_sent_bytes_total",
        help: "Bytes of answers and events.",
        kind: COUNTER,
        labels: &[],
        read: |of| whole(of.stats.traffic.sent_bytes),
    },
    Metric {
        name: "lockkeeper_znodes",
        help: "Znodes, with the root and those of the system.",
        kind: GAUGE,
        labels: &[],
        read: |of| whole(of.stats.counts.znodes as u64),
    },
    Metric {
        name: "lockkeeper_ephemeral_znodes",
        help: "Znodes that end with their sessions: of locks, the holders and the waiters.",
        kind: GAUGE,
        labels: &[],
        read: |of| whole(of.stats.counts.ephemerals as u64),
    },
    Metric {
        name: "lockkeeper_watches",
        help: "Watches of all kinds.",
        kind: GAUGE,
        labels: &[],
        read: |of| whole(of.stats.counts.watches as u64),
    },
    Metric {
        name: "lockkeeper_data_bytes",
        help: "Bytes of the paths and data of all znodes.",
        kind: GAUGE,
        labels: &[],
        read: |of| whole(of.stats.counts.data_bytes as u64),
    },
    Metric {
        name: "lockkeeper_memory_bytes",
        help: "Bytes that count towards the budgets: the store's, of answers that wait, of incomplete requests.",
        kind: GAUGE,
        labels: &["budget", "use"],
        read: |of| {
            let counts = &of.stats.counts;
            each([
                (["store", "znodes"], counts.znode_bytes as u64),
                (["store", "watches"], counts.watch_bytes as u64),
                (["store", "sessions"], counts.session_bytes as u64),
                (["replies", "unread"], of.stats.unread_bytes),
                (["requests", "incomplete"], of.stats.unfinished_bytes),
            ])
        },
    },
    Metric {
        name: "lockkeeper_memory_limit_bytes",
        help: "Limits of the budgets.",
        kind: GAUGE,
        labels: &["budget"],
        read: |of| {
            each([
                (["store"], of.stats.counts.max_bytes as u64),
                (["replies"], of.max_unread_bytes),
                (["requests"], of.max_unfinished_bytes),
            ])
        },
    },
    Metric {
        name: "lockkeeper_zxid_epoch",
        help: "Epoch of the last zxid: its upper 32 bits. Each start of a store begins a new one.",
        kind: GAUGE,
        labels: &[],
        read: |of| whole((of.stats.counts.last_zxid.0 >> 32) as u64),
    },
    Metric {
        name: "lockkeeper_zxid_in_epoch",
        help: "Number of the last zxid in its epoch: its lower 32 bits. A whole zxid is more than a sample holds.",
        kind: GAUGE,
        labels: &[],
        read: |of| whole(of.stats.counts.last_zxid.0 as u64 & u64::from(u32::MAX)),
    },
    Metric {
        name: "lockkeeper_stall_seconds",
        help: "Times for which the store was kept from its work, of 50 ms and more.",
        kind: HISTOGRAM,
        labels: &[],
        read: |of| histogram(of.stalls.as_ref()),
    },
    Metric {
        name: "lockkeeper_log_sync_seconds",
        help: "Durations of the log's syncs.",
        kind: HISTOGRAM,
        labels: &[],
        read: |of| histogram(of.stats.log.as_ref().map(|log| &log.syncs)),
    },
    Metric {
        name: "lockkeeper_log_batches_total",
        help: "Batches of transactions that were written, each with one sync.",
        kind: COUNTER,
        labels: &[],
        read: |of| {
            of.stats
                .log
                .as_ref()
                .map_or_else(Vec::new, |log| whole(log.batches))
        },
    },
    Metric {
        name: "lockkeeper_log_written_bytes_total",
        help: "Bytes of these batches.",
        kind: COUNTER,
        labels: &[],
        read: |of| {
            of.stats
                .log
                .as_ref()
                .map_or_else(Vec::new, |log| whole(log.bytes))
        },
    },
    Metric {
        name: "lockkeeper_log_waits_total",
        help: "Answers and events that had to wait for the log.",
        kind: COUNTER,
        labels: &[],
        read: |of| {
            of.stats
                .log
                .as_ref()
                .map_or_else(Vec::new, |log| whole(log.waits))
        },
    },
    Metric {
        name: "lockkeeper_disk_full",
        help: "1 while the log finds no room for another segment on the disk, else 0.",
        kind: GAUGE,
        labels: &[],
        read: |of| {
            let log = of.stats.log.as_ref();
            log.map_or_else(Vec::new, |log| whole(log.is_full.into()))
        },
    },
    Metric {
        name: "lockkeeper_disk_bytes",
        help: "Size of the files in the store's folder.",
        kind: GAUGE,
        labels: &[],
        read: |of| of.files.map_or_else(Vec::new, |files| whole(files.bytes)),
    },
    Metric {
        name: "lockkeeper_snapshots",
        help: "Snapshots in the store's folder.",
        kind: GAUGE,
        labels: &[],
        read: |of| {
            of.files
                .map_or_else(Vec::new, |files| whole(files.snapshots))
        },
    },
    Metric {
        name: "lockkeeper_snapshot_timestamp_seconds",
        help: "Time of the newest snapshot, in seconds since the epoch; absent before the first.",
        kind: GAUGE,
        labels: &[],
        read: |of| {
            let newest = of.files.and_then(|files| files.newest_snapshot);
            let age = newest.and_then(|newest| newest.duration_since(UNIX_EPOCH).ok());
            age.map_or_else(Vec::new, |age| one(age.as_secs_f64()))
        },
    },
];

/// Returns a Rust name such as `GetChildren2` in the form of Prometheus' labels, `get_children2`.
fn snake_case(name: &str) -> String {
    let mut label = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !label.is_empty() {
            label.push('_');
        }
        label.push(letter.to_ascii_lowercase());
    }
    label
}
