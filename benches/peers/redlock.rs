//! Redlock as a peer: the crate rslock over five Redis servers. Three of them must grant. Its clients do not queue, but
//! retry after a random pause, with the crate's defaults.

use std::time::Duration;

use lockkeeper::LockError;
use rslock::LockManager;

use super::Keyed;
use super::redis::{self, Server};
use crate::common::lock::{Lock, REMOTE_PAUSE};
use crate::workloads::{Case, Relayed, Workload};

/// Number of servers, as in the description of the algorithm.
const SERVERS: usize = 5;

pub(crate) struct Redlock {
    address: String,
    clients: Vec<LockManager>,
    cases: usize,
    _servers: Vec<Server>,
}

impl Redlock {
    pub(crate) fn start() -> Result<Self, String> {
        let servers: Result<Vec<_>, _> = (0..SERVERS)
            .map(|_| Server::start(&redis::VOLATILE))
            .collect();
        let servers = servers?;
        let urls = servers
            .iter()
            .map(|server| format!("redis://{}", server.address()));
        Ok(Self {
            address: urls.collect::<Vec<_>>().join(","),
            clients: Vec::new(),
            cases: 0,
            _servers: servers,
        })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the handles for a case. Each client has its own connections.
    pub(crate) fn locks(&mut self, case: &Case) -> Vec<RedlockLock> {
        while self.clients.len() < case.clients {
            self.clients.push(client(&self.address));
        }
        self.cases += 1;
        let count = match case.workload {
            Workload::W4 => case.n,
            _ => case.clients,
        };
        let lock = |number: usize| RedlockLock {
            client: self.clients[number % case.clients].clone(),
            key: match case.workload {
                Workload::W4 => format!("bench:{}:{number}", self.cases),
                _ => format!("bench:{}", self.cases),
            },
            held_for: redis::HELD_FOR,
        };
        (0..count).map(lock).collect()
    }
}

fn client(address: &str) -> LockManager {
    LockManager::new(address.split(',').collect())
}

#[derive(Clone)]
pub(crate) struct RedlockLock {
    client: LockManager,
    key: String,
    held_for: Duration,
}

impl RedlockLock {
    /// Connects a client whose locks end after `held_for`.
    pub(crate) fn connect(address: &str, key: &str, held_for: Duration) -> Self {
        let (client, key) = (client(address), key.into());
        Self {
            client,
            key,
            held_for,
        }
    }
}

/// A lock granted by a majority of the servers. Dropping it requests the deletion without waiting.
pub(crate) struct RedlockGuard(Option<rslock::Lock>);

impl Lock for RedlockLock {
    type Guard = RedlockGuard;

    async fn lock(&self) -> Result<RedlockGuard, LockError> {
        let key = self.key.as_bytes();
        let lock = self.client.acquire_no_guard(key, self.held_for).await;
        Ok(RedlockGuard(Some(lock.expect("the servers answer"))))
    }

    async fn unlock(mut guard: RedlockGuard) -> Result<(), LockError> {
        guard.0.take().expect("still held").release().await;
        Ok(())
    }

    fn token(_guard: &RedlockGuard) -> Option<i64> {
        None
    }

    async fn settled(&self, _queued: usize) -> Result<(), LockError> {
        tokio::time::sleep(100 * REMOTE_PAUSE).await;
        Ok(())
    }
}

impl Relayed for RedlockLock {
    async fn settled_again(&self) {
        tokio::time::sleep(REMOTE_PAUSE).await;
    }
}

impl Keyed for RedlockLock {
    fn key(&self) -> String {
        self.key.clone()
    }
}

impl Drop for RedlockGuard {
    fn drop(&mut self) {
        if let Some(lock) = self.0.take() {
            tokio::spawn(lock.release());
        }
    }
}
