//! The service as a program. See the README beside it.

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum_service::{Options, serve};
use lexopt::prelude::*;
use lockkeeper::{ConnectOptions, Target, connect_with};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

const HELP: &str = "\
A service that posts to accounts, one request at a time per account.

  axum-service [OPTIONS]

  --url URL                where the locks are: memory: (default) or zookeeper://host:port[/chroot];
                           a chroot that is missing is made
  --listen ADDRESS:PORT    where to listen (default 127.0.0.1:0: a port that is free)
  --lock-timeout-ms MS     how long a request waits for its lock (default 2000)
  --work-ms MS             how long a posting takes (default 0)
  --help                   this text

Exit status: 0 after a clean stop, 1 when anything is wrong, 2 for a bad command line.
";

struct Arguments {
    target: Target,
    listen: SocketAddr,
    options: Options,
    help: bool,
}

fn arguments() -> Result<Arguments, lexopt::Error> {
    let mut arguments = Arguments {
        target: Target::memory(),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        options: Options {
            lock_timeout: Duration::from_secs(2),
            work: Duration::ZERO,
        },
        help: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(option) = parser.next()? {
        match option {
            Long("url") => arguments.target = parser.value()?.parse()?,
            Long("listen") => arguments.listen = parser.value()?.parse()?,
            Long("lock-timeout-ms") => {
                arguments.options.lock_timeout = Duration::from_millis(parser.value()?.parse()?);
            }
            Long("work-ms") => {
                arguments.options.work = Duration::from_millis(parser.value()?.parse()?);
            }
            Short('h') | Long("help") => arguments.help = true,
            other => return Err(other.unexpected()),
        }
    }
    Ok(arguments)
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("axum-service: {error} (see --help)");
            return ExitCode::from(2);
        }
    };
    if arguments.help {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("axum-service: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    // Before anybody can know of the service: from here on SIGTERM no longer kills it.
    let mut terminate = signal(SignalKind::terminate())?;
    let options = ConnectOptions::new().create_chroot();
    let client = connect_with(arguments.target, options).await?;
    let listener = TcpListener::bind(arguments.listen).await?;
    println!("listening on {}", listener.local_addr()?);
    let shutdown = async move {
        terminate.recv().await;
        println!("draining");
    };
    serve(listener, client, arguments.options, shutdown).await?;
    println!("closed");
    Ok(())
}
