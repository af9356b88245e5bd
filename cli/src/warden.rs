//! `lockkeeper warden`: reports overdue locks, and removes holders whose time is up.
//!
//! Several wardens elect one that acts. Each removal checks, in its own transaction, that this warden's entry in the
//! election still exists. A warden that has lost the election without noticing it therefore removes nothing.

mod metrics;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use lockkeeper::{
    Client, Election, Error, FencingEnforced, Leadership, LockError, LockPath, LockPrefix, Overdue,
    OverdueLevel, QueueEntry, WardenReport, WardenReports, ZnodePath,
};
use serde_json::{Map, Value};

use self::metrics::Monitor;
use crate::exit::Failure;
use crate::http::{HttpServer, MetricsPages};
use crate::locks::names::{escaped, lock_name, lock_prefix};
use crate::locks::table::duration;
use crate::locks::{described, json};
use crate::serve::{logs, signals::Signals};
use crate::target::{Target, lock_path};
use crate::values;

/// The arguments of `warden`.
#[derive(Args, Debug)]
pub(crate) struct Warden {
    /// Selects locks. /a/path selects the locks at and below that path. Any other text selects the locks whose names
    /// start with it
    prefix: Option<String>,
    /// Takes a lock away if the holder exceeds the auto-unlock time that it declared. Safe only if every resource that
    /// the locks protect checks fencing tokens
    #[arg(long)]
    auto_unlock: bool,
    /// Prints one JSON object per report
    #[arg(long)]
    json: bool,
    /// Election that decides which of several wardens acts [default: shared by the wardens with the same prefix and the
    /// same --auto-unlock]
    #[arg(long, value_name = "NAME")]
    election: Option<String>,
    /// Address that serves /metrics, /healthz and /readyz over HTTP, without authentication
    #[arg(long, value_name = "ADDRESS", value_parser = values::address)]
    metrics_listen: Option<SocketAddr>,
    #[command(flatten)]
    target: Target,
}

/// Default log level. Excludes the library's warden, because its lines repeat the reports on stdout.
const LOG: &str = "warn,lockkeeper_warden=info,lockkeeper::warden=off";

const PAUSE: Duration = Duration::from_secs(1);

enum End {
    Signal,
    NoReader,
    Lost,
}

impl Warden {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let prefix = lock_prefix(self.prefix.as_deref())?;
        let election = self.election()?;
        let level = std::env::var("LOCKKEEPER_LOG").unwrap_or_else(|_| LOG.into());
        logs::start(
            logs::Format::Text,
            &logs::level(&level).map_err(Failure::Usage)?,
        );
        let mut signals = Signals::listen()?;
        let seen = Monitor::default();
        let _http = self.serve_metrics(&seen)?;
        let client = tokio::select! {
            client = self.target.connect() => client?,
            _ = signals.next() => return Ok(()),
        };
        seen.connected(&client);
        let election = Election::new(&client, election)?;
        let me = format!("{} pid {}", host(), std::process::id());
        loop {
            tracing::info!(target: "lockkeeper_warden", election = %election.path(), "waits for its turn");
            let leadership = tokio::select! {
                leadership = election.campaign(&*me) => leadership,
                _ = signals.next() => return Ok(()),
            };
            let leadership = match leadership {
                Ok(leadership) => leadership,
                Err(error) if may_pass(&error) => {
                    tracing::warn!(target: "lockkeeper_warden", %error, "not a candidate any more: trying again");
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE) => continue,
                        _ = signals.next() => return Ok(()),
                    }
                }
                Err(error) => return Err(error.into()),
            };
            match self
                .act(&client, &prefix, &leadership, &mut signals, &seen)
                .await?
            {
                End::Signal | End::NoReader => {
                    // Wait only a short time for the release. If the store is unreachable, the session expires anyway.
                    let released = leadership.release();
                    let _ = tokio::time::timeout(PAUSE, released).await;
                    return Ok(());
                }
                End::Lost => {
                    tracing::warn!(target: "lockkeeper_warden", "another warden may act now");
                }
            }
        }
    }

    fn serve_metrics(&self, seen: &Monitor) -> Result<Option<HttpServer>, Failure> {
        let Some(address) = self.metrics_listen else {
            return Ok(None);
        };
        let registry =
            metrics::registry(seen).map_err(|error| Failure::Other(error.to_string()))?;
        let http = MetricsPages::start(address, registry, seen.clone());
        let http = http.map_err(Failure::Other)?;
        tracing::info!(target: "lockkeeper_warden", address = %http.address(), "metrics and health");
        Ok(Some(http))
    }

    /// Returns the path of the election. By default, wardens that only report and wardens that remove holders have
    /// separate elections, because a reporting warden must not keep out a removing warden.
    fn election(&self) -> Result<LockPath, Failure> {
        if let Some(name) = &self.election {
            return lock_path(name);
        }
        let prefix = self.prefix.as_deref().unwrap_or("/");
        let task = if self.auto_unlock { "unlock" } else { "report" };
        Ok(LockPath::new("/lockkeeper/wardens")?.key(&format!("{task} {prefix}")))
    }

    async fn act(
        &self,
        client: &Client,
        prefix: &LockPrefix,
        leadership: &Leadership,
        signals: &mut Signals,
        seen: &Monitor,
    ) -> Result<End, Failure> {
        tracing::info!(target: "lockkeeper_warden", %prefix, auto_unlock = self.auto_unlock, "leads");
        let builder = lockkeeper::Warden::builder(client).watch_prefix(prefix)?;
        let builder = match self.auto_unlock {
            true => builder.remove_overdue_while(FencingEnforced, leadership.path()),
            false => builder,
        };
        // The library's warden ends when it is dropped, so every return from this function ends it.
        let (warden, mut reports) = builder.start();
        let _leads = seen.leads(warden);
        tokio::select! {
            // Check the leadership first, so that a warden that has lost the leadership reports nothing more.
            biased;
            _ = leadership.lost() => Ok(End::Lost),
            _ = signals.next() => Ok(End::Signal),
            end = self.print_all(&mut reports) => end,
        }
    }

    async fn print_all(&self, reports: &mut WardenReports) -> Result<End, Failure> {
        let mut failure = None;
        while let Some(report) = reports.next().await {
            if let WardenReport::Removed { path, entry } = &report {
                let lock = escaped(&lock_name(path));
                let holder = described(entry);
                tracing::warn!(target: "lockkeeper_warden", %lock, %holder, "an overdue lock was taken away");
            }
            let line = match self.json {
                true => object(&report).to_string(),
                false => shown(&report),
            };
            match writeln!(io::stdout().lock(), "{line}") {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    return Ok(End::NoReader);
                }
                // Continue after an error on stdout, because later reports and removals matter more.
                Err(error) => {
                    tracing::warn!(target: "lockkeeper_warden", %error, "stdout cannot be written");
                }
                Ok(()) => {}
            }
            if let WardenReport::Failed { .. } = &report {
                failure = Some(line);
            }
        }
        let why = failure.unwrap_or_else(|| "the client was closed".into());
        Err(Failure::Other(format!(
            "the locks are not watched any more: {why}"
        )))
    }
}

fn may_pass(error: &LockError) -> bool {
    use Error::{ConnectFailed, ConnectionLoss, SessionExpired};
    // After a lost session, the warden campaigns again in a new session. If an operator has deleted the warden's entry,
    // the warden queues again.
    matches!(
        error,
        LockError::Store(ConnectFailed { .. } | ConnectionLoss | SessionExpired { .. })
            | LockError::EntryDeleted { .. }
    )
}

fn host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

fn shown(report: &WardenReport) -> String {
    match report {
        WardenReport::Overdue(overdue) => {
            let lock = escaped(&lock_name(&overdue.path));
            let seen_for = duration(overdue.seen_for);
            let (level, over_by) = (overdue.level, duration(overdue.over_by));
            let holder = described(&overdue.entry);
            format!(
                "overdue {lock}: held for {seen_for} or longer, {level}, by {over_by}: {holder}"
            )
        }
        WardenReport::Removed { path, entry } => {
            let lock = escaped(&lock_name(path));
            format!("removed {lock}: {}", described(entry))
        }
        WardenReport::Failed { path, error } => {
            let error = escaped(&error.to_string());
            format!("unwatched {}: {error}", escaped(path.as_str()))
        }
        WardenReport::Missed { count } => format!("missed {count} reports: stdout was too slow"),
        _ => "a report that this version does not know".into(),
    }
}

fn object(report: &WardenReport) -> Value {
    let mut object = Map::new();
    match report {
        WardenReport::Overdue(overdue) => {
            about(&mut object, "overdue", &overdue.path, &overdue.entry);
            object.insert("level".into(), level(overdue).into());
            object.insert("seen_ms".into(), json::ms(overdue.seen_for).into());
            object.insert("over_ms".into(), json::ms(overdue.over_by).into());
        }
        WardenReport::Removed { path, entry } => about(&mut object, "removed", path, entry),
        WardenReport::Failed { path, error } => {
            object.insert("event".into(), "unwatched".into());
            object.insert("path".into(), path.as_str().into());
            object.insert("error".into(), error.to_string().into());
        }
        WardenReport::Missed { count } => {
            object.insert("event".into(), "missed".into());
            object.insert("count".into(), (*count).into());
        }
        _ => drop(object.insert("event".into(), "unknown".into())),
    }
    object.into()
}

fn about(object: &mut Map<String, Value>, event: &str, path: &ZnodePath, entry: &QueueEntry) {
    let metadata = entry.metadata.clone().unwrap_or_default();
    object.insert("event".into(), event.into());
    object.insert("lock".into(), lock_name(path).into());
    object.insert("path".into(), path.as_str().into());
    object.insert("entry".into(), entry.path.as_str().into());
    object.insert("token".into(), entry.fencing_token.to_string().into());
    object.insert("session".into(), entry.owner.to_string().into());
    object.insert("host".into(), metadata.host.into());
    object.insert("pid".into(), metadata.pid.into());
    object.insert("label".into(), metadata.label.into());
}

fn level(overdue: &Overdue) -> &'static str {
    match overdue.level {
        OverdueLevel::Expected => "expected",
        OverdueLevel::Alert => "alert",
        OverdueLevel::AutoUnlock => "auto_unlock",
        _ => "unknown",
    }
}
