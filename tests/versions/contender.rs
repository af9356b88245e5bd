//! A client of one version, beside clients of another: contends for locks of each recipe and checks exclusion and tokens,
//! or holds one lock. tests/versions/run.py builds it in the code of each version and drives it by its stdin.

#[path = "../../faults/src/soak/gate.rs"]
mod gate;
#[path = "../../faults/src/keys.rs"]
#[allow(dead_code, reason = "registers are used elsewhere")]
mod keys;
#[path = "../../sim/src/random.rs"]
#[allow(dead_code, reason = "the simulation draws more")]
mod random;
#[path = "../../sim/src/recipe.rs"]
#[allow(dead_code, reason = "the simulation draws recipes, too")]
mod recipe;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{Client, ConnectOptions, LockError, Mutex, connect_with};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use self::gate::{Closed, Gate, Part};
use self::random::Random;
use self::recipe::{Held, Recipe, Way, wait_for_all};

/// Keys of each task. The last one takes several at once.
const KEYS: [&[&str]; 6] = [
    &["mutex-0"],
    &["rwlock"],
    &["rwlock"],
    &["semaphore"],
    &["election"],
    &["mutex-0", "mutex-1"],
];

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
    for keys in KEYS {
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
    async fn contend(self, mut random: Random) {
        while !self.is_finishing.load(Ordering::Relaxed) {
            tokio::time::sleep(random.below_ms(5)).await;
            match self.wait(&mut random).await {
                Ok(Some(held)) => {
                    add(&self.tally.grants);
                    self.hold(held, &mut random).await;
                }
                Ok(None) | Err(LockError::Timeout { .. }) => {}
                // While the server is replaced, and on a connection that went with it.
                Err(LockError::Store(
                    lockkeeper::Error::ConnectionLoss | lockkeeper::Error::ConnectFailed { .. },
                )) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => println!("violation: {error:?} for {:?}", self.keys),
            }
        }
    }

    async fn wait(&self, random: &mut Random) -> Result<Option<Held>, LockError> {
        let clock = self.client.clock().clone();
        let way = match Way::draw(random) {
            Way::Dropped(limit) => Way::Dropped(limit / 50),
            way => way,
        };
        let paths: Vec<_> = self.keys.iter().map(|key| keys::path(key)).collect();
        match &paths[..] {
            [path] => {
                let recipe = keys::recipe(self.keys[0]).expect("tasks know their keys");
                recipe
                    .wait((&self.client, path, &mut None), way, random, &clock)
                    .await
            }
            paths => {
                let paths: Vec<_> = paths.iter().map(String::as_str).collect();
                wait_for_all(&self.client, &paths, way, &clock).await
            }
        }
    }

    async fn hold(&self, held: Held, random: &mut Random) {
        let part = match (&held, keys::recipe(self.keys[0])) {
            (Held::Permit(permit), Some(Recipe::Semaphore { permits })) => {
                Part::Permits(permit.count(), permits)
            }
            (Held::Read(_), _) => Part::Shared,
            _ => Part::Exclusive,
        };
        let mut stays = Vec::new();
        for key in self.keys {
            match self.gate.enter(key, part, held.token()) {
                Ok(Ok(stay)) => stays.push(stay),
                Ok(Err(Closed::Conflict)) => add(&self.tally.conflicts),
                Ok(Err(Closed::Refused)) => add(&self.tally.refused),
                Err(error) => println!("violation: {error}"),
            }
        }
        tokio::time::sleep(random.below_ms(3)).await;
        if !held.is_held() {
            add(&self.tally.losses);
        }
        drop(stays);
        // While the server is replaced a release waits for it.
        drop(held.release().await);
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
