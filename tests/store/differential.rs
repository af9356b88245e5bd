//! The in-memory store against a real ZooKeeper: the same random programs of requests, from several
//! sessions, step by step. Results, Stats, errors and watch events must be the same.
//!
//! After each step a read on every session makes sure that what it fired has arrived; so the order
//! of events is compared within each watcher, and across all watchers from step to step. Zxids are
//! compared by their order and identity, session ids by the order of opening.
//!
//! The differences that are meant, and taken out before comparing:
//! - times;
//! - the zxid of a watch event: ZooKeeper 3.8 does not say it (3.9 does, as the store does);
//! - the Stat of a create within a multi: 3.8 does not say it (3.9 does);
//! - exists needs the right to read in 3.9, none in 3.8: the programs' znodes are open to all;
//! - the counters of children are 64 bits long in the store: no program makes 2^31 children;
//! - a session's watches of several modes on one path: 3.8 keeps the last mode only
//!   (ZOOKEEPER-4466, mended in 3.9), so no program mixes them;
//! - the order in which a session's end deletes its ephemeral znodes (under one zxid) is that of a
//!   hash set in ZooKeeper: the events of such a step are compared as sets.
//!
//! There are no others.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockkeeper_store::{
    ConnectOptions, Connector, Request, Store, WatchMode, ZnodePath, connect_with,
};
use proptest::prelude::*;

use crate::program::{self, Seen, Sessions, Step};
use crate::support;

const SESSIONS: usize = 3;

/// Runs a program at a store that is empty so far.
async fn run(connector: &Arc<dyn Connector>, program: &[Step]) -> Vec<Seen> {
    let options = ConnectOptions::new();
    let mut open = Vec::new();
    for _ in 0..SESSIONS {
        open.push(connector.open(&options).await.unwrap());
    }
    let mut sessions = Sessions::new(open);
    let mut trace = Vec::new();
    for request in program::prelude() {
        let outcome = sessions.ask(0, request).await;
        trace.push(Seen {
            outcome,
            fired: sessions.drain(),
        });
    }
    for step in program {
        let outcome = match step.clone() {
            Step::Ask { session, request } => sessions.ask(session, request).await,
            Step::Reopen { session } => {
                let new = connector.open(&options).await.unwrap();
                sessions.replace(session, new).await
            }
            Step::DropWatcher { nth } => sessions.drop_watcher(nth),
            Step::Advance { .. } => unreachable!("a real server's time cannot be moved"),
        };
        sessions.barrier().await;
        let mut seen = Seen {
            outcome,
            fired: sessions.drain(),
        };
        if matches!(step, Step::Reopen { .. }) {
            program::sort_events(&mut seen);
        }
        trace.push(seen);
    }
    look_around(&mut sessions, &mut trace).await;
    program::forget_known_differences(&mut trace);
    program::normalise(&mut trace, &sessions.ids);
    sessions.close().await;
    trace
}

/// Looks at every node there is.
async fn look_around(sessions: &mut Sessions, trace: &mut Vec<Seen>) {
    let mut paths = vec!["/t".parse::<ZnodePath>().unwrap()];
    while let Some(path) = paths.pop() {
        for request in program::look_at(&path) {
            let outcome = sessions.ask(0, request).await;
            paths.extend(program::below(&path, &outcome));
            trace.push(Seen {
                outcome,
                fired: sessions.drain(),
            });
        }
    }
}

/// Leaves out the steps by which a session would watch one path in several modes.
fn without_mixed_watches(program: Vec<Step>) -> Vec<Step> {
    let mut modes: BTreeMap<(usize, ZnodePath), Option<WatchMode>> = BTreeMap::new();
    let keep = |step: &Step| {
        let (session, path, mode) = match step {
            Step::Reopen { session } => {
                modes.retain(|(owner, _), _| owner != session);
                return true;
            }
            Step::Ask { session, request } => match request {
                Request::Exists { path, watch: true }
                | Request::GetData { path, watch: true }
                | Request::GetChildren { path, watch: true } => (session, path, None),
                Request::AddWatch { path, mode } => (session, path, Some(*mode)),
                _ => return true,
            },
            _ => return true,
        };
        *modes.entry((*session, path.clone())).or_insert(mode) == mode
    };
    program.into_iter().filter(keep).collect()
}

async fn compare(server: &str, number: usize, program: Vec<Step>) -> Result<(), TestCaseError> {
    let url = format!("zookeeper://{server}/differential-{number}");
    let client = connect_with(&url, ConnectOptions::new().create_chroot())
        .await
        .unwrap();
    let program = without_mixed_watches(program);
    let real = run(client.connector(), &program).await;
    client.close().await.unwrap();
    let memory = Store::memory().connect().await.unwrap();
    let ours = run(memory.connector(), &program).await;
    for (number, (ours, real)) in ours.iter().zip(&real).enumerate() {
        let step = number
            .checked_sub(program::prelude().count())
            .and_then(|step| program.get(step));
        prop_assert_eq!(
            ours,
            real,
            "memory (left), ZooKeeper (right), step {}: {:?}",
            number,
            step
        );
    }
    Ok(())
}

#[test]
fn memory_and_zookeeper_answer_alike() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = support::differential_server();
    let number = std::cell::Cell::new(0);
    program::for_programs(
        "differential",
        "tests/store/regressions/differential.txt",
        200,
        program::programs(SESSIONS, 30),
        |program| {
            number.set(number.get() + 1);
            runtime.block_on(compare(&server.hosts(), number.get(), program))
        },
    );
}
