//! The turns of sessions of other processes end after an amount of work, not after a number of requests.

use std::collections::VecDeque;

use super::*;
use crate::core::SetWatches;
use crate::engine::connection::{Connection, SessionRequest};
use crate::engine::outbox::Message;
use crate::model::protocol::{Reply, Request};
use crate::model::types::Zxid;

fn served(store: &Store) -> Connection {
    let remote = store.attach().unwrap();
    now(remote.open(Duration::from_secs(10), 64 << 20)).unwrap()
}

fn told(connection: &Connection) -> VecDeque<Message> {
    let mut told = VecDeque::new();
    connection.outbox().take(usize::MAX, |_| true, &mut told);
    told
}

fn watches(paths: usize) -> SessionRequest {
    let missing = (0..paths).map(|number| path(&format!("/missing/{number}")));
    SessionRequest::SetWatches(SetWatches {
        since: Zxid(i64::MAX),
        exist: missing.collect(),
        ..SetWatches::default()
    })
}

#[test]
fn a_turn_ends_by_its_work_and_the_next_takes_up_the_rest() {
    const ASKS: usize = 64;
    let (store, _clock) = virtual_store();
    let connection = served(&store);
    let mut asks: VecDeque<_> = (0..ASKS).map(|_| watches(4_096)).collect();
    let (mut turns, mut done) = (0, 0);
    while !asks.is_empty() {
        done += connection.submit(&mut asks);
        turns += 1;
        assert!(turns < 10_000, "{} of {ASKS} are left", asks.len());
    }
    assert!(done >= ASKS, "{done} are done");
    assert!(turns > ASKS / 8, "{ASKS} such requests in {turns} turns");
    let answers = told(&connection);
    assert_eq!(answers.len(), ASKS);
    let is_done = |what: &Message| matches!(what, Message::Answer { answer: Ok(_), .. });
    assert!(answers.iter().all(is_done));
}

const TURN: u64 = 2 * 16_384;

/// Returns the largest amount of work done without releasing the store's lock, and the answers.
fn max_at_once(
    store: &Store,
    connection: &Connection,
    asks: Vec<SessionRequest>,
) -> (u64, Vec<Message>) {
    let work = || store.0.state.lock().core.work();
    let (count, mut asks) = (asks.len(), VecDeque::from(asks));
    let (mut most, mut answers) = (0, Vec::new());
    while answers.len() < count {
        let before = work();
        connection.submit(&mut asks);
        most = most.max(work() - before);
        answers.extend(told(connection));
    }
    (most, answers)
}

fn create(at: String, mode: CreateMode) -> SessionRequest {
    SessionRequest::Request(Request::Create(crate::Create {
        path: path(&at),
        data: bytes::Bytes::new(),
        mode,
        acl: Acl::open(),
    }))
}

fn owner(store: &Store) -> Connection {
    let connection = served(store);
    let own = (0..50_000).map(|number| create(format!("/own-{number}"), CreateMode::Ephemeral));
    max_at_once(store, &connection, own.collect());
    connection
}

fn paths(what: Message) -> Vec<String> {
    match what {
        Message::Answer {
            answer: Ok(Reply::Paths(paths)),
            ..
        } => paths.iter().map(ToString::to_string).collect(),
        what => panic!("{what:?}"),
    }
}

#[test]
fn a_search_among_many_ephemerals_takes_several_turns() {
    let (store, _clock) = virtual_store();
    let connection = owner(&store);
    let search = |prefix| {
        SessionRequest::Request(Request::GetEphemerals {
            prefix: path(prefix),
        })
    };
    let asks = vec![search("/own-4999"), search("/none"), search("/own-17")];
    let (most, answers) = max_at_once(&store, &connection, asks);
    assert!(most <= TURN, "{most} units in one turn");
    let mut answers = answers.into_iter().map(paths);
    let found = answers.next().unwrap();
    assert_eq!((found.len(), &*found[0]), (11, "/own-4999"));
    assert!(answers.next().unwrap().is_empty());
    assert_eq!(answers.next().unwrap().len(), 1_111);
}

#[test]
fn a_million_watches_brought_back_take_many_turns() {
    let (store, _clock) = virtual_store();
    let connection = served(&store);
    let (most, answers) = max_at_once(&store, &connection, vec![watches(100_000)]);
    assert!(most <= TURN, "{most} units in one turn");
    assert_eq!(answers.len(), 1);
    assert_eq!(store.0.state.lock().core.counts().watches, 100_000);
}

#[test]
fn a_session_with_many_watches_is_closed_in_several_turns() {
    let (store, _clock) = virtual_store();
    let connection = served(&store);
    max_at_once(&store, &connection, vec![watches(50_000)]);
    let (most, answers) = max_at_once(
        &store,
        &connection,
        vec![SessionRequest::Request(Request::Close)],
    );
    assert!(most <= TURN, "{most} units in one turn");
    assert!(matches!(answers[0], Message::Answer { answer: Ok(_), .. }));
    let counts = store.0.state.lock().core.counts();
    assert_eq!((counts.watches, counts.sessions), (0, 0));
}

#[test]
fn a_session_with_many_watches_is_taken_over_with_none_and_its_former_connection_refused() {
    let (store, _clock) = virtual_store();
    let remote = store.attach().unwrap();
    let former = now(remote.open(Duration::from_secs(10), 64 << 20)).unwrap();
    max_at_once(&store, &former, vec![watches(50_000)]);
    let taken = remote.reattach(former.id(), [0; 16], Duration::from_secs(10), 64 << 20);
    assert!(
        now(taken).unwrap().is_err(),
        "a wrong password takes nothing"
    );
    assert_eq!(store.0.state.lock().core.counts().watches, 50_000);
    let (id, password) = (former.id(), former.password());
    let taken = remote.reattach(id, password, Duration::from_secs(10), 64 << 20);
    let connection = now(taken).unwrap().unwrap();
    assert_eq!(store.0.state.lock().core.counts().watches, 0);
    max_at_once(&store, &connection, vec![watches(10)]);
    former.submit(&mut [SessionRequest::Ping].into());
    assert!(former.outbox().is_cut().is_some());
    drop(former);
    assert_eq!(store.0.state.lock().core.counts().watches, 10);
    drop(connection);
    assert_eq!(store.0.state.lock().core.counts().watches, 0);
}

#[test]
fn sessions_that_are_due_at_once_all_end_though_one_tick_ends_some_of_them() {
    let (store, clock) = virtual_store();
    let crowd: Vec<_> = (0..20).map(|_| served(&store)).collect();
    for (number, connection) in crowd.iter().enumerate() {
        let own = (0..2_000).map(|at| create(format!("/{number}-{at}"), CreateMode::Ephemeral));
        max_at_once(&store, connection, own.collect());
    }
    let counts = || store.0.state.lock().core.counts();
    assert_eq!((counts().sessions, counts().ephemerals), (20, 40_000));
    drop(crowd);
    clock.advance(Duration::from_secs(15));
    assert_eq!((counts().sessions, counts().ephemerals), (0, 0));
}
