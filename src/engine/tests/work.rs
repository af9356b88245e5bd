//! Turns of served sessions end by the work that they were, not by the number of requests.

use std::collections::VecDeque;

use super::*;
use crate::core::SetWatches;
use crate::engine::outbox::What;
use crate::engine::remote::{Ask, Connection};
use crate::types::Zxid;

fn served(store: &Store) -> Connection {
    let remote = store.attach().unwrap();
    now(remote.open(Duration::from_secs(10), 64 << 20)).unwrap()
}

/// Everything that the client is told now.
fn told(connection: &Connection) -> VecDeque<What> {
    let mut told = VecDeque::new();
    connection.outbox().take(usize::MAX, |_| true, &mut told);
    told
}

/// A request of many parts with a small answer: watches on so many paths without a znode.
fn watches(paths: usize) -> Ask {
    let missing = (0..paths).map(|number| path(&format!("/missing/{number}")));
    Ask::SetWatches(SetWatches {
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
    assert_eq!(done, ASKS);
    assert!(turns > ASKS / 8, "{ASKS} such requests in {turns} turns");
    let answers = told(&connection);
    assert_eq!(answers.len(), ASKS);
    let is_done = |what: &What| matches!(what, What::Answer { answer: Ok(_), .. });
    assert!(answers.iter().all(is_done));
}
