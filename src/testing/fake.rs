//! [`Fake`]: a minimal store for testing the fault wrapper.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::backend::{Backend, ConnectOptions, Connector, SessionStatus};
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{Enqueue, Predecessor, Reply, Request, Response};
use crate::model::types::{SessionId, SessionState, Stat, Zxid};
use crate::model::watch::{
    DeleteReason, EventKind, PersistentWatcher, PredecessorGone, WatchedEvent, Watcher,
};
use crate::runtime::clock::Clock;
use crate::runtime::future::BoxFuture;

type EventSender = mpsc::UnboundedSender<Result<WatchedEvent>>;

#[derive(Debug)]
pub(super) struct Fake {
    clock: Clock,
    tree: Arc<Mutex<Tree>>,
}

#[derive(Debug, Default)]
pub(super) struct Tree {
    sessions: BTreeMap<SessionId, Arc<SessionStatus>>,
    nodes: BTreeMap<String, SessionId>,
    once: Vec<(SessionId, String, oneshot::Sender<Result<WatchedEvent>>)>,
    lasting: Vec<(SessionId, String, EventSender)>,
    zxid: i64,
    pub(super) log: Vec<String>,
    pub(super) slow: bool,
    held: Vec<oneshot::Sender<()>>,
}

impl Fake {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            clock,
            tree: Arc::default(),
        })
    }

    pub(super) fn tree(&self) -> parking_lot::MutexGuard<'_, Tree> {
        self.tree.lock()
    }

    pub(super) fn release(&self) {
        let held = std::mem::take(&mut self.tree.lock().held);
        held.into_iter()
            .for_each(|reply| reply.send(()).unwrap_or_default());
    }

    pub(super) fn watches(&self) -> usize {
        let tree = self.tree.lock();
        let once = tree
            .once
            .iter()
            .filter(|watch| !watch.2.is_closed())
            .count();
        once + tree
            .lasting
            .iter()
            .filter(|watch| !watch.2.is_closed())
            .count()
    }

    pub(super) fn nodes(&self) -> Vec<String> {
        self.tree.lock().nodes.keys().cloned().collect()
    }

    pub(super) fn state_of(&self, session: SessionId) -> SessionState {
        self.tree.lock().sessions[&session].state()
    }
}

impl Connector for Fake {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        let mut tree = self.tree.lock();
        let id = SessionId(tree.sessions.len() as i64 + 1);
        let (clock, now) = (self.clock.clone(), self.clock.now());
        let timeout = options.session_timeout;
        let status = Arc::new(SessionStatus::new(id, clock, timeout, false, now));
        tree.sessions.insert(id, status.clone());
        let tree = self.tree.clone();
        Box::pin(async move { Ok(Arc::new(Session { status, tree }) as Arc<dyn Backend>) })
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        let (tree, status) = (self.tree.clone(), backend.status().clone());
        Box::pin(async move {
            finish(&tree, &status, SessionState::Expired);
            Ok(())
        })
    }
}

#[derive(Debug)]
struct Session {
    status: Arc<SessionStatus>,
    tree: Arc<Mutex<Tree>>,
}

impl Backend for Session {
    fn submit(&self, request: Request) -> Response {
        if let Some(error) = self.status.end() {
            return Response::ready(Err(error));
        }
        if request == Request::Close {
            finish(&self.tree, &self.status, SessionState::Closed);
            return Response::ready(Ok(Reply::Done));
        }
        let mut fired = Fired::default();
        let mut tree = self.tree.lock();
        let reply = tree.apply(self.status.id(), request, &mut fired);
        let held = tree.slow.then(|| {
            let (release, held) = oneshot::channel();
            tree.held.push(release);
            held
        });
        drop(tree);
        fired.send();
        match held {
            None => Response::ready(reply),
            Some(held) => Response::pending(async move {
                let _ = held.await;
                reply
            }),
        }
    }

    fn status(&self) -> &Arc<SessionStatus> {
        &self.status
    }

    fn store_id(&self) -> Option<&str> {
        Some("fake")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        finish(&self.tree, &self.status, SessionState::Closed);
    }
}

fn finish(tree: &Mutex<Tree>, status: &SessionStatus, state: SessionState) {
    let mut fired = Fired::default();
    let lasting = tree.lock().end(status.id(), &mut fired);
    status.set_state(state);
    for watch in lasting {
        let _ = watch.send(Err(status.end().expect("it ended just now")));
    }
    fired.send();
}

#[derive(Default)]
struct Fired {
    once: Vec<(oneshot::Sender<Result<WatchedEvent>>, WatchedEvent)>,
    lasting: Vec<(EventSender, WatchedEvent)>,
}

impl Fired {
    fn send(self) {
        self.lasting
            .into_iter()
            .for_each(|(to, event)| drop(to.send(Ok(event))));
        self.once
            .into_iter()
            .for_each(|(to, event)| drop(to.send(Ok(event))));
    }
}

impl Tree {
    fn apply(&mut self, by: SessionId, request: Request, fired: &mut Fired) -> Result<Reply> {
        match request {
            Request::Create(create) => {
                self.note(by, "create", create.path.as_str());
                let stat = self.make(by, create.path.as_str(), fired)?;
                Ok(Reply::Created {
                    path: create.path,
                    stat,
                })
            }
            Request::Delete { path, .. } | Request::Withdraw { entry: path } => {
                self.note(by, "delete", path.as_str());
                if self.nodes.remove(path.as_str()).is_none() {
                    return Err(Error::NoNode {
                        path: path.to_string(),
                    });
                }
                self.fire(EventKind::NodeDeleted, path.as_str(), fired);
                Ok(Reply::Done)
            }
            Request::Exists { path, watch } => {
                self.note(by, "exists", path.as_str());
                let stat = self.nodes.contains_key(path.as_str()).then(Stat::default);
                let watcher = watch.then(|| self.watch(by, path.as_str()));
                Ok(Reply::Exists { stat, watcher })
            }
            Request::SetData { path, .. } => {
                self.note(by, "set", path.as_str());
                self.fire(EventKind::NodeDataChanged, path.as_str(), fired);
                Ok(Reply::Stat(Stat::default()))
            }
            Request::AddWatch { path, .. } => Ok(Reply::Watching(self.watch_lasting(by, &path))),
            Request::Enqueue(enqueue) => self.enqueue(by, enqueue, fired),
            _ => Err(Error::Unimplemented { what: "that" }),
        }
    }

    fn watch_lasting(&mut self, by: SessionId, path: &ZnodePath) -> PersistentWatcher {
        let (to, mut events) = mpsc::unbounded_channel();
        self.lasting.push((by, path.to_string(), to));
        PersistentWatcher::from_stream(async_stream::stream! {
            while let Some(event) = events.recv().await {
                yield event;
            }
        })
    }

    fn enqueue(&mut self, by: SessionId, enqueue: Enqueue, fired: &mut Fired) -> Result<Reply> {
        let before = self.nodes.keys().next_back().cloned();
        let name = format!("{}{:010}", enqueue.name, self.zxid);
        let path = enqueue.parent.join(&name)?;
        let stat = self.make(by, path.as_str(), fired)?;
        let ahead = match before {
            None => Predecessor::Clear,
            Some(before) => Predecessor::Blocked {
                watcher: self.watch(by, &before),
                by: before.parse()?,
                count: None,
            },
        };
        let czxid = stat.czxid;
        Ok(Reply::Enqueued { path, czxid, ahead })
    }

    fn note(&mut self, by: SessionId, what: &str, path: &str) {
        self.log.push(format!("{} {what} {path}", by.0));
    }

    fn make(&mut self, by: SessionId, path: &str, fired: &mut Fired) -> Result<Stat> {
        if self.nodes.contains_key(path) {
            return Err(Error::NodeExists {
                path: path.to_owned(),
            });
        }
        self.nodes.insert(path.to_owned(), by);
        self.fire(EventKind::NodeCreated, path, fired);
        Ok(Stat::default())
    }

    fn watch(&mut self, by: SessionId, path: &str) -> Watcher {
        let (to, event) = oneshot::channel();
        self.once.push((by, path.to_owned(), to));
        let ended = Error::SessionExpired { session: by };
        Watcher::from_future(async move { event.await.unwrap_or(Err(ended)) })
    }

    fn fire(&mut self, kind: EventKind, path: &str, fired: &mut Fired) {
        self.zxid += 1;
        let event = WatchedEvent {
            kind,
            path: path.parse().expect("it was a path before"),
            zxid: Some(Zxid(self.zxid)),
            predecessor_gone: (kind == EventKind::NodeDeleted)
                .then(|| PredecessorGone::new(true, DeleteReason::Released)),
        };
        let once = self.once.extract_if(.., |(_, watched, _)| watched == path);
        fired
            .once
            .extend(once.map(|(_, _, to)| (to, event.clone())));
        let lasting = self
            .lasting
            .iter()
            .filter(|(_, watched, _)| watched == path);
        fired
            .lasting
            .extend(lasting.map(|(_, _, to)| (to.clone(), event.clone())));
    }

    fn end(&mut self, session: SessionId, fired: &mut Fired) -> Vec<EventSender> {
        let owned: Vec<_> = self
            .nodes
            .extract_if(.., |_, owner| *owner == session)
            .map(|(path, _)| path)
            .collect();
        for path in owned {
            self.fire(EventKind::NodeDeleted, &path, fired);
        }
        self.once.retain(|(by, ..)| *by != session);
        let lasting = self.lasting.extract_if(.., |(by, ..)| *by == session);
        lasting.map(|(.., to)| to).collect()
    }
}
