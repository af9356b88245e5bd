//! Three real ZooKeeper servers: followers that answer from their own state, and one that is stopped.

use std::time::Duration;

use lockkeeper::{
    Client, ConnectOptions, Error, FencingGate, Guard, LostReason, Mutex, connect_with,
};
use lockkeeper_store::CreateMode;
use testkit::{Counts, Proxy, ZooKeeper, within_reason};

use crate::common::*;

/// The tick of the tests' servers (`ZooKeeperConfig`).
const TICK: Duration = Duration::from_millis(200);

/// Long enough that no lock is lost on a machine that is busy with other tests.
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

/// Waits until the proof is renewed or the lock is lost.
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
    within_reason(idle_clients_cost_little(&servers)).await;
    within_reason(many_clients_fail_over(&servers)).await;
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

/// The ensemble is healthy, so no lock may be lost, however old the last proof was.
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

async fn idle_clients_cost_little(servers: &[ZooKeeper]) {
    use crate::idle::over_a_wire::{Place, clients_cost_little};
    let servers: Vec<_> = servers.iter().map(ZooKeeper::address).collect();
    clients_cost_little(Place::ZooKeeper(servers.clone()), &servers).await;
}

/// A lost member costs each of its clients one handshake and no additional session.
async fn many_clients_fail_over(servers: &[ZooKeeper]) {
    const CLIENTS: usize = 200;
    let proxies: Vec<_> = servers.iter().map(|it| Proxy::to(it.address())).collect();
    let hosts: Vec<_> = proxies.iter().map(Proxy::hosts).collect();
    let url = format!("zookeeper://{}", hosts.join(","));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let options = ConnectOptions::new().session_timeout(LONG);
        clients.push(connect_with(url.as_str(), options).await.unwrap());
    }
    let counts = proxies.iter().map(Proxy::take_counts);
    let counts: Vec<_> = counts.map(|counts| counts.new_sessions).collect();
    assert_eq!(counts.iter().sum::<usize>(), CLIENTS);
    assert!(
        counts.iter().all(|count| *count > CLIENTS / 6),
        "{counts:?}"
    );

    proxies[0].cut();
    for client in &clients {
        let session = client.current_session();
        while session.exists(&path("/")).await == Err(Error::ConnectionLoss) {}
        assert!(session.state().is_connected());
    }
    let after: Counts = proxies[1..].iter().map(Proxy::take_counts).sum();
    assert_eq!((after.new_sessions, after.connections), (0, counts[0]));
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
        // It stops while the holder's next writes are in its socket.
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
