//! A server grants another timeout when a client reconnects.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper_store::{ConnectOptions, CreateMode, EventKind, Session, connect_with};
use testkit::{Proxy, unique, within_reason, zookeeper};

use crate::common::*;

/// The timeouts before and after. Both tolerate a machine that stalls for a second, so no lease expires during a test.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_secs(8);

/// Returns a session with a long timeout behind a proxy, and a direct one.
async fn wired(scheme: &str, server: SocketAddr) -> (Proxy, Session, Session) {
    let (proxy, chroot) = (Proxy::to(server), unique("renegotiation"));
    let wired = format!("{scheme}://{}/{chroot}", proxy.hosts());
    let direct = format!("{scheme}://{server}/{chroot}");
    let options = ConnectOptions::new().create_chroot().session_timeout(LONG);
    let session = connect_with(wired.as_str(), options.clone()).await.unwrap();
    let other = connect_with(direct.as_str(), options).await.unwrap();
    let (session, other) = (session.session().await, other.session().await);
    (proxy, session.unwrap(), other.unwrap())
}

async fn reconnect(proxy: &Proxy, session: &Session) {
    let mut states = session.states();
    proxy.break_off();
    reconnected(&mut states).await;
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
    assert_eq!(session.timeout(), Some(SHORT));
    assert!(lease.is_valid(), "a reconnection loses nothing");
    proxy.cut();
    assert_eq!(event(gone.await), seen(EventKind::NodeDeleted, "/held"));
    assert!(
        !lease.is_valid(),
        "others may hold, and {:?} are left here",
        session.held_until().unwrap().remaining()
    );
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

#[tokio::test]
async fn a_shorter_timeout_ends_the_belief_before_others_may_hold_on_ours() {
    let server = testkit::Served::start(testkit::SWEEP);
    within_reason(a_shorter_timeout_ends_the_belief_before_others_may_hold(
        "lockkeeper",
        server.address(),
    ))
    .await;
}
