//! The command line.

use std::time::Duration;

use crate::store_server::Serving;
use crate::workloads::Workload;

const USAGE: &str = "\
usage: cargo bench --bench locks -- [options]
  --url URL            memory: (the default), file:FOLDER, zookeeper://[host:port[/chroot]] or
                       lockkeeper://[host:port[/chroot]]; without a host, the bench starts the server
  --data D             of the `lockkeeper serve` that it starts: memory (the default), or a folder
  --durability D       of the same: fsync (the default), delayed-restart or none; with none,
                       ZooKeeper as a peer does not sync either
  --system S[,S]       what to run beside: tokio, memory (the same locks on memory:), redis, postgres,
                       zookeeper (our locks on it), curator, none; the servers are started (by
                       default tokio for memory:, memory for file:, and for the mutex curator
                       on zookeeper:, and the last four on lockkeeper:)
  --recipe R           mutex (the default), semaphore (of one permit), rwlock-write, rwlock-read
                       (by 1, 8 and 64 readers together); election or lock-all (of two locks),
                       which have no peers
  --workload W[,W]     w1 uncontended, w2 contended, w3 hand-over, w4 many keys (all by default)
  --clients C, --n N   only the cases with so many sessions, so many queued
  --seconds S          how long to measure each system in each case (2)
  --rounds R           in how many alternating rounds (5)
  --threads T          threads of the runtime (2)";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recipe {
    Mutex,
    Semaphore,
    Election,
    LockAll,
    RwLockRead,
    RwLockWrite,
}

impl Recipe {
    const ALL: [Self; 6] = [
        Self::Mutex,
        Self::Semaphore,
        Self::Election,
        Self::LockAll,
        Self::RwLockRead,
        Self::RwLockWrite,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Semaphore => "semaphore",
            Self::Election => "election",
            Self::LockAll => "lock-all",
            Self::RwLockRead => "rwlock-read",
            Self::RwLockWrite => "rwlock-write",
        }
    }

    fn of(name: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|recipe| recipe.name() == name)
            .ok_or(format!("--recipe {name} is not known"))
    }
}

pub(crate) struct Args {
    pub(crate) recipe: Recipe,
    pub(crate) url: String,
    pub(crate) tokio: bool,
    /// Whether the same locks run in memory, too.
    pub(crate) memory: bool,
    pub(crate) redis: bool,
    pub(crate) postgres: bool,
    pub(crate) zookeeper: bool,
    pub(crate) curator: bool,
    pub(crate) serving: Serving,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) clients: Option<usize>,
    pub(crate) n: Option<usize>,
    pub(crate) seconds: Duration,
    pub(crate) rounds: u32,
    pub(crate) threads: usize,
}

impl Args {
    /// Whether the store runs in this program: then its sessions answer at once.
    pub(crate) fn is_in_process(&self) -> bool {
        self.url.starts_with("memory:") || self.url.starts_with("file:")
    }

    pub(crate) fn parse() -> Self {
        match Self::of(std::env::args().skip(1)) {
            Ok(args) => args,
            Err(fault) => {
                eprintln!("{fault}\n{USAGE}");
                std::process::exit(2);
            }
        }
    }

    fn of(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut args = Self {
            recipe: Recipe::Mutex,
            url: "memory:".into(),
            tokio: false,
            memory: false,
            redis: false,
            postgres: false,
            zookeeper: false,
            curator: false,
            serving: Serving::default(),
            workloads: Workload::ALL.to_vec(),
            clients: None,
            n: None,
            seconds: Duration::from_secs(2),
            rounds: 5,
            threads: 2,
        };
        let mut systems = None;
        while let Some(word) = words.next() {
            if word == "--help" {
                println!("{USAGE}");
                std::process::exit(0);
            }
            // What `cargo bench` says to every benchmark.
            if word == "--bench" {
                continue;
            }
            let value = words.next().ok_or(format!("{word} needs a value"))?;
            match word.as_str() {
                "--url" => args.url = value,
                "--data" => args.serving.data = value,
                "--durability" => args.serving.durability = value,
                "--system" => systems = Some(value),
                "--recipe" => args.recipe = Recipe::of(&value)?,
                "--workload" => args.workloads = list(&value)?,
                "--clients" => args.clients = Some(number(&value)?),
                "--n" => args.n = Some(number(&value)?),
                "--seconds" => args.seconds = seconds(&value)?,
                "--rounds" => args.rounds = number(&value)?,
                "--threads" => args.threads = number(&value)?,
                _ => return Err(format!("{word} {value} is not known")),
            }
        }
        if args.rounds == 0 || args.threads == 0 {
            return Err("--rounds and --threads are at least 1".into());
        }
        let in_memory = args.url.starts_with("memory:");
        let default = match args.recipe {
            _ if args.url.starts_with("file:") => "memory",
            Recipe::Election | Recipe::LockAll => "none",
            _ if in_memory => "tokio",
            Recipe::Mutex if args.url.starts_with("lockkeeper:") => {
                "redis,postgres,zookeeper,curator"
            }
            Recipe::Mutex => "curator",
            _ => "none",
        };
        for system in systems.as_deref().unwrap_or(default).split(',') {
            match system {
                "tokio" => args.tokio = true,
                "memory" => args.memory = true,
                "redis" => args.redis = true,
                "postgres" => args.postgres = true,
                "zookeeper" => args.zookeeper = true,
                "curator" => args.curator = true,
                "none" | "lockkeeper" => {}
                _ => return Err(format!("--system {system} is not known")),
            }
        }
        let is_remote = args.redis || args.postgres || args.zookeeper || args.curator;
        if is_remote && args.recipe != Recipe::Mutex {
            return Err("of other servers, the mutex alone is measured".into());
        }
        if args.tokio && matches!(args.recipe, Recipe::Election | Recipe::LockAll) {
            let recipe = args.recipe.name();
            return Err(format!("--recipe {recipe} has no peers to run beside"));
        }
        Ok(args)
    }
}

fn list(names: &str) -> Result<Vec<Workload>, String> {
    let of = |name| {
        let mut all = Workload::ALL.into_iter();
        all.find(|workload| workload.name() == name)
            .ok_or(format!("--workload {name} is not known"))
    };
    names.split(',').map(of).collect()
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    Duration::try_from_secs_f64(number(text)?).map_err(|error| error.to_string())
}
