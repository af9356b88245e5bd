//! Runs the same random programs, with several sessions, on the in-memory store, the store in a directory, a served
//! store over TCP and a real ZooKeeper. Results, Stats, errors and watch events must match step by step.
//!
//! After each step we read on every session, so that the step's events have arrived. Events are therefore compared in
//! order within each watcher, and step by step across watchers. Zxids are compared by order and identity, session ids
//! by the order of opening.
//!
//! Intended differences, removed before comparing:
//! - times.
//! - the zxid of a watch event, which ZooKeeper 3.8 does not send (3.9 and our store do).
//! - the Stat of a create within a multi, which 3.8 does not send (3.9 does).
//! - exists without the right to read, which 3.9 refuses and 3.8 allows.
//! - child counters, which have 64 bits in our store. No program creates 2^31 children.
//! - watches of several modes by one session on one path. 3.8 keeps only the last mode (ZOOKEEPER-4466, fixed in 3.9),
//!   so no program mixes them.
//! - the order in which a session's end deletes its ephemeral znodes under one zxid, which is a hash set's in
//!   ZooKeeper. Events of such a step are compared as sets.
//! - the order of a session's identities in a list created with `auth`, which is a hash set's in ZooKeeper and the
//!   order of proof in our store. Adjacent entries with equal rights are compared as a set.
//!
//! Over TCP there are no others. If a missing right hides an event, the client does not learn that its watcher is used
//! up, so the watcher fires on the next watch of that path. An in-process client does learn it. Programs with access
//! control lists therefore compare events only over TCP.
//!
//! In other programs the store in a directory is closed and reopened midway. The other two stores then end all sessions
//! and open new ones. The ephemeral znodes are gone everywhere, but the directory has no trace of them. If a znode had
//! ephemeral children, we ignore its `pzxid` and `cversion` from then on and give it no sequential children. The model
//! test (`model.rs`) specifies these exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockkeeper_store::{
    Backend, ConnectOptions, Connector, Create, Error, Op, Request, Store, WatchMode, ZnodePath,
    connect_with,
};
use proptest::prelude::*;

use crate::program::{self, Outcome, Seen, Sessions, Step};

const SESSIONS: usize = 3;

enum Place {
    Lasting(Arc<dyn Connector>),
    Folder(testkit::TempFolder, Option<Arc<dyn Connector>>),
}

impl Place {
    async fn memory() -> Self {
        let memory = Store::memory().connect().await.unwrap();
        Self::Lasting(memory.connector().clone())
    }

    fn folder() -> Self {
        Self::Folder(testkit::TempFolder::new("differential"), None)
    }

    async fn open(&mut self) -> Arc<dyn Backend> {
        let connector = match self {
            Self::Lasting(connector) => connector,
            Self::Folder(folder, connector) => connector.get_or_insert_with(|| {
                let options = lockkeeper_store::StoreOptions::new().segment_bytes(1 << 16, 1 << 17);
                Store::file_with(folder.path(), options)
                    .unwrap()
                    .connector()
            }),
        };
        connector.open(&ConnectOptions::new()).await.unwrap()
    }

    async fn open_all(&mut self) -> Vec<Arc<dyn Backend>> {
        let mut open = Vec::new();
        for _ in 0..SESSIONS {
            open.push(self.open().await);
        }
        open
    }

    /// Restarts a store in a directory. On other stores it only ends the sessions.
    async fn restart(&mut self, sessions: &mut Sessions) -> Outcome {
        match self {
            Self::Lasting(_) => sessions.close().await,
            Self::Folder(_, connector) => *connector = None,
        }
        sessions.abandon();
        if let Self::Folder(folder, _) = self {
            // An open store writes its process number there.
            let lock = std::fs::read(folder.path().join("LOCK")).unwrap();
            assert!(lock.is_empty(), "somebody still has the store open");
        }
        sessions.resume(self.open_all().await);
        Outcome::Nothing
    }
}

async fn run(mut place: Place, program: &[Step]) -> Vec<Seen> {
    let mut sessions = Sessions::new(place.open_all().await);
    let mut trace = Vec::new();
    for request in program::prelude() {
        let outcome = sessions.ask(0, request).await;
        trace.push(Seen {
            outcome,
            fired: sessions.drain(),
        });
    }
    let mut traceless = Traceless::default();
    for step in program {
        let mut outcome = match step.clone() {
            Step::Ask { session, request } => match request {
                Request::Exists { path, .. }
                    // ZooKeeper 3.8 checks no right for exists, and ours checks READ.
                    if !is_readable(&mut sessions, session, &path).await =>
                {
                    Outcome::Nothing
                }
                request => sessions.ask(session, request).await,
            },
            Step::Reopen { session } => {
                let new = place.open().await;
                sessions.replace(session, new).await
            }
            Step::DropWatcher { nth } => sessions.drop_watcher(nth),
            Step::Restart => place.restart(&mut sessions).await,
            Step::Advance { .. } => unreachable!("a real server's time cannot be moved"),
        };
        sessions.barrier().await;
        if let Step::Ask { request, .. } = step {
            traceless.forget(request, &mut outcome);
        }
        traceless.note(step);
        let mut seen = Seen {
            outcome,
            fired: sessions.drain(),
        };
        if matches!(step, Step::Reopen { .. }) {
            program::sort_events(&mut seen);
        }
        trace.push(seen);
    }
    look_around(&mut sessions, &traceless, &mut trace).await;
    program::forget_known_differences(&mut trace);
    program::normalise(&mut trace, &sessions.ids);
    sessions.close().await;
    trace
}

async fn is_readable(sessions: &mut Sessions, session: usize, path: &ZnodePath) -> bool {
    let (path, watch) = (path.clone(), false);
    let read = sessions
        .ask(session, Request::GetData { path, watch })
        .await;
    !matches!(read, Outcome::Failed(Error::NoAuth { .. }))
}

/// Znodes that may have had ephemeral children before a restart, which a directory does not record.
#[derive(Default)]
struct Traceless {
    since: BTreeSet<ZnodePath>,
    before: BTreeSet<ZnodePath>,
}

impl Traceless {
    fn note(&mut self, step: &Step) {
        match step {
            Step::Restart => self.before.append(&mut self.since),
            Step::Ask { request, .. } => {
                let ephemeral = creates(request).filter(|create| create.mode.is_ephemeral());
                self.since
                    .extend(ephemeral.filter_map(|create| create.path.parent()));
            }
            _ => {}
        }
    }

    /// Drops steps that would number a child with a counter that a directory has lost.
    fn without_their_numbers(program: Vec<Step>) -> Vec<Step> {
        let mut traceless = Self::default();
        let keep = |step: &Step| {
            traceless.note(step);
            let Step::Ask { request, .. } = step else {
                return true;
            };
            let mut numbered = creates(request).filter(|create| create.mode.is_sequential());
            !numbered.any(|create| {
                let parent = create.path.parent();
                parent.is_some_and(|parent| traceless.before.contains(&parent))
            })
        };
        program.into_iter().filter(keep).collect()
    }

    /// Removes the fields that a directory does not record.
    fn forget(&self, request: &Request, outcome: &mut Outcome) {
        for (path, stat) in program::stats_of(request, outcome) {
            if self.before.contains(&path) {
                (stat.pzxid, stat.cversion) = (Default::default(), 0);
            }
        }
    }
}

fn creates(request: &Request) -> impl Iterator<Item = &Create> {
    let (one, ops) = match request {
        Request::Create(create) => (Some(create), &[][..]),
        Request::Multi(ops) => (None, &ops[..]),
        _ => (None, &[][..]),
    };
    let in_ops = ops.iter().filter_map(|op| match op {
        Op::Create(create) => Some(create),
        _ => None,
    });
    one.into_iter().chain(in_ops)
}

/// Reads every znode.
async fn look_around(sessions: &mut Sessions, traceless: &Traceless, trace: &mut Vec<Seen>) {
    let mut paths = vec!["/t".parse::<ZnodePath>().unwrap()];
    while let Some(path) = paths.pop() {
        for request in program::look_at(&path) {
            let mut outcome = sessions.ask(0, request.clone()).await;
            traceless.forget(&request, &mut outcome);
            paths.extend(program::below(&path, &outcome));
            trace.push(Seen {
                outcome,
                fired: sessions.drain(),
            });
        }
    }
}

/// Drops steps in which a session would watch one path in several modes.
fn without_mixed_watches(program: Vec<Step>) -> Vec<Step> {
    let mut modes: BTreeMap<(usize, ZnodePath), Option<WatchMode>> = BTreeMap::new();
    let keep = |step: &Step| {
        let (session, path, mode) = match step {
            Step::Reopen { session } => {
                modes.retain(|(owner, _), _| owner != session);
                return true;
            }
            Step::Restart => {
                modes.clear();
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

/// The servers, and a program's chroot there.
struct Remote {
    zookeeper: String,
    served: String,
    chroot: String,
}

impl Remote {
    fn new() -> Self {
        Self {
            zookeeper: format!("zookeeper://{}", testkit::differential_server().hosts()),
            served: format!("lockkeeper://{}", testkit::differential_served().hosts()),
            chroot: format!("differential-{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        }
    }

    async fn run(&self, server: &str, program: &[Step]) -> Vec<Seen> {
        let url = format!("{server}/{}", self.chroot);
        let client = connect_with(&url, ConnectOptions::new().create_chroot()).await;
        let client = client.unwrap();
        let seen = run(Place::Lasting(client.connector().clone()), program).await;
        client.close().await.unwrap();
        seen
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Events {
    Everywhere,
    OverTcp,
}

async fn compare(remote: Remote, program: Vec<Step>, events: Events) -> Result<(), TestCaseError> {
    // ZOOKEEPER-4466: for several modes on one path, ZooKeeper keeps only the last.
    let program = Traceless::without_their_numbers(without_mixed_watches(program));
    let mut real = remote.run(&remote.zookeeper, &program).await;
    same(
        "served",
        remote.run(&remote.served, &program).await,
        &real,
        &program,
    )?;
    if events == Events::OverTcp {
        forget_events(&mut real);
    }
    let places = [
        ("memory", Place::memory().await),
        ("a folder", Place::folder()),
    ];
    for (name, place) in places {
        let mut ours = run(place, &program).await;
        if events == Events::OverTcp {
            forget_events(&mut ours);
        }
        same(name, ours, &real, &program)?;
    }
    Ok(())
}

fn forget_events(trace: &mut [Seen]) {
    trace.iter_mut().for_each(|seen| seen.fired.clear());
}

fn same(name: &str, ours: Vec<Seen>, real: &[Seen], program: &[Step]) -> Result<(), TestCaseError> {
    for (number, (ours, real)) in ours.iter().zip(real).enumerate() {
        let step = number
            .checked_sub(program::prelude().count())
            .and_then(|step| program.get(step));
        prop_assert_eq!(
            ours,
            real,
            "{} (left), ZooKeeper (right), step {}: {:?}",
            name,
            number,
            step
        );
    }
    Ok(())
}

fn compare_all(
    name: &'static str,
    regressions: &'static str,
    count: u64,
    programs: impl Strategy<Value = Vec<Step>>,
    events: Events,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    program::for_programs(name, regressions, count, programs, |program| {
        runtime.block_on(compare(Remote::new(), program, events))
    });
}

/// Gives each program its own chroot on the server.
static NEXT: AtomicUsize = AtomicUsize::new(0);

#[test]
fn memory_a_folder_a_served_store_and_zookeeper_answer_alike() {
    compare_all(
        "differential",
        "tests/store/regressions/differential.txt",
        200,
        program::programs(SESSIONS, 30),
        Events::Everywhere,
    );
}

#[test]
fn all_hold_requests_against_access_control_lists_alike() {
    compare_all(
        "differential-acl",
        "tests/store/regressions/differential-acl.txt",
        200,
        program::guarded_programs(SESSIONS, 40),
        Events::OverTcp,
    );
}

#[test]
fn a_folder_that_is_opened_again_answers_as_the_others_go_on() {
    compare_all(
        "differential-reopen",
        "tests/store/regressions/differential-reopen.txt",
        100,
        program::with_restarts(program::programs(SESSIONS, 40)),
        Events::Everywhere,
    );
}
