//! Tests that call the core directly and set its time.

mod acl;
mod auditing;
mod bounds;
mod budget;
mod ending;
mod identities;
mod introspection;
mod journaling;
mod multi;
mod nodes;
mod numbers;
mod queueing;
mod reading;
mod reaping;
mod replay;
mod room;
mod set_watches;
mod unread;
mod watching;
mod work;

use std::time::Duration;

use bytes::Bytes;

use super::effects::Ended;
use super::*;
use crate::model::acl::Acl;
use crate::model::identity::Identity;
use crate::model::protocol::{
    Blockers, Condition, Create, Enqueue, GetPredecessor, Op, OpReply, Predecessor, ReadOp,
    ReadReply,
};
use crate::model::types::CreateMode::*;
use crate::model::types::{CreateMode, SessionId, Stat};
use crate::model::watch::EventKind::*;
use crate::model::watch::{EventKind, WatchUpdate};

struct Harness {
    core: Core,
    now: Now,
    effects: Effects,
    next_id: i64,
}

fn options() -> CoreOptions {
    CoreOptions {
        limits: Limits {
            znodes: 1 << 20,
            bytes: 1 << 30,
            sessions: 100,
            watches_per_session: 100,
            ..Limits::default()
        },
        not_queues: &["leases"],
        ..CoreOptions::default()
    }
}

impl Harness {
    fn new() -> Self {
        Self::with(options())
    }

    fn detach(&mut self, of: SessionRef) {
        while self.core.detach(of, self.now, &mut self.effects) {}
    }

    fn with(options: CoreOptions) -> Self {
        let mut core = Core::new(options);
        core.set_journal(Journal::All);
        Self {
            core,
            now: Now::default(),
            effects: Effects::default(),
            next_id: 0,
        }
    }

    fn find_watches(
        &mut self,
        of: SessionRef,
        at: &str,
        which: WatchFilter,
    ) -> Result<Vec<WatchKey>> {
        let effects = &mut self.effects;
        self.core
            .find_watches(of, &path(at), which, self.now, effects)
    }

    fn session(&mut self) -> SessionRef {
        self.open(None)
    }

    fn open(&mut self, timeout: Option<Duration>) -> SessionRef {
        self.opened(timeout, true)
    }

    fn remote(&mut self) -> SessionRef {
        self.opened(None, false)
    }

    fn opened(&mut self, timeout: Option<Duration>, is_local: bool) -> SessionRef {
        self.next_id += 1;
        let id = SessionId(self.next_id);
        self.core
            .open_session(id, [7; 16], timeout, is_local, self.now)
            .unwrap()
            .0
    }

    fn submit(&mut self, session: SessionRef, request: Request) -> Result<CoreReply> {
        self.core
            .submit(session, request, self.now, &mut self.effects)
    }

    fn create(
        &mut self,
        session: SessionRef,
        at: &str,
        mode: CreateMode,
    ) -> Result<(ZnodePath, Stat)> {
        match self.submit(session, Request::Create(create(at, mode)))? {
            Reply::Created { path, stat } => Ok((path, stat)),
            other => panic!("{other:?}"),
        }
    }

    fn delete(&mut self, session: SessionRef, at: &str) -> Result<()> {
        self.submit(
            session,
            Request::Delete {
                path: path(at),
                version: None,
            },
        )
        .map(drop)
    }

    fn set(&mut self, session: SessionRef, at: &str, version: Option<i32>) -> Result<Stat> {
        let request = Request::SetData {
            path: path(at),
            data: "new".into(),
            version,
        };
        match self.submit(session, request)? {
            Reply::Stat(stat) => Ok(stat),
            other => panic!("{other:?}"),
        }
    }

    fn stat(&mut self, session: SessionRef, at: &str) -> Option<Stat> {
        match self.submit(
            session,
            Request::Exists {
                path: path(at),
                watch: false,
            },
        ) {
            Ok(Reply::Exists { stat, .. }) => stat,
            other => panic!("{other:?}"),
        }
    }

    fn watch(&mut self, session: SessionRef, request: Request) -> WatchKey {
        match self.submit(session, request) {
            Ok(
                Reply::Exists {
                    watcher: Some(watch),
                    ..
                }
                | Reply::Data {
                    watcher: Some(watch),
                    ..
                }
                | Reply::Children {
                    watcher: Some(watch),
                    ..
                }
                | Reply::Watching(watch),
            ) => watch,
            other => panic!("{other:?}"),
        }
    }

    fn enqueue(
        &mut self,
        session: SessionRef,
        parent: &str,
        name: &str,
        blockers: Blockers,
    ) -> (ZnodePath, Predecessor<WatchKey>) {
        let enqueue = Enqueue {
            parent: path(parent),
            name: name.into(),
            data: Bytes::new(),
            acl: Acl::open(),
            blockers,
            conditions: Vec::new(),
            count: true,
            queue_data: None,
        };
        match self.submit(session, Request::Enqueue(enqueue)) {
            Ok(Reply::Enqueued { path, ahead, .. }) => (path, ahead),
            other => panic!("{other:?}"),
        }
    }

    fn look(
        &mut self,
        session: SessionRef,
        entry: &ZnodePath,
        blockers: Blockers,
    ) -> Predecessor<WatchKey> {
        self.look_for(session, entry, blockers, &[])
    }

    fn look_for(
        &mut self,
        session: SessionRef,
        entry: &ZnodePath,
        blockers: Blockers,
        conditions: &[Condition],
    ) -> Predecessor<WatchKey> {
        let look = GetPredecessor {
            entry: entry.clone(),
            blockers,
            conditions: conditions.to_vec(),
            count: true,
        };
        match self.submit(session, Request::GetPredecessor(look)) {
            Ok(Reply::Predecessor(standing)) => standing,
            other => panic!("{other:?}"),
        }
    }

    /// Takes the events since the last call, as watch, kind and path. The path is "ahead" for a waiter's watch.
    fn fired(&mut self) -> Vec<(WatchKey, EventKind, String)> {
        let fired = self.effects.fired.drain(..);
        fired
            .map(|fired| match fired.news {
                WatchUpdate::Event(event) => (fired.watch, event.kind, event.path.to_string()),
                WatchUpdate::Departure { .. } => {
                    (fired.watch, EventKind::NodeDeleted, "ahead".into())
                }
            })
            .collect()
    }

    fn advance(&mut self, by: Duration) {
        self.now.unix_ms += by.as_millis() as i64;
        self.now.moment = self.now.moment.after(by);
        self.core.tick(self.now, &mut self.effects);
        self.core.check_bytes();
        self.next_deadline();
    }

    fn next_deadline(&mut self) -> Option<BootInstant> {
        self.core.next_deadline(|| self.now.moment)
    }
}

fn path(text: &str) -> ZnodePath {
    ZnodePath::new(text).unwrap()
}

fn create(at: &str, mode: CreateMode) -> Create {
    Create {
        path: path(at),
        data: "data".into(),
        mode,
        acl: Acl::open(),
    }
}

fn exists(at: &str) -> Request {
    Request::Exists {
        path: path(at),
        watch: true,
    }
}

fn get_data(at: &str) -> Request {
    Request::GetData {
        path: path(at),
        watch: true,
    }
}

fn get_children(at: &str) -> Request {
    Request::GetChildren {
        path: path(at),
        watch: true,
    }
}

fn check(at: &str) -> Op {
    Op::Check {
        path: path(at),
        version: None,
    }
}

fn has(at: &str, data: &'static str) -> Op {
    Op::Require(Condition::Data {
        znode: path(at),
        data: data.into(),
    })
}

fn has_at_most(at: &str, limit: u32) -> Op {
    Op::Require(Condition::Children {
        znode: path(at),
        limit,
    })
}

fn permits(number: &'static str, limit: u32) -> [Condition; 2] {
    let (permits, leases) = (path("/s/permits"), path("/s/leases"));
    [
        Condition::Data {
            znode: permits,
            data: number.into(),
        },
        Condition::Children {
            znode: leases,
            limit,
        },
    ]
}

fn set(at: &str, data: &'static str) -> Op {
    Op::SetData {
        path: path(at),
        data: data.into(),
        version: None,
    }
}

fn by(standing: &Predecessor<WatchKey>) -> Option<(&str, usize)> {
    match standing {
        Predecessor::Blocked { by, count, .. } => Some((by.as_str(), count.unwrap())),
        _ => None,
    }
}

const SECOND: Duration = Duration::from_secs(1);
