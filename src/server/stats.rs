//! [`Stats`]: current figures of a server, its store and its process, shared by `mntr` and the metrics.

use std::sync::Arc;
use std::time::Duration;

use super::admin::process;
use super::connection_entry::Traffic;
use super::connection_table::{ConnectionTable, Count};
use super::unfinished::Unfinished;
use crate::core::Counts;
use crate::engine::Store;

pub(super) struct Sources {
    pub(super) store: Store,
    pub(super) table: Arc<ConnectionTable>,
    pub(super) unfinished: Arc<Unfinished>,
}

pub(super) struct Stats {
    pub(super) counts: Counts,
    pub(super) traffic: Traffic,
    pub(super) connections: u64,
    pub(super) half_open: u64,
    pub(super) unread_bytes: u64,
    pub(super) unfinished_bytes: u64,
    pub(super) open_files: u64,
    pub(super) max_open_files: u64,
    pub(super) resident_bytes: u64,
    pub(super) uptime: Duration,
    pub(super) log: Option<crate::log::LogStats>,
    counted: Vec<u64>,
}

impl Sources {
    /// Reads all current figures. This reads system files, so do not call it on a thread that serves connections.
    pub(super) fn read(&self) -> Stats {
        let Self {
            store,
            table,
            unfinished,
        } = self;
        Stats {
            counts: store.counts(),
            traffic: table.traffic(),
            connections: table.connections() as u64,
            half_open: table.half_open() as u64,
            unread_bytes: store.unread_bytes() as u64,
            unfinished_bytes: unfinished.bytes() as u64,
            open_files: process::open_files(),
            max_open_files: process::max_open_files(),
            resident_bytes: process::resident_bytes(),
            uptime: table.uptime(),
            log: store.log_stats(),
            counted: Count::ALL.iter().map(|what| table.counted(*what)).collect(),
        }
    }
}

impl Stats {
    #[cfg(feature = "metrics")]
    pub(super) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    pub(super) fn counted(&self, what: Count) -> u64 {
        self.counted[what as usize]
    }
}
