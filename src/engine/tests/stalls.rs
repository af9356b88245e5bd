//! Expiry of the sessions of other processes on a server that was late.

use super::*;
use crate::engine::connection::{Connection, SessionRequest};
use crate::engine::remote::Remote;

const TIMEOUT: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

/// The session's deadline is after 12 s, which is the timeout plus the rest of a tick.
fn served() -> (Clock, Store, Remote, Connection) {
    let (store, clock) = virtual_store();
    clock.advance(SECOND);
    let remote = store.attach().unwrap();
    let connection = now(remote.open(TIMEOUT, 1 << 20)).unwrap();
    (clock, store, remote, connection)
}

fn left() -> (Clock, Store, SessionId) {
    let (clock, store, _, connection) = served();
    (clock, store, connection.id())
}

fn lives(store: &Store, session: SessionId) -> bool {
    store.0.state.lock().core.slot_of(session).is_some()
}

#[test]
fn rule_14_a_session_that_is_left_expires_within_its_timeout_and_a_tick() {
    let (clock, store, session) = left();
    clock.advance(TIMEOUT);
    assert!(lives(&store, session));
    clock.advance(2 * SECOND);
    assert!(!lives(&store, session));
}

#[test]
fn rule_14_a_stop_of_the_server_moves_a_deadline_by_as_much() {
    let (clock, store, session) = left();
    clock.advance(9 * SECOND);
    clock.stall(5 * SECOND);
    clock.advance(2 * SECOND);
    assert!(lives(&store, session), "11 s of the server's own");
    clock.advance(2 * SECOND);
    assert!(!lives(&store, session), "13 s of the server's own");
}

#[test]
fn rule_14_stops_move_a_deadline_by_the_timeout_at_most() {
    let (clock, store, session) = left();
    for _ in 0..20 {
        clock.stall(SECOND);
        clock.advance(SECOND / 4);
    }
    assert!(!lives(&store, session), "25 s have passed");
}

#[test]
fn rule_14_a_suspension_of_the_machine_moves_no_deadline() {
    let (clock, store, session) = left();
    clock.advance(9 * SECOND);
    clock.suspend(5 * SECOND);
    assert!(!lives(&store, session));
}

#[test]
fn rule_14_after_a_long_stop_a_client_has_a_tick_to_come_back() {
    let (clock, store, remote, connection) = served();
    let (id, password) = (connection.id(), connection.password());
    drop(connection);
    clock.advance(9 * SECOND);
    clock.stall(100 * SECOND);
    let taken_up = now(remote.reattach(id, password, TIMEOUT, 1 << 20)).unwrap();
    drop(taken_up.unwrap_or_else(|why| panic!("it is too late: {why:?}")));
    clock.advance(TIMEOUT);
    assert!(lives(&store, id));
    clock.stall(100 * SECOND);
    clock.advance(2 * SECOND);
    assert!(!lives(&store, id), "nobody has come back");
}

#[test]
fn rule_14_a_sign_of_life_that_is_read_late_counts() {
    let (clock, store, _, connection) = served();
    clock.advance(13 * SECOND);
    assert_eq!(connection.submit(&mut [SessionRequest::Ping].into()), 1);
    clock.advance(9 * SECOND);
    assert!(lives(&store, connection.id()));
}

/// The connection's task does not run, so the store cannot know whether the client has sent anything.
#[test]
fn rule_14_a_connection_that_has_no_turn_keeps_its_session_for_a_timeout_at_most() {
    let (clock, store, _, connection) = served();
    clock.advance(12 * SECOND + TIMEOUT - SECOND);
    assert!(lives(&store, connection.id()));
    clock.stall(SECOND);
    clock.advance(2 * SECOND);
    assert!(!lives(&store, connection.id()));
}

#[test]
fn a_stop_changes_nothing_for_sessions_of_the_store_s_own_process() {
    let (store, clock) = virtual_store();
    let _served = store.attach().unwrap();
    let options = ConnectOptions::new().session_timeout(TIMEOUT);
    let session = now(store.connector().open(&options)).unwrap();
    clock.advance(9 * SECOND);
    clock.stall(5 * SECOND);
    assert_eq!(session.status().state(), SessionState::Expired);
}

#[cfg(feature = "server")]
#[tokio::test]
async fn rule_14_a_client_whose_requests_wait_for_the_log_keeps_its_session() {
    use super::bench::{Bench, write_all};
    use crate::server::{Server, ServerOptions};
    use crate::wire::put_frame;
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let listening = ServerOptions::new().listen(([127, 0, 0, 1], 0).into());
    let server = Server::bind(&world.store, listening.max_in_flight(1)).await;
    let server = server.unwrap();
    let client = tokio::net::TcpStream::connect(server.local_addr().unwrap()).await;
    let client = client.unwrap();
    let mut handshake = Vec::new();
    put_frame(&mut handshake, |to| {
        to.extend_from_slice(&[0; 12]);
        to.extend_from_slice(&10_000_i32.to_be_bytes());
        to.extend_from_slice(&[0; 12]);
    });
    client.try_write(&handshake).unwrap();
    let mut welcome = [0; 40];
    let mut read = 0;
    while read < welcome.len() {
        write_all(&mut world);
        tokio::task::yield_now().await;
        read += client.try_read(&mut welcome[read..]).unwrap_or(0);
    }
    let mut creates = Vec::new();
    for path in [b"/a", b"/b"] {
        put_frame(&mut creates, |to| {
            to.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2]);
            to.extend_from_slice(path);
            to.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 31, 0, 0, 0, 5]);
            to.extend_from_slice(b"world\0\0\0\x06anyone\0\0\0\0");
        });
    }
    let before = world.store.counts().znodes;
    client.try_write(&creates).unwrap();
    while world.store.counts().znodes == before {
        tokio::task::yield_now().await;
    }
    bench.clock.advance(13 * SECOND);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.store.counts().sessions, 1, "it may not end yet");
    while world.store.counts().znodes < before + 2 {
        write_all(&mut world);
        tokio::task::yield_now().await;
    }
    bench.clock.advance(9 * SECOND);
    tokio::task::yield_now().await;
    assert_eq!(world.store.counts().sessions, 1, "it gave a sign of life");
}
