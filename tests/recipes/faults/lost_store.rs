//! A server that comes back with an empty store: its clients learn that their sessions are over, and lock nothing in the
//! other store, whose fencing tokens do not compare with those that they have used.

use std::net::Ipv4Addr;
use std::time::Duration;

use lockkeeper::{ConnectOptions, Error, LockError, LostReason, Mutex, connect_with};
use tokio::task::block_in_place;

use super::server::Terms;
use crate::common::*;
use crate::support::{TempFolder, port_of_a_server, within_reason};

const TIMEOUT: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_store_ends_its_sessions() {
    within_reason(async {
        let folder = TempFolder::new("lost-store");
        let mut terms = Terms {
            folder: folder.path().join("first"),
            address: (Ipv4Addr::LOCALHOST, port_of_a_server()).into(),
            longest_timeout: TIMEOUT,
            max_frame_bytes: None,
            max_in_flight: None,
        };
        let mut server = block_in_place(|| terms.started());
        let url = format!("lockkeeper://{}", terms.address);
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
        terms.folder = folder.path().join("second");
        let _server = block_in_place(|| terms.started());
        // A store that began within the same moments has assigned fewer numbers than the client has seen, and refuses the
        // session without a word of its end.
        let reason = held.lost().await;
        let reasons = [LostReason::SessionExpired, LostReason::LeaseExpired];
        assert!(reasons.contains(&reason), "{reason}");
        assert!(!held.is_held());
        let refused = waiting.await.unwrap().unwrap_err();
        assert!(refused.is_session_end(), "{refused}");

        // Both were clients of the store that is gone.
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
