//! Shared parts of the benchmarks: options, report format, servers and a plain connection.

#![allow(dead_code, unused_imports, reason = "each benchmark uses a part of it")]

pub(crate) mod connection;
pub(crate) mod disk;
pub(crate) mod echo;
pub(crate) mod figures;
pub(crate) mod helper;
pub(crate) mod more_recipes;
pub(crate) mod options;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod socket;
pub(crate) mod store_server;

use std::sync::atomic::{AtomicUsize, Ordering};

/// The workloads and figures of `lockkeeper bench`, which measures any store but no peers.
pub(crate) use lockkeeper_cli::bench::{kill, lock, recipes, times, workloads};

/// Returns a number that is unique in this run.
pub(crate) fn fresh_number() -> usize {
    static USED: AtomicUsize = AtomicUsize::new(0);
    USED.fetch_add(1, Ordering::Relaxed)
}

/// Returns a name that is unique among all runs.
pub(crate) fn fresh_name() -> String {
    format!("{}-{}", std::process::id(), fresh_number())
}

/// Returns the runtime of a load. A single thread runs it in place.
pub(crate) fn runtime(threads: usize) -> tokio::runtime::Runtime {
    runtime_with(threads, || {})
}

/// Like `runtime`. Each thread runs `on_start` first.
pub(crate) fn runtime_with(
    threads: usize,
    on_start: impl Fn() + Send + Sync + 'static,
) -> tokio::runtime::Runtime {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).on_thread_start(on_start);
    let runtime = builder.enable_all().build();
    runtime.expect("a runtime")
}
