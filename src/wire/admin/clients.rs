//! Texts of srvr, stat and cons: the server's figures and connections.

use super::{line, put};
use crate::model::types::{SessionId, Zxid};

#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub(crate) struct Latency {
    pub(crate) min_ms: u64,
    pub(crate) mean_ms: f64,
    pub(crate) max_ms: u64,
}

impl Latency {
    pub(super) fn mean(self) -> String {
        mean_of(self.mean_ms)
    }
}

/// Formats a mean with one to four decimals, like ZooKeeper. Below 0.001, ZooKeeper writes for example 1.0E-4, and we
/// write 0.0001.
pub(super) fn mean_of(value: f64) -> String {
    format!("{:?}", (value * 10_000.0).round() / 10_000.0)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Standalone,
}

impl Mode {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures<'a> {
    pub(crate) version: &'a str,
    pub(crate) latency: Latency,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) connections: usize,
    pub(crate) outstanding: u64,
    pub(crate) zxid: Zxid,
    pub(crate) mode: Mode,
    pub(crate) znodes: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) address: String,
    pub(crate) is_read: bool,
    pub(crate) queued: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// `None` before the handshake, and for the connection that sent the four-letter word.
    pub(crate) session: Option<Attached>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached {
    pub(crate) id: SessionId,
    /// Letters of the last answered operation. `NA` before the first operation, `SESS` for the handshake.
    pub(crate) last_op: &'static str,
    /// Arrival time of the connection, in milliseconds since the epoch.
    pub(crate) established_ms: i64,
    pub(crate) timeout_ms: u64,
    /// `None` before the first numbered request.
    pub(crate) last_xid: Option<i32>,
    pub(crate) last_zxid: Zxid,
    /// Time of the last response, in milliseconds of the server's clock.
    pub(crate) last_answer_ms: u64,
    pub(crate) last_latency_ms: u64,
    pub(crate) latency: Latency,
}

pub(crate) fn srvr(figures: &Figures<'_>) -> String {
    let mut text = String::new();
    put_version(figures, &mut text);
    put_figures(figures, &mut text);
    text
}

pub(crate) fn stat<'a>(
    figures: &Figures<'_>,
    connections: impl IntoIterator<Item = &'a Connection>,
) -> String {
    let mut text = String::new();
    put_version(figures, &mut text);
    line!(text, "Clients:");
    for connection in connections {
        put_connection(connection, &mut text);
        line!(text, ")");
    }
    line!(text);
    put_figures(figures, &mut text);
    text
}

pub(crate) fn cons<'a>(connections: impl IntoIterator<Item = &'a Connection>) -> String {
    let mut text = String::new();
    for connection in connections {
        put_connection(connection, &mut text);
        if let Some(attached) = &connection.session {
            put_attached(attached, &mut text);
        }
        line!(text, ")");
    }
    line!(text);
    text
}

fn put_version(figures: &Figures<'_>, text: &mut String) {
    // Monitoring scripts look for ZooKeeper's exact spelling.
    line!(*text, "Zookeeper version: {}", figures.version);
}

fn put_figures(figures: &Figures<'_>, text: &mut String) {
    let Latency { min_ms, max_ms, .. } = figures.latency;
    let mean = figures.latency.mean();
    line!(*text, "Latency min/avg/max: {min_ms}/{mean}/{max_ms}");
    line!(*text, "Received: {}", figures.received);
    line!(*text, "Sent: {}", figures.sent);
    line!(*text, "Connections: {}", figures.connections);
    line!(*text, "Outstanding: {}", figures.outstanding);
    line!(*text, "Zxid: {}", figures.zxid);
    line!(*text, "Mode: {}", figures.mode.word());
    line!(*text, "Node count: {}", figures.znodes);
}

fn put_connection(connection: &Connection, text: &mut String) {
    put(
        text,
        format_args!(
            " /{}[{}](queued={},recved={},sent={}",
            connection.address,
            u8::from(connection.is_read),
            connection.queued,
            connection.received,
            connection.sent
        ),
    );
}

fn put_attached(attached: &Attached, text: &mut String) {
    let Attached { latency, .. } = attached;
    put(
        text,
        format_args!(
            ",sid={},lop={},est={},to={}",
            attached.id, attached.last_op, attached.established_ms, attached.timeout_ms
        ),
    );
    // Like ZooKeeper, do not show a reserved xid, such as the xid of a ping.
    if let Some(xid) = attached.last_xid.filter(|xid| *xid >= 0) {
        put(text, format_args!(",lcxid={xid:#x}"));
    }
    put(
        text,
        format_args!(
            ",lzxid={},lresp={},llat={},minlat={},avglat={},maxlat={}",
            attached.last_zxid,
            attached.last_answer_ms,
            attached.last_latency_ms,
            latency.min_ms,
            // ZooKeeper truncates this mean to a whole number.
            latency.mean_ms as u64,
            latency.max_ms
        ),
    );
}
