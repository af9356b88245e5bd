//! Servers without newer features.

use std::sync::Arc;

use lockkeeper::{Client, ConnectOptions, Error, Mutex, RwLock, Semaphore, Store};
use lockkeeper_store::{Backend, Create, CreateMode, Request, Response};
use testkit::{Intercept, intercepted, unindexed};

use crate::common::*;

/// A server without containers, like ZooKeeper before 3.5.
struct NoContainers;

impl Intercept for NoContainers {
    fn submit(&self, inner: &Arc<dyn Backend>, request: Request) -> Response {
        match request {
            Request::Create(Create {
                mode: CreateMode::Container,
                ..
            }) => Response::ready(Err(Error::Unimplemented { what: "containers" })),
            other => inner.submit(other),
        }
    }
}

/// Queues and their ancestors are persistent there, because every create of a container is refused.
#[tokio::test]
async fn locks_need_no_containers() {
    let store = Store::memory();
    let connector = intercepted(unindexed(store.connector()), || NoContainers);
    let options = ConnectOptions::new().session_timeout(LONG);
    let client = Client::open(connector, "old".to_owned(), options);
    let client = client.await.unwrap();
    for lock in ["/mutex", "/deep/below/mutex", "/deep/beside"] {
        for _ in 0..2 {
            let guard = Mutex::new(&client, lock).unwrap().lock().await.unwrap();
            guard.release().await.unwrap();
        }
    }
    let rwlock = RwLock::new(&client, "/of/rwlock").unwrap();
    rwlock.write().await.unwrap().release().await.unwrap();
    let semaphore = Semaphore::new(&client, "/of/semaphore", 2).unwrap();
    semaphore.acquire().await.unwrap().release().await.unwrap();
    let session = client.session().await.unwrap();
    for queue in ["/mutex", "/deep/below/mutex", "/deep/beside", "/of/rwlock"] {
        let stat = session.exists(&path(queue)).await.unwrap().unwrap();
        assert_eq!(
            (stat.num_children, stat.is_ephemeral()),
            (0, false),
            "{queue}"
        );
    }
}
