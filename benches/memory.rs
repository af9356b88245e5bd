//! The memory of a waiter: the growth of live allocations over 100,000 waiters of one session with default metadata,
//! minus the cost of as many tasks waiting for a tokio mutex.
//!
//! `cargo bench -p lockkeeper-bench --bench memory`. A separate benchmark, because counting slows every allocation.

#[path = "common/mod.rs"]
mod common;

use std::alloc::System;
use std::future::Future;
use std::hint::black_box;

use common::report::Line;
use lockkeeper::{Mutex, Store};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const WAITERS: usize = 100_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(async {
        let ours = growth(ours().await).await;
        let task = growth(tokio_mutex().await).await;
        let figures = [
            ("bytes_per_waiter", ours - task),
            ("bytes_per_waiter_with_its_task", ours),
            ("bytes_per_tokio_waiter_with_its_task", task),
        ];
        let row = figures.map(|(name, bytes)| (name.to_owned(), bytes as f64));
        let line = Line::new("lockkeeper", "memory:", "memory");
        let line = line.with("recipe", "mutex").with("clients", 1);
        line.with("n", WAITERS).print(&row.into());
    });
}

/// Returns the bytes per waiter, including its task, for tasks that run `wait`.
async fn growth<F: Future<Output = ()> + Send + 'static>(wait: impl Fn() -> F) -> i64 {
    // The first waiters allocate shared tables, which do not count.
    let mut tasks: Vec<_> = Vec::with_capacity(WAITERS + 1_000);
    tasks.extend((0..1_000).map(|_| tokio::spawn(wait())));
    settle().await;
    let before = live();
    tasks.extend((0..WAITERS).map(|_| tokio::spawn(wait())));
    settle().await;
    let grown = live() - before;
    for task in tasks.iter().rev() {
        task.abort();
    }
    for task in tasks {
        let ended = task.await;
        assert!(ended.is_err(), "a waiter was granted what another holds");
    }
    grown / WAITERS as i64
}

async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn live() -> i64 {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as i64 - stats.bytes_deallocated as i64
}

async fn ours() -> impl Fn() -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    let client = Store::memory().connect().await.expect("a session");
    let mutex = Mutex::new(&client, "/lock/memory").expect("a valid path");
    let held = mutex.lock().await.expect("granted");
    std::mem::forget(held);
    move || {
        let mutex = mutex.clone();
        Box::pin(async move { drop(black_box(mutex.lock().await)) })
    }
}

async fn tokio_mutex() -> impl Fn() -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
    let mutex: &tokio::sync::Mutex<()> = Box::leak(Box::default());
    std::mem::forget(mutex.lock().await);
    move || Box::pin(async move { drop(black_box(mutex.lock().await)) })
}
