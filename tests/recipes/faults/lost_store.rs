//! A server restarts with an empty store. Its clients learn that their sessions are over. They lock nothing in the
//! other store, because its fencing tokens do not compare with theirs.

use std::env;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper::{ConnectOptions, Error, LockError, LostReason, Mutex, connect_with};
use lockkeeper_store::{Server, ServerOptions, Store, StoreOptions};
use testkit::{ChildProcess, TempFolder, again, free_address, within_reason};
use tokio::task::block_in_place;

use crate::common::*;

const TIMEOUT: Duration = Duration::from_secs(4);

const SERVER: &str = "LOCKKEEPER_FAULTS_SERVER";
const READY: &str = "the server is ready";

/// Starts a server in a separate process, which is this test binary running one test. Returns when it listens.
fn serve(folder: &Path, address: SocketAddr) -> ChildProcess {
    let mut command = again(module_path!(), "a_server");
    let place = format!("{address} {}", folder.display());
    command.env(SERVER, place).stdout(Stdio::piped());
    // Its stdin ends with this process.
    let mut server = ChildProcess::spawn(command.stdin(Stdio::piped()));
    server.lines().wait_for(READY);
    server
}

#[tokio::test]
async fn a_server() {
    let Ok(place) = env::var(SERVER) else { return };
    let (address, folder) = place.split_once(' ').unwrap();
    let tick = Duration::from_millis(100);
    let options = StoreOptions::new()
        .tick(tick)
        .session_timeouts(2 * tick, TIMEOUT);
    let store = Store::file_with(folder, options).unwrap();
    let options = ServerOptions::new().listen(address.parse().unwrap());
    let _server = Server::bind(&store, options).await.unwrap();
    // The harness may have left a line unfinished.
    println!("\n{READY}");
    let end = || std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    let _ = tokio::task::spawn_blocking(end).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_store_ends_its_sessions() {
    within_reason(async {
        let folder = TempFolder::new("lost-store");
        let address = free_address();
        let mut server = block_in_place(|| serve(&folder.path().join("first"), address));
        let url = format!("lockkeeper://{address}");
        let connect = async || {
            let options = ConnectOptions::new()
                .session_timeout(TIMEOUT)
                .connect_timeout(Duration::from_secs(120));
            connect_with(url.as_str(), options).await.unwrap()
        };
        let (holder, waiter) = (connect().await, connect().await);
        let held = Mutex::new(&holder, LOCK).unwrap().lock().await.unwrap();
        let waiting = tokio::spawn({
            let mutex = Mutex::new(&waiter, LOCK).unwrap();
            async move { mutex.lock().await }
        });
        until(&waiter.session().await.unwrap(), LOCK, |it| it.len() == 2).await;
        let first = holder.store_id().unwrap().to_owned();

        block_in_place(|| server.kill());
        let _server = block_in_place(|| serve(&folder.path().join("second"), address));
        // A store started within the same moments has assigned fewer numbers than the client has seen. It refuses the
        // session without reporting its end.
        let reason = held.lost().await;
        let reasons = [LostReason::SessionExpired, LostReason::LeaseExpired];
        assert!(reasons.contains(&reason), "{reason}");
        assert!(!held.is_held());
        let refused = waiting.await.unwrap().unwrap_err();
        assert!(refused.is_session_end(), "{refused}");

        // Both were clients of the lost store.
        for lost in [holder, waiter] {
            let refused = Mutex::new(&lost, LOCK).unwrap().lock().await.unwrap_err();
            let is_other = matches!(&refused, LockError::Store(Error::StoreChanged { .. }));
            assert!(is_other, "{refused}");
        }
        let other = connect().await;
        assert_ne!(other.store_id().unwrap(), first);
        let guard = Mutex::new(&other, LOCK).unwrap().lock().await.unwrap();
        let released = held.release().await;
        assert!(matches!(released, Err(LockError::Lost(_))), "{released:?}");
        assert!(guard.is_held());
        guard.release().await.unwrap();
    })
    .await;
}
