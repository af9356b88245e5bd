//! Other servers that keep locks, each started for the run.

mod curator;
mod pipe;
mod postgres;
mod redis;
mod wire;

use lockkeeper::Mutex;

use crate::args::{Args, System};
use crate::report::Line;
use crate::rounds::Contender;
use crate::store_server::StoreServer;
use crate::systems::Keeper;
use crate::workloads::Case;

/// The peers of this run.
#[derive(Default)]
pub(crate) struct Peers {
    redis: Option<redis::Redis>,
    /// Connections to it that are measured.
    redis_over: Vec<redis::Way>,
    postgres: Option<postgres::Postgres>,
    zookeeper: Option<Keeper>,
    curator: Option<curator::Curator>,
    wire: Option<wire::Wire>,
    // The last field: fields are dropped in order, and its clients go before the server.
    _server: Option<StoreServer>,
}

impl Peers {
    /// `ours` is the URL of the store under test: where it is a ZooKeeper, there is no other beside.
    pub(crate) async fn start(args: &Args, ours: &str) -> Self {
        let mut peers = Self {
            wire: wire::Wire::of(ours).filter(|_| args.is_of_mutex()),
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
            peers.redis = told("redis", redis::Redis::start().await);
        }
        if args.has(System::Postgres) {
            peers.postgres = told("postgres", postgres::Postgres::start().await);
        }
        let mut zookeeper = ours.starts_with("zookeeper:").then(|| ours.to_owned());
        if zookeeper.is_none() && (args.has(System::ZooKeeper) || args.has(System::Curator)) {
            let server = told("zookeeper", StoreServer::of("zookeeper://", &args.serving));
            zookeeper = server.as_ref().map(|server| server.url().to_owned());
            peers._server = server;
        }
        if let Some(url) = zookeeper {
            if args.has(System::ZooKeeper) {
                peers.zookeeper = Some(Keeper::connect(&url).await);
            }
            if args.has(System::Curator) {
                peers.curator = told("curator", curator::Curator::start(&url));
            }
        }
        peers
    }

    /// Those that know this case.
    pub(crate) async fn contenders(&mut self, case: Case) -> Vec<Contender> {
        let mut contenders = Vec::new();
        if case.workload.is_of_served_stores() {
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
                    redis::Way::Tcp => Contender::of("redis", "", case, locks),
                    redis::Way::Unix => Contender::of("redis+unix", "", case, locks).over_unix(),
                });
            }
        }
        if let Some(postgres) = &mut self.postgres {
            let locks = postgres.locks(&case).await;
            contenders.push(Contender::of("postgres", "", case, locks));
        }
        if let Some(keeper) = &self.zookeeper {
            let locks = keeper.locks::<Mutex>(&case).await;
            contenders.push(Contender::of("zookeeper", keeper.url(), case, locks));
        }
        let curator = self.curator.as_ref();
        contenders.extend(curator.and_then(|curator| curator.contender(case)));
        contenders
    }
}

/// A system that cannot be had leaves a line that says why.
pub(crate) fn told<T>(system: &str, started: Result<T, String>) -> Option<T> {
    let fault = match started {
        Ok(peer) => return Some(peer),
        Err(fault) => fault,
    };
    Line::new(system, "", "").print_skipped(&fault);
    eprintln!("without {system}: {fault}");
    None
}
