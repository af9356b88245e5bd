//! The service as a program. See the README.

use std::net::SocketAddr;
use std::time::Duration;

use axum_service::{Options, serve};
use clap::Parser;
use lockkeeper::{ConnectOptions, Target, connect_with};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Posts to accounts over HTTP, one request at a time per account.
#[derive(Parser)]
struct Arguments {
    /// Store: memory:, or zookeeper://HOST:PORT[/CHROOT]; a chroot that is missing is created
    #[arg(long, default_value = "memory:")]
    url: Target,
    /// Address to listen on; port 0 is a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Time that a request may wait for its lock
    #[arg(long, default_value_t = 2000)]
    lock_timeout_ms: u64,
    /// Duration of a posting
    #[arg(long, default_value_t = 0)]
    work_ms: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    // Handle SIGTERM before the address is printed, because a supervisor may send it immediately after that.
    let mut terminate = signal(SignalKind::terminate())?;
    let options = ConnectOptions::new().create_chroot();
    let client = connect_with(arguments.url, options).await?;
    let listener = TcpListener::bind(arguments.listen).await?;
    println!("listening on {}", listener.local_addr()?);
    let options = Options {
        lock_timeout: Duration::from_millis(arguments.lock_timeout_ms),
        work: Duration::from_millis(arguments.work_ms),
    };
    let shutdown = async move {
        terminate.recv().await;
        println!("draining");
    };
    serve(listener, client, options, shutdown).await?;
    println!("closed");
    Ok(())
}
