//! Speed of the store. One JSON object per line.
//!
//! `cargo bench -p lockkeeper-bench --bench store -- --url memory:|file:FOLDER|lockkeeper://|zookeeper:// --workload
//! create,set`. docs/performance.md explains the measurements.

#[path = "store/args.rs"]
mod args;
#[path = "common/mod.rs"]
mod common;
#[path = "store/fanout.rs"]
mod fanout;
#[path = "store/ground.rs"]
mod ground;
#[path = "store/reads.rs"]
mod reads;
#[path = "store/recovery.rs"]
mod recovery;
#[path = "store/sketch.rs"]
mod sketch;
#[path = "store/snapshot.rs"]
mod snapshot;
#[path = "store/syncs.rs"]
mod syncs;
#[path = "store/writes.rs"]
mod writes;

use std::sync::Arc;

use args::{Args, Workload};
use common::store_server::StoreServer;
use common::{connection, figures, options, report};

fn main() {
    common::echo::help();
    let mut args = Args::read();
    let server = StoreServer::of_or_exit(&args.url, &args.serving);
    args.url = server.url().into();
    let args = Arc::new(args);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.threads)
        .enable_all()
        .build()
        .expect("a runtime");
    // In a task, so that nothing is measured from outside the runtime.
    let run = runtime.spawn(run(args));
    runtime.block_on(run).expect("the benchmark ends well");
}

async fn run(args: Arc<Args>) {
    if let Some(child) = &args.child {
        return recovery::run_child(&args, *child).await;
    }
    for &workload in &args.workloads {
        match workload {
            Workload::Syncs => syncs::measure(&args).await,
            Workload::Create | Workload::Set => writes::measure(&args, workload).await,
            Workload::Reads => reads::measure(&args).await,
            Workload::Fanout => fanout::measure(&args).await,
            Workload::Snapshot => snapshot::measure(&args).await,
            Workload::Recovery => recovery::measure(&args).await,
        }
    }
}
