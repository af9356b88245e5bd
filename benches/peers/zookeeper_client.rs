//! The lock of the crate zookeeper-client as a peer, on the same ZooKeeper. Dropping a guard releases it in the
//! background.

use std::time::Duration;

use lockkeeper::LockError;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use super::Keyed;
use crate::common::fresh_name;
use crate::common::lock::{Lock, REMOTE_PAUSE};
use crate::workloads::{Case, Relayed, Workload};

/// Runs the crate's tasks on tokio. The crate's own tokio feature would be turned on in every build of the workspace,
/// and hide a missing spawner in the library.
struct Spawner;

impl spawns_core::Spawn for Spawner {
    fn spawn(&self, task: spawns_core::Task) {
        tokio::spawn(Box::into_pin(task.future));
    }
}

/// Lets the crate spawn tasks from this thread of a tokio runtime.
pub(crate) fn enter_thread() {
    // The scope lasts as long as the thread.
    std::mem::forget(spawns_core::enter(&Spawner));
}

pub(crate) struct ZookeeperClient {
    hosts: String,
    clients: Vec<Client>,
}

impl ZookeeperClient {
    pub(crate) fn of(url: &str) -> Self {
        Self {
            hosts: url.trim_start_matches("zookeeper://").into(),
            clients: Vec::new(),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.hosts
    }

    /// Returns the handles for a case. Each client has its own session.
    pub(crate) async fn locks(&mut self, case: &Case) -> Vec<ZookeeperLock> {
        while self.clients.len() < case.clients {
            let client = connect(&self.hosts, Duration::from_secs(10)).await;
            self.clients.push(client);
        }
        let path = format!("/bench/{}", fresh_name());
        let count = match case.workload {
            Workload::W4 => case.n,
            _ => case.clients,
        };
        let lock = |number: usize| ZookeeperLock {
            client: self.clients[number % case.clients].clone(),
            path: match case.workload {
                Workload::W4 => format!("{path}/{number}"),
                _ => path.clone(),
            },
        };
        (0..count).map(lock).collect()
    }
}

async fn connect(hosts: &str, timeout: Duration) -> Client {
    let hosts = hosts.to_owned();
    // On a thread that can spawn the connection's task.
    let client = tokio::spawn(async move {
        let connector = Client::connector().with_session_timeout(timeout);
        connector.connect(&hosts).await
    });
    let client = client.await.expect("no panic");
    client.expect("ZooKeeper answers")
}

#[derive(Clone)]
pub(crate) struct ZookeeperLock {
    client: Client,
    path: String,
}

impl ZookeeperLock {
    /// Connects a client whose lock ends `timeout` after the client.
    pub(crate) async fn connect(hosts: &str, path: &str, timeout: Duration) -> Self {
        let (client, path) = (connect(hosts, timeout).await, path.into());
        Self { client, path }
    }
}

impl Lock for ZookeeperLock {
    type Guard = OwnedLockClient;

    async fn lock(&self) -> Result<OwnedLockClient, LockError> {
        let prefix = LockPrefix::new_curator(&self.path, "lock-").expect("a valid path");
        let parents = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents);
        let options = options.expect("valid options");
        let lock = self.client.lock(prefix, b"", options).await;
        Ok(lock.expect("granted").into_owned())
    }

    async fn unlock(guard: OwnedLockClient) -> Result<(), LockError> {
        drop(guard);
        Ok(())
    }

    fn token(_guard: &OwnedLockClient) -> Option<i64> {
        None
    }

    async fn settled(&self, _queued: usize) -> Result<(), LockError> {
        tokio::time::sleep(100 * REMOTE_PAUSE).await;
        Ok(())
    }
}

impl Relayed for ZookeeperLock {
    async fn settled_again(&self) {
        tokio::time::sleep(REMOTE_PAUSE).await;
    }
}

impl Keyed for ZookeeperLock {
    fn key(&self) -> String {
        self.path.clone()
    }
}
