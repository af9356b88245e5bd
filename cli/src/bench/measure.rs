//! [`Run`]: the sessions of a benchmark run, which execute the workloads.

use std::future::Future;
use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{Client, ConnectOptions, Error, LockPath, Mutex, RwLock};
use lockkeeper_store::CreateMode;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::report::{Report, Row};
use super::{Bench, HOLDER, Workload};
use crate::exit::Failure;
use crate::locks::json::ms;
use crate::locks::table::duration;
use lockkeeper_cli::bench::kill::kill_to_grant;
use lockkeeper_cli::bench::lock::{Lock, Ours, Place};
use lockkeeper_cli::bench::recipes::{BenchLock, Permits, Side};
use lockkeeper_cli::bench::times::Times;
use lockkeeper_cli::bench::workloads::{Contended, contended, many_keys, uncontended};

const SESSIONS_OF_KEYS: usize = 2;

const PERMITS: u32 = 3;

/// In the read-write lock workload, one in this many clients writes, and the others read.
const WRITER: usize = 8;

/// Session timeout of the process that is killed. The server may negotiate a longer timeout.
const TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Run<'a> {
    bench: &'a Bench,
    keeper: &'a Client,
    place: Place,
    clients: Vec<Client>,
}

impl<'a> Run<'a> {
    pub(super) async fn connect(bench: &'a Bench, keeper: &'a Client) -> Result<Self, Failure> {
        let mut connecting = JoinSet::new();
        for _ in 0..bench.clients {
            let target = bench.target.clone();
            connecting.spawn(async move { target.connect_to_any().await });
        }
        let mut clients = Vec::new();
        while let Some(client) = connecting.join_next().await {
            let client = client.map_err(io::Error::other)?;
            clients.push(client.map_err(|failure| match failure {
                Failure::Unreachable(why) => Failure::Unreachable(format!(
                    "only {} of {} clients could connect: {why}; the server may limit its connections, or those from \
                     one address (ZooKeeper's maxClientCnxns): try fewer --clients",
                    clients.len(),
                    bench.clients
                )),
                failure => failure,
            })?);
        }
        Ok(Self {
            bench,
            keeper,
            place: Place::new(&keeper.session().await?),
            clients,
        })
    }

    pub(super) fn keeper(&self) -> &Client {
        self.keeper
    }

    /// Closes the clients' sessions. Afterwards no client creates znodes, because the store executes all requests of a
    /// session before it closes the session.
    pub(super) async fn end(self) {
        let mut closing = JoinSet::new();
        for client in self.clients {
            closing.spawn(async move { client.close().await });
        }
        // Ignore a failed close, because the session then expires.
        while closing.join_next().await.is_some() {}
    }

    pub(super) async fn quick_round_trip(&self, folder: &LockPath) -> Result<Times, Failure> {
        let session = self.keeper.session().await?;
        let round_trip = || session.exists(folder.as_znode());
        requests(Duration::from_millis(50), round_trip).await?;
        Ok(requests(Duration::from_millis(200), round_trip).await?)
    }

    pub(super) async fn all(&self, folder: &LockPath, report: &mut Report) -> Result<(), Failure> {
        for workload in self.bench.workloads() {
            if let Some(why) = self.impossible(workload) {
                report.skipped(workload, why)?;
                continue;
            }
            let patience = self.bench.patience();
            let measured = self.measure(workload, folder);
            let measured = tokio::time::timeout(patience, measured).await;
            let rows = match measured {
                Ok(rows) => rows.map_err(|failure| named(workload, failure))?,
                Err(_) => {
                    let why = format!(
                        "{}: not finished after {}",
                        workload.name(),
                        duration(patience)
                    );
                    return Err(Failure::Unreachable(why));
                }
            };
            for row in rows {
                report.row(&row)?;
                check(&row)?;
            }
        }
        Ok(())
    }

    fn impossible(&self, workload: Workload) -> Option<&'static str> {
        match workload {
            Workload::HandOver if self.clients.len() == 1 => Some("a hand-over needs two clients"),
            Workload::Expiry if self.is_in_process() => {
                Some("other processes cannot open a store of this process")
            }
            _ => None,
        }
    }

    async fn measure(&self, workload: Workload, folder: &LockPath) -> Result<Vec<Row>, Failure> {
        let (path, folder) = (folder.key(&workload.name()), folder.as_znode());
        let (time, warm_up) = (self.bench.seconds, self.bench.warm_up);
        let rows = match workload {
            Workload::RoundTrip => {
                let session = self.clients[0].session().await?;
                let round_trip = || session.exists(folder);
                requests(warm_up, round_trip).await?;
                let times = requests(time, round_trip).await?;
                vec![self.row(workload, "exists", times)]
            }
            Workload::Write => {
                let session = self.clients[0].session().await?;
                // Write to a child of the folder, because etcd has no key for a container.
                let written = path.as_znode();
                match session.create(written, DATA, CreateMode::Persistent).await {
                    Ok(_) | Err(Error::NodeExists { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
                let write = || session.set_data(written, DATA, None);
                requests(warm_up, write).await?;
                vec![self.row(workload, "set", requests(time, write).await?)]
            }
            Workload::Acquire => {
                let lock = self.lock::<Mutex>(0, path, Side::Write);
                uncontended(&lock, warm_up).await?;
                let (acquires, releases) = uncontended(&lock, time).await?;
                let cycles = acquires.count() as f64 / time.as_secs_f64();
                let row = |operation, times| Row {
                    per_s: Some(cycles),
                    ..self.row(workload, operation, times)
                };
                vec![row("acquire", acquires), row("release", releases)]
            }
            Workload::HandOver => {
                let locks = self.locks::<Mutex>(&path, |_| Side::Write);
                vec![self.contended(workload, locks).await?]
            }
            Workload::Semaphore => {
                let locks = self.locks::<Permits<PERMITS>>(&path, |_| Side::Write);
                vec![self.contended(workload, locks).await?]
            }
            Workload::RwLock => {
                let side = |client: usize| match client.is_multiple_of(WRITER) {
                    true => Side::Write,
                    false => Side::Read,
                };
                vec![
                    self.contended(workload, self.locks::<RwLock>(&path, side))
                        .await?,
                ]
            }
            Workload::Keys => vec![self.keys(workload, &path).await?],
            Workload::Expiry => vec![self.expiry(workload, &path).await?],
        };
        Ok(rows)
    }

    fn row(&self, workload: Workload, operation: &'static str, times: Times) -> Row {
        Row {
            workload,
            operation,
            clients: 1,
            keys: 1,
            per_s: Some(times.count() as f64 / self.bench.seconds.as_secs_f64()),
            times,
            violations: None,
            session_timeout_ms: None,
        }
    }

    fn lock<S: BenchLock>(&self, client: usize, path: LockPath, side: Side) -> Ours<S> {
        Ours {
            subject: S::new(&self.clients[client], path),
            side,
            place: self.place.clone(),
        }
    }

    fn locks<S: BenchLock>(&self, path: &LockPath, side: impl Fn(usize) -> Side) -> Vec<Ours<S>> {
        (0..self.clients.len())
            .map(|client| self.lock(client, path.clone(), side(client)))
            .collect()
    }

    async fn contended<L: Lock>(&self, workload: Workload, locks: Vec<L>) -> Result<Row, Failure> {
        // Yield while holding the lock. If another client was wrongly granted the same lock, it now runs, and the check
        // notices the violation.
        let hold = tokio::task::yield_now;
        contended(&locks, self.bench.warm_up, hold).await?;
        let measured = contended(&locks, self.bench.seconds, hold).await?;
        let Contended { elapsed, waits, .. } = measured;
        let grants: usize = match workload {
            // Several clients hold the lock at the same time, so we count grants instead of hand-overs.
            Workload::Semaphore | Workload::RwLock => measured.grants.iter().sum(),
            _ => measured.handovers,
        };
        Ok(Row {
            clients: locks.len(),
            per_s: Some(grants as f64 / elapsed.as_secs_f64()),
            violations: Some((
                measured.exclusion_violations,
                measured.order_violations.unwrap_or(0),
            )),
            ..self.row(workload, "wait", waits)
        })
    }

    async fn keys(&self, workload: Workload, path: &LockPath) -> Result<Row, Failure> {
        let (keys, clients) = (
            self.bench.keys as usize,
            self.clients.len().min(SESSIONS_OF_KEYS),
        );
        let key = |number: usize| path.key(&number.to_string());
        let locks: Arc<[_]> = (0..keys)
            .map(|number| self.lock::<Mutex>(number % clients, key(number), Side::Write))
            .collect();
        // Lock each key once before measuring, because the first acquires create the parents.
        many_keys(locks.clone(), None).await?;
        let (acquires, elapsed) = many_keys(locks, Some(self.bench.seconds)).await?;
        Ok(Row {
            clients,
            keys,
            per_s: Some(acquires.count() as f64 / elapsed.as_secs_f64()),
            ..self.row(workload, "acquire", acquires)
        })
    }

    async fn expiry(&self, workload: Workload, path: &LockPath) -> Result<Row, Failure> {
        let mutex = Mutex::new(&self.clients[0], path)?;
        let agreed = {
            let options = ConnectOptions::new();
            let client = self.bench.target.connect_within(TIMEOUT, options).await?;
            client.session().await?.timeout()
        };
        let (mut times, start) = (Times::default(), Instant::now());
        while times.count() == 0 || start.elapsed() < self.bench.seconds {
            let mut holder = self.holder(path).await?;
            let killed = kill_to_grant(&mutex, &self.place, || {
                let _ = holder.start_kill();
            });
            times.push(killed.await?);
            let _ = holder.wait().await;
        }
        Ok(Row {
            per_s: None,
            session_timeout_ms: agreed.map(ms),
            ..self.row(workload, "kill to grant", times)
        })
    }

    async fn holder(&self, path: &LockPath) -> Result<Child, Failure> {
        let mut command = Command::from(crate::executable::command()?);
        command.args([HOLDER, path.as_znode().as_str()]);
        let target = &self.bench.target;
        target.hand_down(command.as_std_mut(), TIMEOUT)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Use a separate process group, so that Ctrl-C reaches only this process, which then ends the holder.
        command.process_group(0).kill_on_drop(true);
        let mut holder = command.spawn()?;
        let stdout = holder.stdout.take().expect("piped");
        let mut lines = BufReader::new(stdout).lines();
        match lines.next_line().await? {
            Some(_) => Ok(holder),
            None => Err(Failure::Other(
                "the process that was to hold the lock has ended".into(),
            )),
        }
    }

    fn is_in_process(&self) -> bool {
        let url = self.keeper.target();
        url.starts_with("memory:") || url.starts_with("file:")
    }
}

const DATA: &str = "0123456789012345678901234567890123456789012345678901234567890123";

async fn requests<F, T>(time: Duration, request: impl Fn() -> F) -> Result<Times, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let (mut times, start) = (Times::default(), Instant::now());
    while times.count() == 0 || start.elapsed() < time {
        let asked = Instant::now();
        request().await?;
        times.push(asked.elapsed());
        // The embedded store answers without waiting. Without this call, the loop would never yield, and we would
        // notice neither a signal nor the time limit.
        tokio::task::consume_budget().await;
    }
    Ok(times)
}

fn check(row: &Row) -> Result<(), Failure> {
    match row.violations {
        None | Some((0, 0)) => Ok(()),
        Some((exclusion, order)) => Err(Failure::Other(format!(
            "{}: THE LOCK DOES NOT EXCLUDE: it was granted {exclusion} times while another client held it, and {order} times with a \
             token that was not above those before",
            row.workload.name()
        ))),
    }
}

fn named(workload: Workload, failure: Failure) -> Failure {
    let name = |why: String| format!("{}: {why}", workload.name());
    match failure {
        Failure::Usage(why) => Failure::Usage(name(why)),
        Failure::Unreachable(why) => Failure::Unreachable(name(why)),
        Failure::NotAcquired(why) => Failure::NotAcquired(name(why)),
        Failure::Lost(why) => Failure::Lost(name(why)),
        Failure::Other(why) => Failure::Other(name(why)),
    }
}
