//! Parts that the benchmarks share: options, the format of the report, servers, and a plain connection.

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

/// The workloads and figures of `lockkeeper bench`, which measures any store by them, without its peers.
pub(crate) use lockkeeper_cli::bench::{kill, lock, recipes, times, workloads};

/// Returns another number each time, for names within this run.
pub(crate) fn fresh_number() -> usize {
    static USED: AtomicUsize = AtomicUsize::new(0);
    USED.fetch_add(1, Ordering::Relaxed)
}

/// Returns a name that no other run has.
pub(crate) fn fresh_name() -> String {
    format!("{}-{}", std::process::id(), fresh_number())
}

/// Returns the runtime of a load: a single thread runs it in place.
pub(crate) fn runtime(threads: usize) -> tokio::runtime::Runtime {
    runtime_with(threads, || {})
}

/// Returns the same; each of its threads begins with `on_start`.
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
