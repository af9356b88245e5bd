//! The command line.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};

use crate::options::{Serving, Timing, count};
use crate::workloads::Workload;

/// A recipe to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Recipe {
    Mutex,
    /// By `lock_timeout`
    MutexTimeout,
    /// By `lock_with` default options
    MutexWith,
    /// By `try_lock`, only w1
    MutexTry,
    /// A new one for each lock, only w1
    MutexNewName,
    /// With one permit
    Semaphore,
    /// Has no peers
    Election,
    /// Of two locks, has no peers
    LockAll,
    /// Without w3, because readers wait for no other. In w2 they share the lock
    #[value(name = "rwlock-read")]
    RwLockRead,
    #[value(name = "rwlock-write")]
    RwLockWrite,
}

impl Recipe {
    fn has_tokio_peer(self) -> bool {
        !matches!(self, Self::Election | Self::LockAll)
    }
}

/// A system that is measured in the same rounds as the locks under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum System {
    /// Tokio's locks
    Tokio,
    /// The same locks on memory:
    Memory,
    /// The same locks on file:, in a temporary folder
    File,
    /// The mutex of the crate async-lock
    AsyncLock,
    /// The same locks on lockkeeper:// with its data in a temporary folder
    #[value(name = "lockkeeper-durable")]
    Durable,
    Redis,
    /// The same Redis, over its Unix socket
    RedisUnix,
    /// A Redis that syncs each write
    RedisAof,
    /// The crate rslock, on five Redis servers
    Redlock,
    Etcd,
    /// The recipe of etcd's Go client, on the same etcd
    EtcdGo,
    Postgres,
    /// The same locks on a ZooKeeper
    #[value(name = "zookeeper")]
    ZooKeeper,
    /// The lock of the crate zookeeper-client
    ZookeeperClient,
    Curator,
    /// For Python, see LOCKKEEPER_PYTHON in benches/peers
    Kazoo,
    None,
}

/// Speed of the locks and of their peers.
#[derive(Debug, Parser)]
#[command(name = "locks")]
pub(crate) struct Args {
    /// memory:, file:FOLDER, lockkeeper://[HOST:PORT], lockkeeper+unix://[PATH], zookeeper://[HOST:PORT] or
    /// etcd://[HOST:PORT]. Without a host or a path, the server is started. Several are measured in the same run
    #[arg(long = "url", value_delimiter = ',', default_value = "memory:")]
    pub(crate) urls: Vec<String>,
    #[command(flatten)]
    pub(crate) serving: Serving,
    /// Systems to compare with. Their servers are started [default: tokio for memory:, memory for file:, and for the
    /// mutex curator on zookeeper:, etcd on etcd:, and redis,postgres,zookeeper,curator on lockkeeper:]
    #[arg(long, value_enum, value_delimiter = ',')]
    system: Vec<System>,
    /// Leave out the load without a client library, whose sessions do not outlive long rounds
    #[arg(long)]
    pub(crate) no_wire: bool,
    /// Several are measured in the same run
    #[arg(
        long = "recipe",
        value_enum,
        value_delimiter = ',',
        default_value = "mutex"
    )]
    pub(crate) recipes: Vec<Recipe>,
    /// Workloads to measure [default: w1 to w4, and cold for memory: and file:]
    #[arg(long = "workload", value_enum, value_delimiter = ',')]
    pub(crate) workloads: Vec<Workload>,
    /// Numbers of sessions in w2 [default: 2,8,64,512]
    #[arg(long, value_delimiter = ',')]
    pub(crate) clients: Vec<usize>,
    /// Numbers of queued contenders in w3 and bytes [default: 1,100,1000, and 100000 in w3 of this process], and of
    /// keys in w4 [default: 10000]
    #[arg(long, value_delimiter = ',')]
    pub(crate) n: Vec<usize>,
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// Threads of the runtime
    #[arg(long, default_value_t = 2, value_parser = count)]
    pub(crate) threads: usize,
}

impl Args {
    /// Reads the command line. Exits if it is invalid.
    pub(crate) fn read() -> Self {
        let mut args = Self::parse();
        if args.workloads.is_empty() {
            let in_process = args.is_in_process();
            let all = Workload::value_variants().iter().copied();
            let usual = all.filter(|workload| workload.is_usual(in_process));
            args.workloads = usual.collect();
        }
        if args.system.is_empty() {
            args.system = args.usual_systems();
        }
        let has_recipes =
            |system: &System| matches!(system, System::Tokio | System::Memory | System::None);
        let fault = if !args.is_of_mutex() && !args.system.iter().all(has_recipes) {
            "of other systems, the mutex alone is measured"
        } else if args.has(System::Tokio) && !args.recipes.iter().all(|it| it.has_tokio_peer()) {
            "this recipe has no peers to run beside"
        } else if args.is_in_process() && args.workloads.iter().any(|it| it.is_of_served_stores()) {
            "this workload needs a served store"
        } else if args.urls.len() > 1 && args.urls.iter().any(|url| !is_served(url)) {
            "only served stores are measured side by side"
        } else {
            return args;
        };
        Self::command()
            .error(ErrorKind::ArgumentConflict, fault)
            .exit()
    }

    fn usual_systems(&self) -> Vec<System> {
        let url = self.url();
        if url.starts_with("file:") {
            vec![System::Memory]
        } else if url.starts_with("memory:") {
            let tokio = self.recipes.iter().all(|it| it.has_tokio_peer());
            tokio.then_some(System::Tokio).into_iter().collect()
        } else if !self.is_of_mutex() {
            vec![]
        } else if url.starts_with("lockkeeper") {
            vec![
                System::Redis,
                System::Postgres,
                System::ZooKeeper,
                System::Curator,
            ]
        } else if url.starts_with("etcd:") {
            vec![System::Etcd]
        } else {
            vec![System::Curator]
        }
    }

    pub(crate) fn is_of_mutex(&self) -> bool {
        self.recipes == [Recipe::Mutex]
    }

    /// Returns the first URL. The systems are compared with it.
    pub(crate) fn url(&self) -> &str {
        &self.urls[0]
    }

    pub(crate) fn has(&self, system: System) -> bool {
        self.system.contains(&system)
    }

    pub(crate) fn is_in_process(&self) -> bool {
        !is_served(self.url())
    }
}

fn is_served(url: &str) -> bool {
    !url.starts_with("memory:") && !url.starts_with("file:")
}
