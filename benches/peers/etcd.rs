//! etcd as a peer: the lock in etcd's API (`v3lockpb.Lock`). The server queues by revision. The messages are written by
//! hand, because the crate etcd-client needs a protobuf compiler to build.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::LockError;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use super::Keyed;
use crate::common::lock::{Lock, REMOTE_PAUSE};
use crate::workloads::{Case, Relayed, Workload};

#[derive(Clone, PartialEq, prost::Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockResponse {}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseGrantRequest {
    /// In seconds.
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    id: i64,
}

/// Lifetime of the leases of a run, long enough that none needs a renewal.
const LEASE: Duration = Duration::from_secs(3600);

/// Number of leases for many keys, above the number of tasks that hold or request a lock.
const LEASES_FOR_KEYS: usize = 300;

pub(crate) struct Etcd {
    address: String,
    connections: Vec<Connection>,
    leases: Leases,
    cases: usize,
}

impl Etcd {
    /// Uses the etcd at this URL.
    pub(crate) fn of(url: &str) -> Self {
        Self {
            address: url.replacen("etcd:", "http:", 1),
            connections: Vec::new(),
            leases: Leases::default(),
            cases: 0,
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the handles for a case. Each client has its own connection, and each holder or waiter a lease.
    pub(crate) async fn locks(&mut self, case: &Case) -> Vec<EtcdLock> {
        while self.connections.len() < case.clients {
            self.connections.push(Connection::open(&self.address).await);
        }
        let (count, leases) = match case.workload {
            Workload::W4 => (case.n, LEASES_FOR_KEYS),
            // Two more than clients, because a waiter queues again before the guard that it passed on is released.
            _ => (case.clients, case.clients + 2),
        };
        self.leases.fill(&self.connections[0], leases, LEASE).await;
        self.cases += 1;
        let lock = |number: usize| EtcdLock {
            connection: self.connections[number % case.clients].clone(),
            leases: self.leases.clone(),
            name: match case.workload {
                Workload::W4 => format!("bench-{}-{number}", self.cases),
                _ => format!("bench-{}", self.cases),
            },
        };
        (0..count).map(lock).collect()
    }
}

#[derive(Clone)]
struct Connection(Channel);

impl Connection {
    async fn open(address: &str) -> Self {
        let endpoint = Channel::from_shared(address.to_owned()).expect("a valid address");
        let channel = endpoint.tcp_nodelay(true).connect().await;
        Self(channel.expect("etcd answers"))
    }

    async fn ask<Q, A>(&self, method: &'static str, request: Q) -> A
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut client = Grpc::new(self.0.clone());
        client.ready().await.expect("etcd is connected");
        let (request, path) = (
            tonic::Request::new(request),
            PathAndQuery::from_static(method),
        );
        let answer = client.unary(request, path, ProstCodec::<Q, A>::default());
        answer.await.expect("etcd answers").into_inner()
    }
}

/// Free leases. A lock's entry in its queue is named by its lease, so each holder or waiter of a lock needs its own.
#[derive(Clone, Default)]
struct Leases(Arc<Mutex<Vec<i64>>>);

impl Leases {
    async fn fill(&self, connection: &Connection, count: usize, ttl: Duration) {
        while self.0.lock().expect("no panic").len() < count {
            let ttl = ttl.as_secs() as i64;
            let grant = LeaseGrantRequest { ttl };
            let granted: LeaseGrantResponse = connection
                .ask("/etcdserverpb.Lease/LeaseGrant", grant)
                .await;
            self.put(granted.id);
        }
    }

    fn take(&self) -> i64 {
        let lease = self.0.lock().expect("no panic").pop();
        lease.expect("there is a lease for each contender")
    }

    fn put(&self, lease: i64) {
        self.0.lock().expect("no panic").push(lease);
    }
}

#[derive(Clone)]
pub(crate) struct EtcdLock {
    connection: Connection,
    leases: Leases,
    name: String,
}

impl EtcdLock {
    /// Connects a client whose lock ends after `held_for`.
    pub(crate) async fn connect(address: &str, name: &str, held_for: Duration) -> Self {
        let (connection, leases) = (Connection::open(address).await, Leases::default());
        leases.fill(&connection, 1, held_for).await;
        let name = name.into();
        Self {
            connection,
            leases,
            name,
        }
    }

    async fn release(self, key: Vec<u8>, lease: i64) {
        let unlock = UnlockRequest { key };
        let _: UnlockResponse = self.connection.ask("/v3lockpb.Lock/Unlock", unlock).await;
        self.leases.put(lease);
    }
}

/// A lock that a lease holds. Dropping it requests the release without waiting.
pub(crate) struct EtcdGuard {
    lock: EtcdLock,
    lease: i64,
    key: Option<Vec<u8>>,
}

impl Lock for EtcdLock {
    type Guard = EtcdGuard;

    async fn lock(&self) -> Result<EtcdGuard, LockError> {
        let lease = self.leases.take();
        let name = self.name.clone().into_bytes();
        let lock = LockRequest { name, lease };
        let locked: LockResponse = self.connection.ask("/v3lockpb.Lock/Lock", lock).await;
        Ok(EtcdGuard {
            lock: self.clone(),
            lease,
            key: Some(locked.key),
        })
    }

    async fn unlock(mut guard: EtcdGuard) -> Result<(), LockError> {
        let key = guard.key.take().expect("still held");
        guard.lock.clone().release(key, guard.lease).await;
        Ok(())
    }

    fn token(_guard: &EtcdGuard) -> Option<i64> {
        None
    }

    async fn settled(&self, _queued: usize) -> Result<(), LockError> {
        tokio::time::sleep(100 * REMOTE_PAUSE).await;
        Ok(())
    }
}

impl Relayed for EtcdLock {
    async fn settled_again(&self) {
        tokio::time::sleep(REMOTE_PAUSE).await;
    }
}

impl Keyed for EtcdLock {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Drop for EtcdGuard {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            tokio::spawn(self.lock.clone().release(key, self.lease));
        }
    }
}
