//! Clients during a restore: their server is stopped, its store is restored from a backup that lacks their latest
//! changes, and served at the same address.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use lockkeeper::{Client, ConnectOptions, Error, LockError, Mutex, connect_with};
use lockkeeper_store::{Server, ServerOptions, Store, StoreOptions, disk};
use testkit::{TempFolder, free_address, within_reason};

use crate::common::LOCK;

const TIMEOUT: Duration = Duration::from_secs(2);

struct Served {
    server: Server,
    store: Store,
}

impl Served {
    async fn start(folder: &Path, address: SocketAddr) -> Self {
        let options = StoreOptions::new()
            .tick(TIMEOUT / 20)
            .session_timeouts(TIMEOUT / 10, TIMEOUT);
        let store = Store::file_with(folder, options).unwrap();
        let options = ServerOptions::new().listen(address);
        let server = Server::bind(&store, options).await.unwrap();
        Self { server, store }
    }

    async fn stop(self) {
        self.server.shutdown().await;
        drop(self.store);
    }
}

async fn client(address: SocketAddr) -> Client {
    let url = format!("lockkeeper://{address}");
    let options = ConnectOptions::new()
        .session_timeout(TIMEOUT)
        .connect_timeout(20 * TIMEOUT);
    connect_with(url.as_str(), options).await.unwrap()
}

/// Takes the lock in a new session, because the client may only now learn that the old one is over.
async fn locked_again(client: &Client) {
    let mutex = Mutex::new(client, LOCK).unwrap();
    loop {
        match mutex.lock().await {
            Ok(guard) => return guard.release().await.unwrap(),
            Err(LockError::Store(Error::SessionExpired { .. })) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn restored(served: Served, folder: &Path, address: SocketAddr) -> Served {
    served.stop().await;
    disk::restore(folder.join("backup"), folder.join("restored")).unwrap();
    Served::start(&folder.join("restored"), address).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_stops_believing_before_the_restored_store_grants_its_lock() {
    within_reason(async {
        let folder = TempFolder::new("restore");
        let address = free_address();
        let served = Served::start(&folder.path().join("data"), address).await;
        let holder = client(address).await;
        disk::backup(folder.path().join("data"), folder.path().join("backup")).unwrap();
        let held = Mutex::new(&holder, LOCK).unwrap().lock().await.unwrap();

        let served = restored(served, folder.path(), address).await;
        let other = client(address).await;
        let granted = Mutex::new(&other, LOCK).unwrap().lock().await.unwrap();
        assert!(!held.is_held(), "two hold the lock");
        assert!(granted.fencing_token() > held.fencing_token());
        held.lost().await;
        // Its client continues in a new session.
        granted.release().await.unwrap();
        locked_again(&holder).await;
        served.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_released_after_the_backup_is_free() {
    within_reason(async {
        let folder = TempFolder::new("restore");
        let address = free_address();
        let served = Served::start(&folder.path().join("data"), address).await;
        let holder = client(address).await;
        let held = Mutex::new(&holder, LOCK).unwrap().lock().await.unwrap();
        disk::backup(folder.path().join("data"), folder.path().join("backup")).unwrap();
        held.release().await.unwrap();

        let served = restored(served, folder.path(), address).await;
        let other = client(address).await;
        let waits = Mutex::new(&other, LOCK).unwrap();
        let granted = tokio::time::timeout(15 * TIMEOUT, waits.lock()).await;
        let granted = granted.expect("what was released is free").unwrap();
        // Not because the holder ended, which is alive.
        granted.release().await.unwrap();
        locked_again(&holder).await;
        served.stop().await;
    })
    .await;
}
