//! Random programs of requests and their outcomes, shared by the differential test (memory against ZooKeeper) and the
//! model test (memory against a naive model).

mod requests;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper_store::{
    Acl, Backend, Create, CreateMode, Error, Op, OpReply, PersistentWatcher, Predecessor, ReadOp,
    ReadReply, Reply, Request, Result, SessionId, Stat, WatchedEvent, Watcher, ZnodePath, Zxid,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};
use testkit::{report, rounds, scaled};

pub(crate) use self::requests::with_restarts;
pub(crate) use self::requests::{guarded_programs, programs, timed_programs};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// A session sends a request.
    Ask { session: usize, request: Request },
    /// A session is closed and replaced.
    Reopen { session: usize },
    /// Drops the `nth` oldest living watcher.
    DropWatcher { nth: usize },
    /// Virtual time passes.
    Advance { by: Duration },
    /// The store is closed with all sessions and reopened with the same number of new ones.
    Restart,
}

/// The reply and events of one step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) outcome: Outcome,
    /// By watcher number, in the order of arming.
    pub(crate) fired: BTreeMap<usize, Vec<Result<WatchedEvent>>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Nothing,
    Done,
    Created(ZnodePath, Stat),
    Exists(Option<Stat>),
    Data(Bytes, Stat),
    Set(Stat),
    Acl(Acl, Stat),
    Children(Vec<String>, Stat),
    Multi(Vec<OpReply>),
    MultiRead(Vec<ReadReply>),
    Paths(Vec<ZnodePath>),
    Count(usize),
    Watching,
    Enqueued(ZnodePath, Zxid, Place),
    Predecessor(Place),
    Queue(Vec<String>),
    Failed(Error),
}

/// A [`Predecessor`] without its watcher.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    Clear,
    Blocked(ZnodePath, Option<usize>),
    Gone,
}

pub(crate) enum Armed {
    Once(Watcher),
    Stream(PersistentWatcher),
}

impl Armed {
    pub(crate) fn drain(&mut self) -> Vec<Result<WatchedEvent>> {
        let mut events = Vec::new();
        while let Some(event) = self.next() {
            let last = event.is_err() || matches!(self, Self::Once(_));
            events.push(event);
            if last {
                break;
            }
        }
        events
    }

    fn next(&mut self) -> Option<Result<WatchedEvent>> {
        match self {
            Self::Once(watcher) => now(Pin::new(watcher)),
            Self::Stream(watcher) => now(std::pin::pin!(watcher.next())).flatten(),
        }
    }
}

/// Polls a future once, outside any executor's budget.
pub(crate) fn now<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    let future = std::pin::pin!(tokio::task::unconstrained(future));
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

impl Outcome {
    /// Separates an answer from its watcher.
    pub(crate) fn of(reply: Result<Reply>) -> (Self, Option<Armed>) {
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => return (Self::Failed(error), None),
        };
        match reply {
            Reply::Done => (Self::Done, None),
            Reply::Created { path, stat } => (Self::Created(path, stat), None),
            Reply::Exists { stat, watcher } => (Self::Exists(stat), watcher.map(Armed::Once)),
            Reply::Data {
                data,
                stat,
                watcher,
            } => (Self::Data(data, stat), watcher.map(Armed::Once)),
            Reply::Stat(stat) => (Self::Set(stat), None),
            Reply::Acl { acl, stat } => (Self::Acl(acl, stat), None),
            Reply::Children {
                names,
                stat,
                watcher,
            } => (
                Self::Children(sorted(names), stat),
                watcher.map(Armed::Once),
            ),
            Reply::Multi(replies) => (Self::Multi(replies), None),
            Reply::MultiRead(replies) => {
                let replies = replies.into_iter().map(|reply| match reply {
                    ReadReply::Children(names) => ReadReply::Children(sorted(names)),
                    reply => reply,
                });
                (Self::MultiRead(replies.collect()), None)
            }
            Reply::Paths(paths) => (Self::Paths(sorted(paths)), None),
            Reply::Count(count) => (Self::Count(count), None),
            Reply::Watching(watcher) => (Self::Watching, Some(Armed::Stream(watcher))),
            Reply::Enqueued { path, czxid, ahead } => {
                let (place, watcher) = Place::of(ahead);
                (Self::Enqueued(path, czxid, place), watcher)
            }
            Reply::Predecessor(ahead) => {
                let (place, watcher) = Place::of(ahead);
                (Self::Predecessor(place), watcher)
            }
            Reply::Queue {
                names,
                sorted: true,
            } => (Self::Queue(names), None),
            reply => panic!("no program asks for {reply:?}"),
        }
    }

    fn stats(&mut self) -> Vec<&mut Stat> {
        match self {
            Self::Created(_, stat)
            | Self::Exists(Some(stat))
            | Self::Data(_, stat)
            | Self::Set(stat)
            | Self::Acl(_, stat)
            | Self::Children(_, stat) => vec![stat],
            Self::Multi(replies) => replies
                .iter_mut()
                .filter_map(|reply| match reply {
                    OpReply::Set(stat) => Some(stat),
                    OpReply::Created { stat, .. } => stat.as_mut(),
                    _ => None,
                })
                .collect(),
            Self::MultiRead(replies) => replies
                .iter_mut()
                .filter_map(|reply| match reply {
                    ReadReply::Data { stat, .. } => Some(stat),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}

pub(crate) fn stats_of<'a>(
    request: &Request,
    outcome: &'a mut Outcome,
) -> Vec<(ZnodePath, &'a mut Stat)> {
    let paths: Vec<_> = match (request, &*outcome) {
        (_, Outcome::Created(path, _)) => vec![path.clone()],
        (
            Request::Exists { path, .. }
            | Request::GetData { path, .. }
            | Request::GetChildren { path, .. }
            | Request::SetData { path, .. }
            | Request::GetAcl { path }
            | Request::SetAcl { path, .. },
            _,
        ) => vec![path.clone()],
        (Request::Multi(ops), Outcome::Multi(replies)) => {
            let with_stat = ops.iter().zip(replies).filter_map(|pair| match pair {
                (_, OpReply::Created { path, stat }) => stat.map(|_| path.clone()),
                (Op::SetData { path, .. }, OpReply::Set(_)) => Some(path.clone()),
                _ => None,
            });
            with_stat.collect()
        }
        (Request::MultiRead(ops), Outcome::MultiRead(replies)) => {
            let with_stat = ops.iter().zip(replies).filter_map(|pair| match pair {
                (ReadOp::GetData(path), ReadReply::Data { .. }) => Some(path.clone()),
                _ => None,
            });
            with_stat.collect()
        }
        _ => Vec::new(),
    };
    paths.into_iter().zip(outcome.stats()).collect()
}

impl Place {
    fn of(ahead: Predecessor) -> (Self, Option<Armed>) {
        match ahead {
            Predecessor::Clear => (Self::Clear, None),
            Predecessor::Gone => (Self::Gone, None),
            Predecessor::Blocked { by, watcher, count } => {
                (Self::Blocked(by, count), Some(Armed::Once(watcher)))
            }
            ahead => panic!("the embedded store does not answer {ahead:?}"),
        }
    }
}

fn sorted<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort();
    list
}

/// Makes two runs comparable: zxids become ranks, and sessions their order of opening.
pub(crate) fn normalise(trace: &mut [Seen], sessions: &[SessionId]) {
    let mut zxids = BTreeSet::from([Zxid(0)]);
    for seen in &mut *trace {
        for stat in seen.outcome.stats() {
            zxids.extend([stat.czxid, stat.mzxid, stat.pzxid]);
        }
        if let Outcome::Enqueued(_, czxid, _) = &seen.outcome {
            zxids.insert(*czxid);
        }
        for event in seen.fired.values().flatten().flatten() {
            zxids.extend(event.zxid);
        }
    }
    let ranks: BTreeMap<Zxid, i64> = zxids.into_iter().zip(0..).collect();
    let rank = |zxid: &mut Zxid| *zxid = Zxid(ranks[zxid]);
    for seen in trace {
        for stat in seen.outcome.stats() {
            rank(&mut stat.czxid);
            rank(&mut stat.mzxid);
            rank(&mut stat.pzxid);
            stat.ephemeral_owner = ordinal(stat.ephemeral_owner, sessions);
        }
        if let Outcome::Enqueued(_, czxid, _) = &mut seen.outcome {
            rank(czxid);
        }
        for event in seen.fired.values_mut().flatten() {
            match event {
                Ok(WatchedEvent {
                    zxid: Some(zxid), ..
                }) => rank(zxid),
                Ok(_) => {}
                Err(error) => name_session(error, sessions),
            }
        }
        if let Outcome::Failed(error) = &mut seen.outcome {
            name_session(error, sessions);
        }
    }
}

/// Removes known differences: times, the zxid of events and the Stat of a create within a multi (3.8 sends neither),
/// and the order of the identities for `auth` (a hash set's in ZooKeeper).
pub(crate) fn forget_known_differences(trace: &mut [Seen]) {
    for seen in trace {
        for event in seen.fired.values_mut().flatten().flatten() {
            event.zxid = None;
        }
        if let Outcome::Multi(replies) = &mut seen.outcome {
            for reply in replies {
                if let OpReply::Created { stat, .. } = reply {
                    *stat = None;
                }
            }
        }
        if let Outcome::Acl(acl, _) = &mut seen.outcome {
            *acl = with_sorted_identities(acl);
        }
        for stat in seen.outcome.stats() {
            (stat.ctime, stat.mtime) = (0, 0);
        }
    }
}

/// Sorts adjacent entries that grant the same permissions.
fn with_sorted_identities(acl: &Acl) -> Acl {
    let Some(entries) = acl.entries() else {
        return acl.clone();
    };
    let mut entries = entries.to_vec();
    for alike in entries.chunk_by_mut(|one, next| one.permissions == next.permissions) {
        alike.sort_by(|one, other| (&one.scheme, &one.id).cmp(&(&other.scheme, &other.id)));
    }
    Acl::new(entries)
}

fn ordinal(id: SessionId, sessions: &[SessionId]) -> SessionId {
    let position = sessions.iter().position(|session| *session == id);
    SessionId(position.map_or(0, |position| position as i64 + 1))
}

fn name_session(error: &mut Error, sessions: &[SessionId]) {
    if let Error::SessionExpired { session } | Error::SessionClosed { session } = error {
        *session = ordinal(*session, sessions);
    }
}

/// Sorts the events of a session's end, which have no defined order (a hash set's in ZooKeeper).
pub(crate) fn sort_events(seen: &mut Seen) {
    for events in seen.fired.values_mut() {
        events.sort_by_key(|event| {
            event
                .as_ref()
                .ok()
                .map(|event| (event.path.clone(), event.kind))
        });
    }
}

pub(crate) struct Sessions {
    open: Vec<Arc<dyn Backend>>,
    /// All ever opened.
    pub(crate) ids: Vec<SessionId>,
    watchers: BTreeMap<usize, (usize, Armed)>,
    armed: usize,
}

impl Sessions {
    pub(crate) fn new(open: Vec<Arc<dyn Backend>>) -> Self {
        let ids = open.iter().map(|session| session.status().id()).collect();
        Self {
            open,
            ids,
            watchers: BTreeMap::new(),
            armed: 0,
        }
    }

    /// Sends a request and keeps the watcher of its answer.
    pub(crate) async fn ask(&mut self, session: usize, request: Request) -> Outcome {
        let (outcome, watcher) = Outcome::of(self.open[session].submit(request).await);
        if let Some(watcher) = watcher {
            self.watchers.insert(self.armed, (session, watcher));
            self.armed += 1;
        }
        outcome
    }

    /// Replaces a session and drops its watchers.
    pub(crate) async fn replace(&mut self, session: usize, new: Arc<dyn Backend>) -> Outcome {
        let outcome = Outcome::of(self.open[session].submit(Request::Close).await).0;
        self.watchers.retain(|_, (owner, _)| *owner != session);
        self.ids.push(new.status().id());
        self.open[session] = new;
        outcome
    }

    /// Drops all sessions and watchers, like the end of a process.
    pub(crate) fn abandon(&mut self) {
        self.watchers.clear();
        self.open.clear();
    }

    /// Replaces abandoned sessions.
    pub(crate) fn resume(&mut self, open: Vec<Arc<dyn Backend>>) {
        self.ids
            .extend(open.iter().map(|session| session.status().id()));
        self.open = open;
    }

    pub(crate) fn drop_watcher(&mut self, nth: usize) -> Outcome {
        let number = self.watchers.keys().nth(nth).copied();
        if let Some(number) = number {
            self.watchers.remove(&number);
        }
        Outcome::Nothing
    }

    /// Reads on every session, after which all due events have reached their watchers.
    pub(crate) async fn barrier(&self) {
        for session in &self.open {
            let path = ZnodePath::root();
            drop(session.submit(Request::Exists { path, watch: false }).await);
        }
    }

    pub(crate) fn drain(&mut self) -> BTreeMap<usize, Vec<Result<WatchedEvent>>> {
        let mut fired = BTreeMap::new();
        self.watchers.retain(|number, (_, watcher)| {
            let events = watcher.drain();
            let over = events.iter().any(Result::is_err)
                || !events.is_empty() && matches!(watcher, Armed::Once(_));
            if !events.is_empty() {
                fired.insert(*number, events);
            }
            !over
        });
        fired
    }

    pub(crate) async fn close(&self) {
        for session in &self.open {
            drop(session.submit(Request::Close).await);
        }
    }

    pub(crate) fn living(&self, session: usize) -> bool {
        self.open[session].status().is_alive()
    }
}

/// Returns the requests that set up the znodes for every program.
pub(crate) fn prelude() -> impl Iterator<Item = Request> {
    ["/t", "/t/a", "/t/b"].into_iter().map(|path| {
        Request::Create(Create {
            path: path.parse().unwrap(),
            data: Bytes::new(),
            mode: CreateMode::Persistent,
            acl: Acl::open(),
        })
    })
}

/// Returns requests that read everything about a znode.
pub(crate) fn look_at(path: &ZnodePath) -> [Request; 2] {
    let (path, watch) = (path.clone(), false);
    let data = Request::GetData {
        path: path.clone(),
        watch,
    };
    [data, Request::GetChildren { path, watch }]
}

/// Returns the znodes below `path` found by [`look_at`].
pub(crate) fn below(path: &ZnodePath, outcome: &Outcome) -> Vec<ZnodePath> {
    match outcome {
        Outcome::Children(names, _) => names.iter().map(|name| path.join(name).unwrap()).collect(),
        _ => Vec::new(),
    }
}

/// Runs `test` on this many random programs: ten times as many with `LOCKKEEPER_FULL=1`, and fewer if
/// `LOCKKEEPER_SECONDS` runs out. A failing program is shrunk, printed and saved in the file `regressions`, which the
/// next run replays.
pub(crate) fn for_programs(
    name: &'static str,
    regressions: &'static str,
    count: u64,
    programs: impl Strategy<Value = Vec<Step>>,
    test: impl Fn(Vec<Step>) -> Result<(), TestCaseError>,
) {
    let start = Instant::now();
    let config = Config {
        cases: u32::try_from(scaled(count)).expect("a count of programs is small"),
        max_shrink_iters: 2_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(regressions))),
        source_file: Some(file!()),
        test_name: Some(name),
        ..Config::default()
    };
    let (left, ran, failed) = (RefCell::new(rounds(count)), Cell::new(0), Cell::new(false));
    let result = TestRunner::new(config).run(&programs, |program| {
        // Shrinking may take as long as it needs.
        if !failed.get() && left.borrow_mut().next().is_none() {
            return Ok(());
        }
        ran.set(ran.get() + 1);
        let outcome = test(program);
        failed.set(failed.get() || outcome.is_err());
        outcome
    });
    report(format_args!(
        "{name}: {} programs in {:.1?}",
        ran.get(),
        start.elapsed()
    ));
    if let Err(failure) = result {
        // Without a panic's backtrace, whose long type names would push the program out of the log.
        eprintln!("{failure}");
        std::panic::resume_unwind(Box::new(name));
    }
}
