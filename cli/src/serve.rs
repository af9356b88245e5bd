//! `lockkeeper serve`: the server's process, from its options to its exit code.
//!
//! The process prints one line to stdout once it listens. Everything else is on stderr.

mod audit;
mod backups;
mod config;
mod control;
mod dashboard;
mod file_watch;
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
mod reload;
pub(crate) mod signals;
#[cfg_attr(not(target_os = "linux"), path = "serve/no_socket_watch.rs")]
mod socket_watch;
mod watchdog;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{ArgMatches, ValueEnum};
use lockkeeper_store::{
    AuditEvent, AuditOutcome, Error as StoreError, Server, ServerError, SocketListener, Store,
    register_process_metrics,
};
use prometheus::Registry;
use tracing::{error, info, warn};

use self::audit::{AuditLog, AuditWriter};
use self::backups::Backups;
use self::config::Config;
pub(crate) use self::control::Request;
use self::control::{Control, Task};
use self::dashboard::DashboardPlan;
use self::file_watch::FileWatch;
use self::health::ServerHealth;
use self::plan::Plan;
use self::reload::Reloader;
use self::signals::{Action, Signals, StopReason};
use crate::dashboard::OwnLocks;
use crate::http::{Background, HttpPort, HttpServer, MetricsPages};
use crate::values::Data;

pub(crate) use self::flags::Flags;

const USAGE: u8 = 2;

pub(crate) fn run(given: &ArgMatches) -> ExitCode {
    let (config, plan, files) = match planned(given) {
        Ok(planned) => planned,
        Err(why) => {
            crate::output::print_error(why);
            return ExitCode::from(USAGE);
        }
    };
    if config.flags.check_config {
        return match crate::output::print(&plan::describe(&config, &plan)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => crate::exit::failed(&error),
        };
    }
    logs::start(config.flags.log_format, &config.flags.log_level);
    match serve(given, &config, &plan, files) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::exit::failed(&*error),
    }
}

fn planned(given: &ArgMatches) -> Result<(Config, Plan, FileWatch), String> {
    let read = || {
        let config = Config::read(given)?;
        let plan = Plan::of(&config.flags)?;
        Ok::<_, String>((config, plan))
    };
    let (config, plan) = read()?;
    let files = FileWatch::new(plan.watched.clone());
    if plan.watched.is_empty() {
        return Ok((config, plan, files));
    }
    // Read the options again now that the files are watched. Otherwise a change between reading and watching would go
    // unnoticed.
    let (config, plan) = read()?;
    Ok((config, plan, files))
}

fn serve(
    given: &ArgMatches,
    config: &Config,
    plan: &Plan,
    files: FileWatch,
) -> Result<(), Box<dyn Error>> {
    plan.warnings.iter().for_each(|text| warn!("{text}"));
    limits::raise_open_files(plan.open_files);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(plan.threads)
        .thread_name("lockkeeper-serve")
        .enable_all()
        .build()?;
    // Start the metrics first. Opening the store may take long, and probes should see a starting server.
    let health = ServerHealth::default();
    let metrics = Metrics::start(plan, &health)?;
    let dashboard = plan.dashboard.as_ref().map(DashboardPlan::open);
    let dashboard = dashboard.transpose()?;
    let (audit, output) = plan.audit.as_ref().map(AuditLog::open).transpose()?.unzip();
    let life = Life {
        plan,
        metrics: metrics.as_ref(),
        reloader: Reloader::new(given, config, plan, health.clone(), audit.clone()),
        health,
        audit,
    };
    let mut writer = None;
    let ended = runtime.block_on(life.live(dashboard, files, output, &mut writer));
    if ended.is_ok() {
        life.note(AuditEvent::ServerStop);
    }
    drop(writer);
    ended?;
    // Drop the metrics after the drain, so that scrapes and health probes show the drain.
    drop(life);
    drop(metrics);
    // Drop the server tasks, which have handles to the store, so that the log is closed before we report a closed
    // store.
    drop(runtime);
    info!("drained, the store is closed in order");
    Ok(())
}

struct Metrics {
    http: HttpServer,
    registry: Registry,
}

impl Metrics {
    fn start(plan: &Plan, health: &ServerHealth) -> Result<Option<Self>, Box<dyn Error>> {
        let Some(address) = plan.metrics_address else {
            return Ok(None);
        };
        let registry = Registry::new();
        register_process_metrics(&registry)?;
        health.set_token(plan.metrics_token.clone());
        let http = MetricsPages::start(address, registry.clone(), health.clone())?;
        info!(address = %http.address(), "metrics and health");
        Ok(Some(Self { http, registry }))
    }
}

struct Life<'a> {
    plan: &'a Plan,
    metrics: Option<&'a Metrics>,
    health: ServerHealth,
    reloader: Reloader<'a>,
    audit: Option<AuditLog>,
}

impl Life<'_> {
    async fn live(
        &self,
        dashboard: Option<HttpPort>,
        files: FileWatch,
        output: Option<audit::Output>,
        writer: &mut Option<AuditWriter>,
    ) -> Result<(), Box<dyn Error>> {
        // Handle signals before opening the store, so that the server can be stopped while a large store opens.
        let mut signals = Signals::listen()?;
        let store = tokio::select! {
            opened = open(self.plan) => opened?,
            signal = signals.end() => {
                info!(signal, "stopped before the server was ready");
                // Do not wait for the thread that opens the store, because nothing has been acknowledged yet.
                std::process::exit(0)
            }
        };
        // Queue this record before the server listens, so that it precedes the records of clients.
        self.note(AuditEvent::ServerStart);
        let (server, control) = match self.start(&store).await {
            Ok(started) => started,
            Err(error) => {
                close(store).await;
                return Err(error);
            }
        };
        if let Some(metrics) = self.metrics {
            server.register_metrics(&metrics.registry)?;
            self.reloader.register(&metrics.registry)?;
            if let Some(audit) = &self.audit {
                audit.register(&metrics.registry)?;
            }
        }
        self.health.started(server.monitor());
        ready(&server, self.plan, self.metrics, dashboard.as_ref());
        watchdog::start(self.health.clone());
        // Start the audit log after the line on stdout, because the audit log may also write to stdout.
        if let Some((audit, output)) = self.audit.as_ref().zip(output) {
            *writer = Some(audit.begin(output)?);
        }
        let reason = self
            .run(&server, control, &mut signals, &store, dashboard, files)
            .await?;
        notify::stopping();
        info!(%reason, "draining, a second signal stops the server immediately");
        let drained = async {
            if let Some(server) = Arc::into_inner(server) {
                server.shutdown().await;
            }
            // Check for a failure after the shutdown. If the store failed during the drain, we must not report an
            // orderly close.
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
            signal = signals.forced_end(reason) => {
                error!(signal, "stopped before the drain was complete; the next start recovers all acknowledged writes");
                std::process::exit(1)
            }
        }
    }

    async fn start(&self, store: &Store) -> Result<(Arc<Server>, Control), Box<dyn Error>> {
        let plan = self.plan;
        let socket = plan
            .admin_socket
            .as_ref()
            .map(|path| SocketListener::bind(path, ADMIN_MODE));
        let socket = socket
            .transpose()
            .map_err(|error| format!("--admin-socket: {error}"))?;
        let options = plan.server.clone();
        let options = match &self.audit {
            Some(audit) => options.audit(audit.clone()),
            None => options,
        };
        let server = Server::bind(store, options).await;
        let server = Arc::new(server.map_err(|error| explained(error, plan))?);
        let control = Control::start(socket, &server, self.audit.clone());
        Ok((server, control))
    }

    fn reload(
        &self,
        server: &Server,
        files: &mut FileWatch,
        why: &str,
        by: Option<&str>,
    ) -> Result<String, String> {
        let outcome = self.reloader.reload(server, why, by);
        files.watch(self.reloader.watched());
        outcome
    }

    async fn run(
        &self,
        server: &Arc<Server>,
        mut control: Control,
        signals: &mut Signals,
        store: &Store,
        dashboard: Option<HttpPort>,
        mut files: FileWatch,
    ) -> Result<StopReason, Box<dyn Error>> {
        let mut limit = DrainLimit::default();
        let mut unused = Box::pin(unused(server, self.plan));
        // Open these sessions while the loop already runs, because the store opens no session for some time after a
        // crash. The sessions must end when this function returns, because open sessions would keep the store open.
        let starting = async {
            let backups = start_backups(self.plan, store, self.metrics).await;
            let locks = follow_locks(self.plan, dashboard, store, server, self.metrics);
            (backups, locks.await)
        };
        let (mut starting, mut started) = (Box::pin(starting), None);
        // Reload if a SIGHUP arrived during the start, because the files may have been read before the signal.
        if signals.take_hang_up() {
            let _ = self.reload(server, &mut files, "SIGHUP", None);
        }
        let reason = loop {
            tokio::select! {
                action = signals.next() => match action {
                    Action::End(signal) => break StopReason::Signal(signal),
                    Action::HangUp => drop(self.reload(server, &mut files, "SIGHUP", None)),
                },
                failure = store.failed() => return Err(failure.into()),
                why = &mut unused => break StopReason::Other(why),
                both = &mut starting, if started.is_none() => started = Some(both),
                // If one session is left, it is the server's own, which follows the locks. End it, because the drain
                // would wait for it.
                () = server.drained_to(1), if matches!(started, Some((_, Some(_)))) => {
                    started = started.map(|(backups, _)| (backups, None));
                }
                () = server.drained() => break StopReason::Other("all sessions have ended"),
                () = limit.reached() => break StopReason::Other("the drain's time is over"),
                () = files.changed() => drop(self.reload(server, &mut files, "a file has changed", None)),
                task = control.next() => match task {
                    Task::Reload { by, reply } => {
                        let reloaded = self.reload(server, &mut files, "lockkeeper admin", Some(&by));
                        let _ = reply.send(reloaded);
                    }
                    Task::Drain { timeout } => limit.set(timeout.or(self.plan.drain_timeout)),
                    Task::Undrain => limit = DrainLimit::default(),
                },
            }
        };
        drop(unused);
        control.stop().await;
        Ok(reason)
    }

    fn note(&self, event: AuditEvent) {
        if let Some(audit) = &self.audit {
            audit.note(event, AuditOutcome::Success, |_| ());
        }
    }
}

const ADMIN_MODE: u32 = 0o600;

#[derive(Default)]
struct DrainLimit(Option<Instant>);

impl DrainLimit {
    fn set(&mut self, limit: Option<Duration>) {
        self.0 = limit.and_then(|limit| Instant::now().checked_add(limit));
    }

    async fn reached(&self) {
        match self.0 {
            Some(at) => tokio::time::sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }
}

/// Starts the scheduled backups. A failure is only logged, because the locks do not depend on backups.
async fn start_backups(plan: &Plan, store: &Store, metrics: Option<&Metrics>) -> Option<Backups> {
    let (Some(backups), Data::Folder(data)) = (&plan.backups, &plan.data) else {
        return None;
    };
    let start = async {
        let client = store.connect().await?;
        let id = client.store_id().ok_or("a store on the disk has an id")?;
        let registry = metrics.map(|metrics| &metrics.registry);
        Backups::start(backups, data.clone(), id.to_owned(), registry)
    };
    let failed = |error: Box<dyn Error>| error!(%error, "no backups are made");
    start.await.map_err(failed).ok()
}

/// Follows the locks for the metrics and the dashboard. A failure is only logged, because the locks do not depend on
/// either.
async fn follow_locks(
    plan: &Plan,
    port: Option<HttpPort>,
    store: &Store,
    server: &Server,
    metrics: Option<&Metrics>,
) -> Option<Background> {
    let max_bytes = plan.memory.locks?;
    let start = async {
        let client = store.connect().await?;
        let registry = metrics.map(|metrics| &metrics.registry);
        let locks = OwnLocks::new(client.clone(), max_bytes, registry)?;
        match plan.dashboard.as_ref().zip(port) {
            Some((plan, port)) => Ok(plan.serve(port, locks, &client, server)?),
            None => Ok(locks.follow()?),
        }
    };
    let failed = |error: Box<dyn Error>| error!(%error, "the locks are neither counted nor shown on the dashboard");
    start.await.map_err(failed).ok()
}

/// Waits until the server has been idle for `--idle-exit`, or until its socket file is gone.
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

/// Opens the store on a blocking thread, so that signals are handled while a large store opens.
async fn open(plan: &Plan) -> Result<Store, Box<dyn Error>> {
    let Data::Folder(path) = &plan.data else {
        return Ok(Store::memory_with(plan.store.clone()));
    };
    let until = plan.open_timeout.map(|limit| Instant::now() + limit);
    loop {
        let (path, options) = (path.clone(), plan.store.clone());
        let store = tokio::task::spawn_blocking(move || Store::file_with(path, options));
        match store.await? {
            // An exiting process holds the directory for a few more milliseconds, and nothing notifies us when it ends.
            Err(StoreError::StoreInUse { .. }) if until.is_some_and(|it| Instant::now() < it) => {
                tokio::time::sleep(OPEN_RETRY).await;
            }
            opened => return Ok(opened?),
        }
    }
}

const OPEN_RETRY: Duration = Duration::from_millis(10);

async fn close(store: Store) {
    let _ = tokio::task::spawn_blocking(move || drop(store)).await;
}

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

fn ready(server: &Server, plan: &Plan, metrics: Option<&Metrics>, dashboard: Option<&HttpPort>) {
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
    if let Some(dashboard) = dashboard {
        line.push_str(&format!(" dashboard {}", dashboard.address()));
    }
    let durability = match plan.data {
        Data::Memory => None,
        Data::Folder(_) => plan.durability.to_possible_value(),
    };
    info!(
        address = &line["lockkeeper ready ".len()..],
        data = %plan.data,
        durability = durability.as_ref().map(|class| tracing::field::display(class.get_name())),
        threads = plan.threads,
        version = env!("CARGO_PKG_VERSION"),
        "ready"
    );
    line.push('\n');
    // Announce only after the server listens, because a script or systemd may connect as soon as it reads the line.
    crate::output::announce(&line);
    notify::ready();
    // Close stdin, which the server does not read. For a per-user store, stdin is the start lock, so this releases the
    // lock.
    if let Ok(nothing) = std::fs::File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(nothing);
    }
}
