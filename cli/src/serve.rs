//! `lockkeeper serve`: the life of the server's process, from its options to its exit code.
//!
//! stdout has one line, once the server listens; everything else goes to stderr. Exit codes: 0 drained, or
//! configuration checked; 1 failed; 2 wrong usage, which includes a wrong configuration.

mod config;
mod flags;
mod health;
mod limits;
pub(crate) mod logs;
#[cfg_attr(not(target_os = "linux"), path = "serve/assumed_memory.rs")]
mod machine_memory;
mod memory;
#[cfg_attr(not(target_os = "linux"), path = "serve/no_notify.rs")]
mod notify;
mod plan;
pub(crate) mod signals;
#[cfg_attr(not(target_os = "linux"), path = "serve/no_socket_watch.rs")]
mod socket_watch;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ArgMatches;
use lockkeeper_store::{Error as StoreError, Server, ServerError, Store, register_process_metrics};
use prometheus::Registry;
use tracing::{error, info, warn};

use self::config::Config;
use self::health::ServerHealth;
use self::plan::Plan;
use self::signals::{Action, Signals};
use crate::http::HttpServer;
use crate::values::Data;

pub(crate) use self::flags::Flags;

/// Exit code of wrong usage; the same as clap's.
const USAGE: u8 = 2;

/// Serves until a signal, or until the store fails.
pub(crate) fn run(given: &ArgMatches) -> ExitCode {
    let (config, plan) = match planned(given) {
        Ok(planned) => planned,
        Err(why) => {
            eprintln!("lockkeeper: {why}");
            return ExitCode::from(USAGE);
        }
    };
    if config.flags.check_config {
        return match crate::print(&plan::describe(&config, &plan)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => crate::failed(&error),
        };
    }
    logs::start(config.flags.log_format, &config.flags.log_level);
    match serve(&plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::failed(&*error),
    }
}

fn planned(given: &ArgMatches) -> Result<(Config, Plan), String> {
    let config = Config::read(given)?;
    let plan = Plan::of(&config.flags)?;
    Ok((config, plan))
}

fn serve(plan: &Plan) -> Result<(), Box<dyn Error>> {
    plan.warnings.iter().for_each(|text| warn!("{text}"));
    limits::raise_open_files(plan.open_files);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(plan.threads)
        .thread_name("lockkeeper-serve")
        .enable_all()
        .build()?;
    // Before the store is opened, which may take long: a probe sees that the server is starting.
    let metrics = Metrics::start(plan)?;
    runtime.block_on(live(plan, metrics.as_ref()))?;
    // After the drain, which is seen there as well.
    drop(metrics);
    // Drops the last handles of the store, those of the server's tasks: its log is closed before the next line says so.
    drop(runtime);
    info!("drained; the store is closed in order");
    Ok(())
}

/// Metrics and health, where they are served.
struct Metrics {
    http: HttpServer,
    registry: Registry,
    health: ServerHealth,
}

impl Metrics {
    fn start(plan: &Plan) -> Result<Option<Self>, Box<dyn Error>> {
        let Some(address) = plan.metrics_address else {
            return Ok(None);
        };
        let (registry, health) = (Registry::new(), ServerHealth::default());
        register_process_metrics(&registry)?;
        let option = "--metrics-listen";
        let http = HttpServer::start(address, option, registry.clone(), health.clone())?;
        info!(address = %http.address(), "metrics and health");
        Ok(Some(Self {
            http,
            registry,
            health,
        }))
    }

    fn started(&self, server: &Server) -> Result<(), Box<dyn Error>> {
        server.register_metrics(&self.registry)?;
        self.health.started(server.monitor());
        Ok(())
    }
}

async fn live(plan: &Plan, metrics: Option<&Metrics>) -> Result<(), Box<dyn Error>> {
    // Before the store is opened, which may take long: a server can be stopped before it is ready.
    let mut signals = Signals::listen()?;
    let store = tokio::select! {
        opened = open(plan) => opened?,
        signal = signals.end() => {
            info!(signal, "stopped before the server was ready");
            // Without waiting for the thread that opens the store: it has acknowledged nothing.
            std::process::exit(0)
        }
    };
    let server = match Server::bind(&store, plan.server.clone()).await {
        Ok(server) => server,
        Err(error) => {
            close(store).await;
            return Err(explained(error, plan));
        }
    };
    if let Some(metrics) = metrics {
        metrics.started(&server)?;
    }
    ready(&server, plan, metrics)?;
    let mut unused = Box::pin(unused(&server, plan));
    let signal = loop {
        let action = tokio::select! {
            action = signals.next() => action,
            failure = store.failed() => return Err(failure.into()),
            reason = &mut unused => break reason,
        };
        match action {
            Action::End(signal) => break signal,
            Action::HangUp => renew(&server, plan),
        }
    };
    drop(unused);
    notify::stopping();
    info!(signal, "draining; a second signal stops the server at once");
    let drained = async {
        server.shutdown().await;
        // A store that failed during the drain must not be reported as closed in order.
        let failure = tokio::select! {
            biased;
            failure = store.failed() => Some(failure),
            () = std::future::ready(()) => None,
        };
        close(store).await;
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    };
    tokio::select! {
        drained = drained => drained,
        signal = signals.end() => {
            error!(signal, "stopped before the drain was complete; the next start recovers all acknowledged writes");
            std::process::exit(1)
        }
    }
}

/// Waits for the end of a server that nobody uses, where `--idle-exit` asks for one. Returns the reason.
async fn unused(server: &Server, plan: &Plan) -> &'static str {
    let Some(time) = plan.idle_exit else {
        return std::future::pending().await;
    };
    let removed = async {
        match server.unix_path() {
            Some(path) => socket_watch::removed(path).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = server.idle(time) => "idle",
        () = removed => "its socket's file is gone",
    }
}

/// Opens the store on a blocking thread: a large store takes long, and signals are handled meanwhile.
async fn open(plan: &Plan) -> Result<Store, Box<dyn Error>> {
    let Data::Folder(path) = &plan.data else {
        return Ok(Store::memory_with(plan.store.clone()));
    };
    let until = plan.open_timeout.map(|limit| Instant::now() + limit);
    loop {
        let (path, options) = (path.clone(), plan.store.clone());
        let store = tokio::task::spawn_blocking(move || Store::file_with(path, options));
        match store.await? {
            // A process that ends has the directory for some milliseconds more, and nothing tells when it lets go.
            Err(StoreError::StoreInUse { .. }) if until.is_some_and(|it| Instant::now() < it) => {
                tokio::time::sleep(OPEN_RETRY).await;
            }
            opened => return Ok(opened?),
        }
    }
}

/// Pause between attempts to open a store that another process has open.
const OPEN_RETRY: Duration = Duration::from_millis(10);

/// Closes the store by dropping its last handle: its log is written, and marked as closed in order.
async fn close(store: Store) {
    // Cannot fail: a panic ends the process.
    let _ = tokio::task::spawn_blocking(move || drop(store)).await;
}

/// Reloads the certificates. If they cannot be used, the former ones stay in use.
fn renew(server: &Server, plan: &Plan) {
    let Some(files) = &plan.tls else {
        info!("SIGHUP ignored: there are no certificates to reload; other options need a restart");
        return;
    };
    let renewed = files.read().map_err(ServerError::from);
    match renewed.and_then(|tls| server.reload_tls(tls)) {
        Ok(()) => info!("SIGHUP: certificates reloaded; other options need a restart"),
        Err(error) => {
            error!(%error, "certificates not reloaded: the former ones stay in use")
        }
    }
}

/// Adds advice for the operator to an error.
fn explained(error: ServerError, plan: &Plan) -> Box<dyn Error> {
    match error {
        ServerError::AddressInUse { address } => {
            let is_tls = plan.tls.as_ref().is_some_and(|tls| tls.address == address);
            let option = if is_tls { "--tls-listen" } else { "--listen" };
            format!("{address} is in use by another program: choose another address with {option}")
                .into()
        }
        ServerError::UnixSocketInUse { path } => format!(
            "{} is in use, another server listens there: choose another path with --listen unix:PATH",
            path.display()
        )
        .into(),
        error => error.into(),
    }
}

/// Reports that the server is ready, with its addresses: on stdout, in the log, and to systemd.
fn ready(server: &Server, plan: &Plan, metrics: Option<&Metrics>) -> std::io::Result<()> {
    let mut line = String::from("lockkeeper ready");
    if let Some(address) = server.local_addr() {
        line.push_str(&format!(" {address}"));
    }
    if let Some(address) = server.tls_addr() {
        line.push_str(&format!(" tls {address}"));
    }
    if let Some(path) = server.unix_path() {
        line.push_str(&format!(" unix:{}", path.display()));
    }
    if let Some(metrics) = metrics {
        line.push_str(&format!(" metrics {}", metrics.http.address()));
    }
    let durability = match plan.data {
        Data::Memory => None,
        Data::Folder(_) => Some(tracing::field::debug(plan.durability)),
    };
    info!(
        address = &line["lockkeeper ready ".len()..],
        data = %plan.data,
        durability,
        threads = plan.threads,
        version = env!("CARGO_PKG_VERSION"),
        "ready"
    );
    line.push('\n');
    // After the server listens: a script or systemd that sees this may connect at once.
    crate::print(&line)?;
    notify::ready();
    // The server reads nothing: a starter's lock, which it has had as its stdin, is free from here on.
    if let Ok(nothing) = std::fs::File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(nothing);
    }
    Ok(())
}
