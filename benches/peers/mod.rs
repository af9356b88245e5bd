//! Other lock systems, whose servers are started for the run.

mod etcd;
mod foreign;
mod pipe;
mod postgres;
mod redis;
mod redlock;
mod wire;
mod zookeeper_client;

use lockkeeper::Mutex;

use crate::args::{Args, System};
use crate::common;
use crate::kill;
use crate::report::Line;
use crate::rounds::Contender;
use crate::store_server::StoreServer;
use crate::systems::Keeper;
use crate::workloads::{Case, Relayed, Workload};

#[derive(Default)]
pub(crate) struct Peers {
    redis: Option<redis::Redis>,
    /// Transports that are measured.
    redis_over: Vec<redis::Way>,
    redis_aof: Option<redis::Redis>,
    redlock: Option<redlock::Redlock>,
    etcd: Option<etcd::Etcd>,
    postgres: Option<postgres::Postgres>,
    zookeeper: Option<Keeper>,
    zookeeper_client: Option<zookeeper_client::ZookeeperClient>,
    foreign: Vec<foreign::Foreign>,
    wire: Option<wire::Wire>,
    // The last field, because fields are dropped in order and the clients must be dropped before their servers.
    _servers: Vec<StoreServer>,
}

const OF_ZOOKEEPER: [System; 4] = [
    System::ZooKeeper,
    System::ZookeeperClient,
    System::Curator,
    System::Kazoo,
];

const OF_ETCD: [System; 2] = [System::Etcd, System::EtcdGo];

impl Peers {
    /// `ours` is the URL of the store under test. If it is a ZooKeeper or an etcd, no other is started.
    pub(crate) async fn start(args: &Args, ours: &str) -> Self {
        let mut peers = Self {
            wire: wire::Wire::of(ours).filter(|_| args.is_of_mutex() && !args.no_wire),
            redis_over: [
                (System::Redis, redis::Way::Tcp),
                (System::RedisUnix, redis::Way::Unix),
            ]
            .into_iter()
            .filter_map(|(system, way)| args.has(system).then_some(way))
            .collect(),
            ..Self::default()
        };
        if !peers.redis_over.is_empty() {
            let started = redis::Redis::start(&redis::VOLATILE).await;
            peers.redis = told("redis", started);
        }
        if args.has(System::RedisAof) {
            let started = redis::Redis::start(&redis::DURABLE).await;
            peers.redis_aof = told("redis-aof", started);
        }
        if args.has(System::Redlock) {
            peers.redlock = told("redlock", redlock::Redlock::start());
        }
        if OF_ETCD.iter().any(|&system| args.has(system))
            && let Some(url) = peers.url_of("etcd", args, ours)
        {
            if args.has(System::Etcd) {
                peers.etcd = Some(etcd::Etcd::of(&url));
            }
            if args.has(System::EtcdGo) {
                let started = told("etcd-go", foreign::Foreign::etcd_go(&url));
                peers.foreign.extend(started);
            }
        }
        if args.has(System::Postgres) {
            peers.postgres = told("postgres", postgres::Postgres::start().await);
        }
        if OF_ZOOKEEPER.iter().any(|&system| args.has(system))
            && let Some(url) = peers.url_of("zookeeper", args, ours)
        {
            if args.has(System::ZooKeeper) {
                peers.zookeeper = Some(Keeper::connect(&url).await);
            }
            if args.has(System::ZookeeperClient) {
                peers.zookeeper_client = Some(zookeeper_client::ZookeeperClient::of(&url));
            }
            if args.has(System::Curator) {
                let started = told("curator", foreign::Foreign::curator(&url));
                peers.foreign.extend(started);
            }
            if args.has(System::Kazoo) {
                let started = told("kazoo", foreign::Foreign::kazoo(&url));
                peers.foreign.extend(started);
            }
        }
        peers
    }

    /// Returns the URL of the store under test if it has this scheme, or starts such a server.
    fn url_of(&mut self, scheme: &str, args: &Args, ours: &str) -> Option<String> {
        if ours.starts_with(&format!("{scheme}:")) {
            return Some(ours.to_owned());
        }
        let started = StoreServer::of(&format!("{scheme}://"), &args.serving);
        let server = told(scheme, started)?;
        let url = server.url().to_owned();
        self._servers.push(server);
        Some(url)
    }

    /// Returns the peers that support this case.
    pub(crate) async fn contenders(&mut self, case: Case) -> Vec<Contender> {
        let mut contenders = Vec::new();
        if case.workload == Workload::Bytes {
            return contenders;
        }
        if let Some(wire) = &self.wire
            && let Some(locks) = wire.locks(&case).await
        {
            let contender = Contender::of("wire", "", case, locks);
            contenders.push(match wire.is_unix() {
                true => contender.over_unix(),
                false => contender,
            });
        }
        if let Some(redis) = &mut self.redis {
            for &way in &self.redis_over {
                let locks = redis.locks(way, &case).await;
                contenders.push(match way {
                    redis::Way::Tcp => of_peer("redis", &redis.address(), case, locks),
                    redis::Way::Unix => {
                        of_peer("redis+unix", &redis.address(), case, locks).over_unix()
                    }
                });
            }
        }
        if let Some(redis) = &mut self.redis_aof {
            let locks = redis.locks(redis::Way::Tcp, &case).await;
            contenders.push(of_peer("redis-aof", &redis.address(), case, locks));
        }
        if let Some(redlock) = &mut self.redlock {
            let locks = redlock.locks(&case);
            contenders.push(of_peer("redlock", redlock.address(), case, locks));
        }
        if let Some(etcd) = &mut self.etcd {
            let locks = etcd.locks(&case).await;
            contenders.push(of_peer("etcd", etcd.address(), case, locks));
        }
        if let Some(postgres) = &mut self.postgres {
            let locks = postgres.locks(&case).await;
            contenders.push(of_peer("postgres", &postgres.address(), case, locks));
        }
        if let Some(keeper) = &self.zookeeper {
            contenders.push(match case.workload {
                Workload::Kill => kill::contender("zookeeper", keeper).await,
                _ => {
                    let locks = keeper.locks::<Mutex>(&case).await;
                    Contender::of("zookeeper", keeper.url(), case, locks)
                }
            });
        }
        if let Some(client) = &mut self.zookeeper_client {
            let locks = client.locks(&case).await;
            contenders.push(of_peer("zookeeper-client", client.address(), case, locks));
        }
        let foreign = self.foreign.iter();
        contenders.extend(foreign.filter_map(|foreign| foreign.contender(case)));
        contenders
    }
}

/// A lock of a peer that another process can take by its key.
trait Keyed {
    fn key(&self) -> String;
}

fn of_peer<L: Relayed + Keyed>(
    system: &str,
    address: &str,
    case: Case,
    locks: Vec<L>,
) -> Contender {
    match case.workload {
        Workload::Kill => kill::of_peer(system, address, &locks[0].key(), locks[0].clone()),
        _ => Contender::of(system, "", case, locks),
    }
}

/// Acquires a peer's lock as a holder to be killed, without renewing it.
pub(crate) async fn hold(system: &str, address: &str, key: &str) -> ! {
    let timeout = kill::TIMEOUT;
    match system {
        "redlock" => kill::hold_peer(redlock::RedlockLock::connect(address, key, timeout)).await,
        "etcd" => kill::hold_peer(etcd::EtcdLock::connect(address, key, timeout).await).await,
        "postgres" => kill::hold_peer(postgres::PostgresLock::connect(address, key).await).await,
        "zookeeper-client" => {
            let lock = zookeeper_client::ZookeeperLock::connect(address, key, timeout).await;
            kill::hold_peer(lock).await
        }
        _ => kill::hold_peer(redis::RedisLock::connect(address, key, timeout).await).await,
    }
}

/// Returns a runtime on which the peers' clients can spawn tasks.
pub(crate) fn runtime(threads: usize) -> tokio::runtime::Runtime {
    zookeeper_client::enter_thread();
    common::runtime_with(threads, zookeeper_client::enter_thread)
}

/// If a system is not available, prints a line that says why.
pub(crate) fn told<T>(system: &str, started: Result<T, String>) -> Option<T> {
    let fault = match started {
        Ok(peer) => return Some(peer),
        Err(fault) => fault,
    };
    Line::new(system, "", "").print_skipped(&fault);
    eprintln!("without {system}: {fault}");
    None
}
