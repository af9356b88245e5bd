//! The page in a real browser.

mod away;
mod driver;
mod hostile;
mod list;
mod looks;
mod proxied;
mod queue;
mod revoking;

use std::sync::Arc;

use lockkeeper::{Client, Guard};
use lockkeeper_store::{CreateMode, Op};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::*;
use driver::Window;

/// Locks whose client runs on separate threads, so that the locks stay held while a test drives the browser.
struct Locks {
    // The guards need this client, so it must be dropped after them.
    client: Client,
    runtime: Arc<Runtime>,
}

/// A held lock. Dropping this does not release the lock.
struct Held {
    guard: Guard,
    runtime: Arc<Runtime>,
}

impl Held {
    fn release(self) {
        self.runtime.block_on(self.guard.release()).unwrap();
    }
}

struct Waiting {
    wait: JoinHandle<Guard>,
    runtime: Arc<Runtime>,
}

impl Waiting {
    fn held(self) -> Held {
        let guard = self.runtime.block_on(self.wait).unwrap();
        Held {
            guard,
            runtime: self.runtime,
        }
    }
}

impl Locks {
    fn of(store: &StoreAt) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(store.connect());
        Self {
            client,
            runtime: Arc::new(runtime),
        }
    }

    fn hold(&self, name: &str, options: LockOptions) -> Held {
        self.wait(name, options).held()
    }

    fn wait(&self, name: &str, options: LockOptions) -> Waiting {
        let mutex = Mutex::new(&self.client, named(name)).unwrap();
        let wait = async move { mutex.lock_with(options).await.unwrap() };
        Waiting {
            wait: self.runtime.spawn(wait),
            runtime: self.runtime.clone(),
        }
    }

    /// Creates an entry in each of these locks. Only the znode of the entry is written.
    fn entries(&self, names: impl Iterator<Item = String>) {
        let create = async {
            let session = self.client.session().await.unwrap();
            let names: Vec<_> = names.collect();
            let mut last = None;
            for chunk in names.chunks(1_000) {
                let mut ops = Vec::new();
                for name in chunk {
                    let create = |path, mode| {
                        Op::Create(lockkeeper_store::Create {
                            path,
                            data: "{\"v\":1}".into(),
                            mode,
                            acl: session.acl().clone(),
                        })
                    };
                    let lock = named(name);
                    if last != Some(name) {
                        ops.push(create(lock.as_znode().clone(), CreateMode::Persistent));
                    }
                    last = Some(name);
                    let entry = lock.as_znode().join("_c_x-lock-").unwrap();
                    ops.push(create(entry, CreateMode::EphemeralSequential));
                }
                session.multi(ops).await.unwrap();
            }
        };
        self.runtime.block_on(create);
    }

    fn folder(&self) {
        let create = async {
            let session = self.client.session().await.unwrap();
            let locks = "/locks".parse().unwrap();
            session
                .create_all(&locks, CreateMode::Persistent)
                .await
                .unwrap();
        };
        self.runtime.block_on(create);
    }
}

fn labelled(label: &str) -> LockOptions {
    LockOptions::new().label(label)
}

fn page_of(dashboard: &Dashboard, name: &str) -> String {
    let path = named(name);
    let path = path
        .as_znode()
        .as_str()
        .replace('%', "%25")
        .replace('/', "%2F");
    format!("http://{}/#/lock/{path}", dashboard.at())
}
