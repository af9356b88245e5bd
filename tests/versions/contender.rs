//! A client of one version, next to clients of another: contends for locks of each recipe and checks exclusion and tokens,
//! or holds one lock. tests/versions/run.py builds it in the code of each version and drives it by its stdin.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{Client, ConnectOptions, LockError, Mutex, connect_with};
use testkit::Random;
use testkit::contender::{CONTENDERS, Stays, enter, is_out_of_reach, wait};
use testkit::recipe::{AcquireMode, Held};
use testkit::resource::{Closed, Gate};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

#[derive(Default)]
struct Tally {
    grants: AtomicU64,
    losses: AtomicU64,
    conflicts: AtomicU64,
    refused: AtomicU64,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let orders = orders();
    match arguments[..] {
        ["contend", url, gates, seed] => contend_all(url, gates, seed.parse()?, orders).await,
        ["hold", url, key] => hold_one(url, key, orders).await,
        _ => Err("contender contend URL GATES SEED | hold URL KEY".into()),
    }
}

/// Returns the lines of stdin. The process ends with it.
fn orders() -> UnboundedReceiver<String> {
    let (sender, orders) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
        std::process::exit(0);
    });
    orders
}

async fn connect(url: &str) -> Outcome<Client> {
    let options = ConnectOptions::new()
        .session_timeout(Duration::from_secs(20))
        .connect_timeout(Duration::from_secs(20));
    Ok(connect_with(url, options).await?)
}

/// Contends for all locks. `count` prints the figures so far; `finish` ends the tasks, and then the process.
async fn contend_all(
    url: &str,
    gates: &str,
    seed: u64,
    mut orders: UnboundedReceiver<String>,
) -> Outcome<()> {
    let (client, mut random) = (connect(url).await?, Random(seed));
    let tally = Arc::<Tally>::default();
    let is_finishing = Arc::<AtomicBool>::default();
    let gate = Gate::open(Path::new(gates))?;
    let mut tasks = Vec::new();
    for keys in CONTENDERS {
        let task = Task {
            client: client.clone(),
            keys,
            gate: gate.clone(),
            tally: tally.clone(),
            is_finishing: is_finishing.clone(),
        };
        tasks.push(tokio::spawn(task.contend(random.fork())));
    }
    println!("ready");
    while let Some(order) = orders.recv().await {
        if order == "finish" {
            is_finishing.store(true, Ordering::Relaxed);
            for task in tasks {
                task.await?;
            }
            client.close().await?;
            println!("{}", tally.line());
            return Ok(());
        }
        println!("{}", tally.line());
    }
    Ok(())
}

impl Tally {
    fn line(&self) -> String {
        let [grants, losses, conflicts, refused] =
            [&self.grants, &self.losses, &self.conflicts, &self.refused]
                .map(|counter| counter.load(Ordering::Relaxed));
        format!("grants={grants} losses={losses} conflicts={conflicts} refused={refused}")
    }
}

struct Task {
    client: Client,
    keys: &'static [&'static str],
    gate: Gate,
    tally: Arc<Tally>,
    is_finishing: Arc<AtomicBool>,
}

impl Task {
    async fn contend(mut self, mut random: Random) {
        while !self.is_finishing.load(Ordering::Relaxed) {
            tokio::time::sleep(random.below_ms(5)).await;
            let way = match AcquireMode::draw(&mut random) {
                AcquireMode::Dropped(limit) => AcquireMode::Dropped(limit / 50),
                way => way,
            };
            let held = match wait(&self.client, self.keys, way, &mut random).await {
                Ok(Some(held)) => {
                    add(&self.tally.grants);
                    // While the server is replaced a release waits for it.
                    self.hold(held, &mut random).await
                }
                waited => waited.map(|_| false),
            };
            match held {
                Ok(_) | Err(LockError::Timeout { .. }) => {}
                Err(LockError::Lost(_)) => add(&self.tally.losses),
                // While the server is replaced, and on a connection that went with it.
                Err(error) if is_out_of_reach(&error) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => println!("violation: {error:?} for {:?}", self.keys),
            }
        }
    }
}

impl Stays for Task {
    async fn stay(&mut self, held: Held, random: &mut Random) -> Option<Held> {
        let stays = enter(&self.gate, self.keys, &held, |_, closed| match closed {
            Ok(Closed::Conflict) => add(&self.tally.conflicts),
            Ok(Closed::Refused) => add(&self.tally.refused),
            Err(error) => println!("violation: {error}"),
        });
        tokio::time::sleep(random.below_ms(3)).await;
        let is_held = held.is_held();
        if !is_held {
            add(&self.tally.losses);
        }
        drop(stays);
        is_held.then_some(held)
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Takes a mutex and says its token. `check` tells if it is held, `release` releases it and ends the process.
async fn hold_one(url: &str, key: &str, mut orders: UnboundedReceiver<String>) -> Outcome<()> {
    let client = connect(url).await?;
    let guard = Mutex::new(&client, key)?.lock().await?;
    println!("held {}", guard.fencing_token());
    while let Some(order) = orders.recv().await {
        if order == "release" {
            guard.release().await?;
            client.close().await?;
            println!("released");
            return Ok(());
        }
        println!("is_held={}", guard.is_held());
    }
    Ok(())
}
