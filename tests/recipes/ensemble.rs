//! Three real ZooKeeper servers: followers that answer by themselves, and one that is stopped.

use std::time::Duration;

use lockkeeper::{Client, ConnectOptions, FencingGate, Guard, LostReason, Mutex, connect_with};
use lockkeeper_store::CreateMode;

use crate::common::*;
use crate::support::{ZooKeeper, within_reason};

/// The tick of the tests' servers (`zookeeper.sh`).
const TICK: Duration = Duration::from_millis(200);

/// So long that a machine that is busy with other tests loses no lock by it.
const UNHURRIED: Duration = Duration::from_secs(6);

const BRIEF: Duration = Duration::from_secs(2);

async fn client(server: &ZooKeeper, timeout: Duration) -> Client {
    let url = format!("zookeeper://{}", server.hosts());
    let options = ConnectOptions::new()
        .session_timeout(timeout)
        .ensemble_tick(TICK);
    let client = connect_with(url.as_str(), options).await.unwrap();
    let session = client.session().await.unwrap();
    assert!(session.status().quorum_only(), "one address of several");
    client
}

/// Waits until the proof has been renewed, or the lock is lost.
async fn renewed(guard: &Guard) {
    let before = guard.held_until().unwrap().moment();
    while guard.is_held() && guard.held_until().unwrap().moment() == before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_ensemble_of_three() {
    let servers = tokio::task::spawn_blocking(ZooKeeper::start_ensemble);
    let servers = servers.await.unwrap();
    within_reason(hand_overs_across_its_members(&servers)).await;
    within_reason(cold_grants_are_kept(&servers)).await;
    #[cfg(all(feature = "file", feature = "server", feature = "client"))]
    within_reason(idle_clients_cost_little(&servers)).await;
    within_reason(a_stopped_follower(&servers)).await;
}

async fn hand_overs_across_its_members(servers: &[ZooKeeper]) {
    let gate = std::sync::Arc::new(std::sync::Mutex::new((FencingGate::default(), 0)));
    let mut workers = Vec::new();
    for server in servers {
        let mutex = Mutex::new(&client(server, UNHURRIED).await, LOCK).unwrap();
        let gate = gate.clone();
        workers.push(tokio::spawn(async move {
            for _ in 0..20 {
                let guard = mutex.lock().await.unwrap();
                {
                    let mut gate = gate.lock().unwrap();
                    gate.0.admit(guard.fencing_token()).unwrap();
                    gate.1 += 1;
                }
                assert!(guard.is_held());
                guard.release().await.unwrap();
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(gate.lock().unwrap().1, 60);
}

/// Nothing is wrong with the ensemble: however old the last proof was, no lock may be lost.
async fn cold_grants_are_kept(servers: &[ZooKeeper]) {
    let mut grants = Vec::new();
    for (number, tenths) in [0, 20, 40, 46, 50, 52, 54, 70].into_iter().enumerate() {
        let client = client(&servers[number % servers.len()], UNHURRIED).await;
        let parent = path(&format!("/cold-{number}"));
        let session = client.session().await.unwrap();
        session
            .create_all(&parent, CreateMode::Persistent)
            .await
            .unwrap();
        grants.push(tokio::spawn(async move {
            client
                .clock()
                .sleep(tenths * Duration::from_millis(100))
                .await;
            let guard = Mutex::new(&client, parent.as_str()).unwrap();
            let guard = guard.lock().await.unwrap();
            for _ in 0..2 {
                renewed(&guard).await;
                assert!(
                    guard.is_held(),
                    "lost after {tenths} tenths of a second idle"
                );
            }
            guard.release().await.unwrap();
        }));
    }
    for grant in grants {
        grant.await.unwrap();
    }
}

#[cfg(all(feature = "file", feature = "server", feature = "client"))]
async fn idle_clients_cost_little(servers: &[ZooKeeper]) {
    use crate::idle::over_a_wire::{Place, clients_cost_little};
    let servers: Vec<_> = servers.iter().map(ZooKeeper::address).collect();
    clients_cost_little(Place::ZooKeeper(servers.clone()), &servers).await;
}

async fn a_stopped_follower(servers: &[ZooKeeper]) {
    let follower = servers.iter().find(|server| !server.is_leader()).unwrap();
    let leader = servers.iter().find(|server| server.is_leader()).unwrap();
    let mut gate = FencingGate::default();
    for _ in 0..2 {
        let cut_off = Mutex::new(&client(follower, BRIEF).await, LOCK).unwrap();
        let other = Mutex::new(&client(leader, BRIEF).await, LOCK).unwrap();
        let held = cut_off.lock().await.unwrap();
        gate.admit(held.fencing_token()).unwrap();
        // It stops with the holder's next writes in its socket.
        follower.stop();
        let next = other.lock().await.unwrap();
        assert!(
            !held.is_held(),
            "another holds, and {:?} are left here",
            held.held_until().unwrap().remaining()
        );
        gate.admit(next.fencing_token()).unwrap();
        gate.admit(held.fencing_token()).unwrap_err();
        follower.resume();
        assert!(!held.is_held(), "what is lost stays lost");
        assert!(matches!(
            held.lost().await,
            LostReason::LeaseExpired | LostReason::SessionExpired
        ));
        next.release().await.unwrap();
    }
}
