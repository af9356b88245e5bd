//! Timeouts that a server agrees to anew when a client reconnects.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lockkeeper_store::{
    ConnectOptions, CreateMode, EventKind, Session, SessionState, connect_with,
};

use crate::common::*;
use crate::support::{Proxy, unique, within_reason, zookeeper};

/// The timeouts before and after. Both are long for a machine that stands still for a second: a lease must not expire
/// while the test looks.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_secs(8);

/// Limit for a session to learn of a new timeout, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A session with a long timeout over a wire that the test holds, and one beside it.
async fn wired(scheme: &str, server: SocketAddr) -> (Proxy, Session, Session) {
    wired_with(scheme, server, LONG).await
}

async fn wired_with(
    scheme: &str,
    server: SocketAddr,
    timeout: Duration,
) -> (Proxy, Session, Session) {
    let (proxy, chroot) = (Proxy::to(server), unique("renegotiation"));
    let wired = format!("{scheme}://{}/{chroot}", proxy.hosts());
    let direct = format!("{scheme}://{server}/{chroot}");
    let options = ConnectOptions::new()
        .create_chroot()
        .session_timeout(timeout);
    let session = connect_with(wired.as_str(), options.clone()).await.unwrap();
    let other = connect_with(direct.as_str(), options).await.unwrap();
    let (session, other) = (session.session().await, other.session().await);
    (proxy, session.unwrap(), other.unwrap())
}

/// Breaks the connection, and waits until it is back.
async fn reconnect(proxy: &Proxy, session: &Session) {
    let mut states = session.states();
    proxy.break_off();
    reconnected(&mut states).await;
}

/// Sends requests until the session knows of the timeout, or should have known for long.
async fn until_agreed(session: &Session, timeout: Duration) {
    let start = Instant::now();
    while session.timeout() != Some(timeout) && start.elapsed() < PATIENCE {
        session.exists(&path("/")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Sends requests until one has extended the lease.
async fn until_extended(session: &Session) {
    let before = session.held_until().unwrap().moment();
    while session.held_until().unwrap().moment() == before {
        session.exists(&path("/")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn a_shorter_timeout_ends_the_belief_before_others_may_hold(
    scheme: &str,
    server: SocketAddr,
) {
    let (proxy, session, other) = wired(scheme, server).await;
    assert_eq!(session.timeout(), Some(LONG));
    let lease = session.lease();
    create(&session, "/held", CreateMode::Ephemeral).await;
    let (_, gone) = other.watch_exists(&path("/held")).await.unwrap();
    proxy.limit_timeouts(SHORT);
    reconnect(&proxy, &session).await;
    until_agreed(&session, SHORT).await;
    assert!(lease.is_valid(), "a reconnection loses nothing");
    proxy.cut();
    assert_eq!(event(gone.await), seen(EventKind::NodeDeleted, "/held"));
    assert!(
        !lease.is_valid(),
        "others may hold, and {:?} are left here",
        session.held_until().unwrap().remaining()
    );
    assert_eq!(session.timeout(), Some(SHORT));
}

#[tokio::test]
async fn a_shorter_timeout_ends_the_belief_before_others_may_hold_on_zookeeper() {
    let server = zookeeper().address();
    within_reason(a_shorter_timeout_ends_the_belief_before_others_may_hold(
        "zookeeper",
        server,
    ))
    .await;
}

#[cfg(all(feature = "file", feature = "server"))]
#[tokio::test]
async fn a_shorter_timeout_ends_the_belief_before_others_may_hold_on_ours() {
    let server = crate::support::Served::start(crate::support::SWEEP);
    within_reason(a_shorter_timeout_ends_the_belief_before_others_may_hold(
        "lockkeeper",
        server.address(),
    ))
    .await;
}

/// A session that believes must not go on so on the strength of a timeout that may be another.
#[tokio::test]
async fn the_belief_does_not_move_on_before_the_timeout_is_known() {
    let (proxy, session, _other) = wired("zookeeper", zookeeper().address()).await;
    let before = session.held_until().unwrap().moment();
    proxy.refuse_new_sessions();
    reconnect(&proxy, &session).await;
    for _ in 0..5 {
        session.exists(&path("/")).await.unwrap();
    }
    assert_eq!(
        session.held_until().unwrap().moment(),
        before,
        "nobody has said what the timeout is"
    );
    proxy.mend();
    until_extended(&session).await;
    assert_eq!(session.timeout(), Some(LONG));
}

/// Without a timeout the lease cannot be extended, so no lock would ever be granted in this session again.
#[tokio::test]
async fn a_session_whose_timeout_stays_unknown_ends() {
    const BRIEF: Duration = Duration::from_secs(4);
    let server = zookeeper().address();
    let (proxy, session, other) = wired_with("zookeeper", server, BRIEF).await;
    create(&session, "/held", CreateMode::Ephemeral).await;
    let (_, gone) = other.watch_exists(&path("/held")).await.unwrap();
    let mut states = session.states();
    proxy.refuse_new_sessions();
    proxy.take_counts();
    reconnect(&proxy, &session).await;
    let ended = async { while states.next().await.is_some() {} };
    within_reason(ended).await;
    assert_eq!(session.state(), SessionState::Expired);
    assert_eq!(event(gone.await), seen(EventKind::NodeDeleted, "/held"));
    let connections = proxy.take_counts().connections;
    assert!(connections < 10, "{connections} connections");
}

/// A connection that breaks again and again must not open a session at every server each time.
#[tokio::test]
async fn connections_that_break_in_a_row_share_a_probe() {
    const BREAKS: usize = 20;
    let (proxy, session, _other) = wired("zookeeper", zookeeper().address()).await;
    proxy.take_counts();
    let start = Instant::now();
    for _ in 0..BREAKS {
        reconnect(&proxy, &session).await;
        while session.exists(&path("/")).await.is_err() {}
    }
    let probes = proxy.take_counts().new_sessions;
    // Two sessions a probe at most, and a probe every two seconds.
    let allowed = 2 * (1 + start.elapsed().as_secs() as usize / 2);
    assert!(probes <= allowed, "{probes} sessions of {allowed}");
    until_extended(&session).await;
}
