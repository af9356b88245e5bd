//! The load of a soak in a separate process: several clients of one or more stores, and everything that could leak.

mod bulk;
mod contend;
mod paths;
mod session_churn;
mod tally;
mod watching;

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;
use lockkeeper::{Client, ConnectOptions, LockError, Store, StoreOptions, connect_with};
use testkit::Random;
use testkit::contender::is_out_of_reach;
use testkit::resource::Gate;
use tokio::task::JoinSet;

use self::contend::Contender;
use self::tally::Tally;
use crate::run::no_entry_is_left;

/// Options of a process.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// The stores: `lockkeeper://…`, `lockkeeper+unix://…`, `file:DIR` and `memory:`.
    #[arg(required = true)]
    urls: Vec<String>,
    /// Folder of the resources that the locks guard.
    #[arg(long)]
    gates: PathBuf,
    /// Number of this process, and seed of what it does.
    #[arg(long)]
    number: u64,
    /// Bytes of large values to write in a second.
    #[arg(long, default_value_t = 0)]
    bulk: u64,
    /// Only contends, and is killed at some moment.
    #[arg(long)]
    guest: bool,
}

/// Session timeout of a served store's clients. Guests have the shorter one because they are killed repeatedly.
const TIMEOUT: Duration = Duration::from_secs(10);
const GUEST_TIMEOUT: Duration = Duration::from_secs(4);

const INTERVAL: Duration = Duration::from_millis(500);

/// Number of clients of a store that live as long as the process.
const CLIENTS: usize = 3;

/// Address of a store.
enum Door {
    Url(String, Duration),
    Own(Store),
}

/// State shared by the tasks of one store.
struct Load {
    door: Door,
    /// Name of the store in figures.
    name: &'static str,
    gate: Gate,
    tally: Tally,
    number: u64,
    is_finishing: Arc<AtomicBool>,
}

impl Load {
    fn is_finishing(&self) -> bool {
        self.is_finishing.load(Ordering::Relaxed)
    }

    async fn connect(&self) -> Result<Client, lockkeeper::Error> {
        match &self.door {
            Door::Url(url, timeout) => {
                let options = ConnectOptions::new()
                    .session_timeout(*timeout)
                    .connect_timeout(Duration::from_secs(10));
                connect_with(url.as_str(), options).await
            }
            Door::Own(store) => store.connect().await,
        }
    }

    /// Connects, and retries because connections may be cut at any time.
    async fn connected(&self) -> Client {
        loop {
            match self.connect().await {
                Ok(client) => return client,
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Returns a name that was never used before.
    fn fresh(&self) -> String {
        format!("{}-{}-{}", self.name, self.number, self.tally.number())
    }

    /// Records an error. It is a violation unless a cut connection explains it.
    fn failed(&self, what: &str, error: &LockError) {
        match is_expected(error) {
            true => self.tally.add(&self.tally.interrupted, 1),
            false => violation(&format!("error: {what} at {}: {error:?}", self.name)),
        }
    }

    fn request(&self, what: &str, outcome: Result<(), lockkeeper::Error>) {
        self.tally.add(&self.tally.ops, 1);
        if let Err(error) = outcome {
            self.failed(what, &LockError::from(error));
        }
    }
}

/// Returns `true` for an error caused by a cut connection or session.
fn is_expected(error: &LockError) -> bool {
    is_out_of_reach(error) || error.is_session_end() || matches!(error, LockError::Timeout { .. })
}

/// Reports a broken promise to the parent.
fn violation(text: &str) {
    say(&format!("violation {}", text.replace('\n', " ")));
}

/// Writes a line to the parent immediately.
fn say(line: &str) {
    let line = format!("{line}\n");
    if std::io::stdout().write_all(line.as_bytes()).is_err() {
        std::process::exit(0);
    }
}

/// Runs the load until the parent says `finish` and all tasks have ended. The process ends with its stdin.
pub(crate) fn run(options: &Options) {
    let is_finishing = Arc::<AtomicBool>::default();
    let heard = is_finishing.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            heard.store(line == "finish", Ordering::Relaxed);
        }
        std::process::exit(0);
    });
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be made").block_on(async {
        match carry_out(options, &is_finishing).await {
            Ok(()) => say("done"),
            Err(error) => violation(&format!("error: {error}")),
        }
        std::future::pending::<()>().await;
    });
}

async fn carry_out(options: &Options, is_finishing: &Arc<AtomicBool>) -> std::io::Result<()> {
    let mut loads = Vec::new();
    for url in &options.urls {
        loads.push(Arc::new(load(options, url, is_finishing)?));
    }
    let reporting = tokio::spawn(report(loads.clone()));
    let mut tasks = JoinSet::new();
    for (place, load) in loads.iter().enumerate() {
        let clients = clients(load, options.guest).await;
        let seed = Random((options.number << 8) + place as u64);
        start(load, &clients, options, seed, &mut tasks);
        tasks.spawn(close(load.clone(), clients));
    }
    say("ready");
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            violation(&format!("error: a task has failed: {error}"));
        }
    }
    reporting.abort();
    drop(loads);
    if let Err(tasks) = until_no_task_is_left().await {
        violation(&format!("left behind: {tasks} tasks of the runtime"));
    }
    Ok(())
}

fn load(options: &Options, url: &str, is_finishing: &Arc<AtomicBool>) -> std::io::Result<Load> {
    let own = StoreOptions::new().reaper_interval(Duration::from_secs(2));
    let timeout = if options.guest {
        GUEST_TIMEOUT
    } else {
        TIMEOUT
    };
    let (name, door) = if url == "memory:" {
        ("memory", Door::Own(Store::memory_with(own)))
    } else if let Some(folder) = url.strip_prefix("file:") {
        let store = Store::file_with(folder, own).map_err(std::io::Error::other)?;
        ("file", Door::Own(store))
    } else {
        ("served", Door::Url(url.to_owned(), timeout))
    };
    Ok(Load {
        door,
        name,
        gate: Gate::open(&options.gates.join(name))?,
        tally: Tally::default(),
        number: options.number,
        is_finishing: is_finishing.clone(),
    })
}

async fn clients(load: &Load, is_guest: bool) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..if is_guest { 1 } else { CLIENTS } {
        clients.push(load.connected().await);
    }
    clients
}

fn start(
    load: &Arc<Load>,
    clients: &[Client],
    options: &Options,
    mut random: Random,
    tasks: &mut JoinSet<()>,
) {
    for client in clients {
        for keys in testkit::contender::CONTENDERS {
            let contender = Contender {
                load: load.clone(),
                client: client.clone(),
                keys,
            };
            tasks.spawn(contender.contend(random.fork()));
        }
    }
    if options.guest {
        return;
    }
    let (first, last) = (&clients[0], &clients[CLIENTS - 1]);
    for client in [first, last] {
        let load = || load.clone();
        tasks.spawn(paths::lock(load(), client.clone(), random.fork()));
        tasks.spawn(paths::write(load(), client.clone(), random.fork()));
        tasks.spawn(watching::watch(load(), client.clone(), random.fork()));
        tasks.spawn(watching::observe(load(), client.clone(), random.fork()));
        tasks.spawn(watching::follow(load(), client.clone(), random.fork()));
        tasks.spawn(session_churn::visit(load(), random.fork()));
    }
    if options.number == 0 {
        tasks.spawn(watching::guard(load.clone(), last.clone()));
    }
    for writer in 0..if options.bulk > 0 { bulk::WRITERS } else { 0 } {
        let bulk = bulk::write(load.clone(), first.clone(), writer, options.bulk);
        tasks.spawn(bulk);
    }
}

/// Waits until the load is over and the queues of an embedded store are empty, then closes its clients.
async fn close(load: Arc<Load>, clients: Vec<Client>) {
    while !load.is_finishing() {
        tokio::time::sleep(INTERVAL).await;
    }
    if matches!(load.door, Door::Own(_))
        && let Err(left) = no_entry_is_left(&clients[0]).await
    {
        violation(&left);
    }
    // Contenders of other tasks may still wait for their last grant.
    while load.tally.contenders() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for client in clients {
        let _ = client.close().await;
    }
}

/// Periodically reports the figures of all stores.
async fn report(loads: Vec<Arc<Load>>) {
    let metrics = tokio::runtime::Handle::current().metrics();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let mut line = format!("figures tasks={}", metrics.num_alive_tasks());
        for load in &loads {
            load.tally.write(load.name, &mut line);
        }
        say(&line);
    }
}

/// Waits until every other task has ended. The error is the number of remaining tasks.
async fn until_no_task_is_left() -> Result<(), usize> {
    let metrics = tokio::runtime::Handle::current().metrics();
    for _ in 0..500 {
        if metrics.num_alive_tasks() == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(metrics.num_alive_tasks())
}
