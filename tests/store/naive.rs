//! The reference model: the rules of a ZooKeeper store, written as naively as possible. It copies the whole tree for a
//! multi and searches all of it for everything. It shares no code with the store.

mod tree;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_store::{
    Blockers, Create, CreateMode, DeleteReason, Error, EventKind, PredecessorGone, Request, Result,
    SessionId, WatchMode, WatchedEvent, ZnodePath, Zxid,
};

use self::tree::{Node, Tree, is_below, nearest};
use crate::program::{Outcome, Place, Seen};

/// ZooKeeper's expiry bucket.
pub(crate) const TICK_MS: u64 = 2_000;

struct Session {
    id: SessionId,
    timeout_ms: Option<u64>,
    touched_ms: u64,
    /// Sessions that expire together end in the order of their slots, which are reused.
    slot: usize,
    over: Option<Over>,
}

#[derive(Clone, Copy)]
enum Over {
    Expired,
    Closed,
}

#[derive(Clone, Copy, PartialEq)]
enum Waits {
    Data,
    /// Waits for a predecessor: the age of the waiting entry, and the entries that block it.
    Turn(usize, Blockers),
    Child,
    Persistent,
    Recursive,
}

struct Watch {
    session: usize,
    path: String,
    waits: Waits,
}

pub(crate) struct Naive {
    tree: Tree,
    sessions: Vec<Session>,
    free_slots: Vec<usize>,
    seat: Vec<usize>,
    watches: BTreeMap<usize, Watch>,
    armed: usize,
    fired: BTreeMap<usize, Vec<Result<WatchedEvent>>>,
}

impl Naive {
    /// `start_ms` is the virtual clock's moment, and `unix_ms` its date then.
    pub(crate) fn new(timeouts: &[Option<Duration>], start_ms: u64, unix_ms: i64) -> Self {
        let mut nodes = BTreeMap::new();
        nodes.insert(
            "/".to_owned(),
            Node::new(Bytes::new(), CreateMode::Persistent, SessionId(0), 0, 0),
        );
        let epoch_ms = unix_ms - start_ms as i64;
        let tree = Tree {
            nodes,
            zxid: 0,
            now_ms: start_ms,
            epoch_ms,
            made: 0,
            changes: Vec::new(),
        };
        let mut naive = Self {
            tree,
            sessions: Vec::new(),
            free_slots: Vec::new(),
            seat: Vec::new(),
            watches: BTreeMap::new(),
            armed: 0,
            fired: BTreeMap::new(),
        };
        for timeout in timeouts {
            naive.open(*timeout);
            naive.seat.push(naive.sessions.len() - 1);
        }
        naive
    }

    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.sessions.iter().map(|session| session.id).collect()
    }

    pub(crate) fn living(&self, seat: usize) -> bool {
        self.sessions[self.seat[seat]].over.is_none()
    }

    fn open(&mut self, timeout: Option<Duration>) {
        // Reuse a slot before adding one, like the store, because slots decide which of two sessions ends first.
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            let living = self
                .sessions
                .iter()
                .filter(|session| session.over.is_none());
            living.count()
        });
        self.sessions.push(Session {
            slot,
            id: SessionId(1_000 + self.sessions.len() as i64),
            timeout_ms: timeout.map(|timeout| timeout.as_millis() as u64),
            touched_ms: self.tree.now_ms,
            over: None,
        });
    }

    fn seen(&mut self, outcome: Outcome) -> Seen {
        Seen {
            outcome,
            fired: std::mem::take(&mut self.fired),
        }
    }

    pub(crate) fn ask(&mut self, seat: usize, request: Request) -> Seen {
        let index = self.seat[seat];
        let session = &mut self.sessions[index];
        let id = session.id;
        let outcome = match session.over {
            Some(Over::Expired) => Outcome::Failed(Error::SessionExpired { session: id }),
            Some(Over::Closed) => Outcome::Failed(Error::SessionClosed { session: id }),
            None => {
                // Rule 14: every request touches its session, even reads and refused requests.
                session.touched_ms = self.tree.now_ms;
                self.answer(index, request).unwrap_or_else(Outcome::Failed)
            }
        };
        self.seen(outcome)
    }

    pub(crate) fn reopen(&mut self, seat: usize, timeout: Option<Duration>) -> Seen {
        self.open(timeout);
        let index = std::mem::replace(&mut self.seat[seat], self.sessions.len() - 1);
        let id = self.sessions[index].id;
        // The seat's watchers are dropped before its session is closed, so they see no end.
        self.watches.retain(|_, watch| watch.session != index);
        let outcome = match self.sessions[index].over {
            Some(Over::Expired) => Outcome::Failed(Error::SessionExpired { session: id }),
            Some(Over::Closed) => Outcome::Failed(Error::SessionClosed { session: id }),
            None => {
                self.end(index, Over::Closed);
                Outcome::Done
            }
        };
        self.seen(outcome)
    }

    pub(crate) fn drop_watcher(&mut self, nth: usize) -> Seen {
        let number = self.watches.keys().nth(nth).copied();
        if let Some(number) = number {
            self.watches.remove(&number);
        }
        self.seen(Outcome::Nothing)
    }

    /// Advances time, one expiry at a time.
    pub(crate) fn advance(&mut self, by: Duration) -> Seen {
        let target = self.tree.now_ms + by.as_millis() as u64;
        // One at a time, because each end is a transaction with its own zxid and moment.
        while let Some((at, index)) = self.next_expiry().filter(|(at, _)| *at <= target) {
            self.tree.now_ms = at;
            self.end(index, Over::Expired);
        }
        self.tree.now_ms = target;
        self.seen(Outcome::Nothing)
    }

    fn next_expiry(&self) -> Option<(u64, usize)> {
        let living = self
            .sessions
            .iter()
            .enumerate()
            .filter(|(_, session)| session.over.is_none());
        living
            .filter_map(|(index, session)| {
                // Rule 14: a session expires at the end of its deadline's bucket, so never early.
                let deadline = session.touched_ms + session.timeout_ms?;
                Some(((deadline / TICK_MS + 1) * TICK_MS, session.slot, index))
            })
            .min()
            .map(|(at, _, index)| (at, index))
    }

    /// Restarts the process. All sessions and ephemeral znodes are gone without events, and new sessions take their
    /// seats.
    pub(crate) fn restart(&mut self, timeouts: &[Option<Duration>]) -> Seen {
        for session in &mut self.sessions {
            session.over = Some(Over::Closed);
        }
        self.free_slots.clear();
        self.watches.clear();
        // Opening a store starts a new epoch, modelled by the next zxid.
        self.tree.zxid += 1;
        self.tree.nodes.retain(|_, node| !node.mode.is_ephemeral());
        for node in self.tree.nodes.values_mut() {
            (node.children_ever, node.pzxid) = node.kept;
        }
        for (seat, timeout) in timeouts.iter().enumerate() {
            self.open(*timeout);
            self.seat[seat] = self.sessions.len() - 1;
        }
        self.seen(Outcome::Nothing)
    }

    /// Ends a session. Its watchers are informed first.
    fn end(&mut self, index: usize, over: Over) {
        let id = self.sessions[index].id;
        // Rule 11: the session is over before its znodes are deleted, all under one zxid.
        self.sessions[index].over = Some(over);
        self.free_slots.push(self.sessions[index].slot);
        let error = match over {
            Over::Expired => Error::SessionExpired { session: id },
            Over::Closed => Error::SessionClosed { session: id },
        };
        let mine = self
            .watches
            .extract_if(.., |_, watch| watch.session == index);
        for (number, _) in mine {
            self.fired
                .entry(number)
                .or_default()
                .push(Err(error.clone()));
        }
        self.tree.begin();
        let mut ephemerals = self.tree.nodes.clone();
        ephemerals.retain(|_, node| node.owner == id);
        for path in ephemerals.keys() {
            self.tree
                .delete(path, None, DeleteReason::Died)
                .expect("an ephemeral node has no children");
        }
        self.fire();
    }

    fn fire(&mut self) {
        for (kind, path, cause) in std::mem::take(&mut self.tree.changes) {
            let event = WatchedEvent {
                kind,
                path: path.parse().unwrap(),
                zxid: Some(Zxid(self.tree.zxid)),
                predecessor_gone: None,
            };
            // Changes are reported in order, but `is_clear` uses the tree after the transaction.
            let (fired, tree) = (&mut self.fired, &self.tree);
            self.watches.retain(|number, watch| {
                let told = watch.is_told(kind, &path);
                if told {
                    let mut event = event.clone();
                    if let Waits::Turn(age, blockers) = watch.waits {
                        let clear = tree.is_clear(age, blockers);
                        event.predecessor_gone = Some(PredecessorGone::new(clear, cause.unwrap()));
                    }
                    fired.entry(*number).or_default().push(Ok(event));
                }
                !told || matches!(watch.waits, Waits::Persistent | Waits::Recursive)
            });
        }
    }

    fn arm(&mut self, session: usize, path: &ZnodePath, waits: Waits) {
        let path = path.to_string();
        self.watches.insert(
            self.armed,
            Watch {
                session,
                path,
                waits,
            },
        );
        self.armed += 1;
    }

    fn answer(&mut self, index: usize, request: Request) -> Result<Outcome> {
        let id = self.sessions[index].id;
        match request {
            Request::Create(create) => {
                let (path, stat) = self.write(|tree| tree.create(id, &create))?;
                Ok(Outcome::Created(path, stat))
            }
            Request::Delete { path, version } => {
                self.write(|tree| {
                    let cause = tree.cause(path.as_str(), id);
                    tree.delete(path.as_str(), version, cause)
                })?;
                Ok(Outcome::Done)
            }
            Request::Withdraw { entry } => {
                self.write(|tree| {
                    let cause = match tree.cause(entry.as_str(), id) {
                        DeleteReason::Released => DeleteReason::Unknown,
                        cause => cause,
                    };
                    tree.delete(entry.as_str(), None, cause)
                })?;
                Ok(Outcome::Done)
            }
            Request::SetData {
                path,
                data,
                version,
            } => {
                let stat = self.write(|tree| tree.set(&path, data, version))?;
                Ok(Outcome::Set(stat))
            }
            Request::Multi(ops) => {
                let replies = self.write(|tree| {
                    let replies = ops.iter().enumerate().map(|(index, op)| {
                        let wrap = |source| Error::MultiFailed {
                            index,
                            source: Box::new(source),
                        };
                        tree.op(id, op).map_err(wrap)
                    });
                    replies.collect()
                })?;
                Ok(Outcome::Multi(replies))
            }
            Request::Enqueue(enqueue) => {
                let create = Create {
                    path: enqueue.parent.join(&enqueue.name)?,
                    data: enqueue.data,
                    mode: CreateMode::EphemeralSequential,
                    acl: enqueue.acl,
                };
                let (path, stat) = self.write(|tree| tree.create(id, &create))?;
                let place = self.place(index, &path, enqueue.blockers, enqueue.count);
                Ok(Outcome::Enqueued(path, stat.czxid, place))
            }
            Request::GetPredecessor(look) => {
                let place = match self.tree.node(look.entry.as_str()) {
                    Ok(node) if node.owner == id => {
                        self.place(index, &look.entry, look.blockers, look.count)
                    }
                    _ => Place::Gone,
                };
                Ok(Outcome::Predecessor(place))
            }
            Request::Exists { path, watch } => {
                if watch {
                    self.arm(index, &path, Waits::Data);
                }
                Ok(Outcome::Exists(self.tree.stat(path.as_str()).ok()))
            }
            Request::GetData { path, watch } => {
                let stat = self.tree.stat(path.as_str())?;
                if watch {
                    self.arm(index, &path, Waits::Data);
                }
                Ok(Outcome::Data(
                    self.tree.nodes[path.as_str()].data.clone(),
                    stat,
                ))
            }
            Request::GetChildren { path, watch } => {
                let stat = self.tree.stat(path.as_str())?;
                if watch {
                    self.arm(index, &path, Waits::Child);
                }
                Ok(Outcome::Children(self.tree.children(path.as_str()), stat))
            }
            Request::AddWatch { path, mode } => {
                let waits = match mode {
                    WatchMode::Persistent => Waits::Persistent,
                    WatchMode::PersistentRecursive => Waits::Recursive,
                };
                self.arm(index, &path, waits);
                Ok(Outcome::Watching)
            }
            Request::MultiRead(ops) => Ok(Outcome::MultiRead(
                ops.iter().map(|op| self.tree.read(op)).collect(),
            )),
            Request::Sync { .. } => Ok(Outcome::Done),
            Request::GetEphemerals { prefix } => {
                let mut mine = self.tree.nodes.clone();
                mine.retain(|path, node| node.owner == id && path.starts_with(prefix.as_str()));
                Ok(Outcome::Paths(
                    mine.keys().map(|path| path.parse().unwrap()).collect(),
                ))
            }
            Request::GetAllChildrenNumber { path } => {
                self.tree.stat(path.as_str())?;
                let mut below = self.tree.nodes.clone();
                below.retain(|other, _| other != path.as_str() && is_below(other, path.as_str()));
                Ok(Outcome::Count(below.len()))
            }
            Request::GetQueue { parent, limit } => {
                self.tree.stat(parent.as_str())?;
                let mut names = self.tree.queue(&parent);
                names.truncate(if limit == 0 { usize::MAX } else { limit });
                Ok(Outcome::Queue(names))
            }
            request => panic!("no program asks {request:?}"),
        }
    }

    fn write<T>(&mut self, change: impl FnOnce(&mut Tree) -> Result<T>) -> Result<T> {
        let before = self.tree.clone();
        self.tree.begin();
        let result = change(&mut self.tree);
        match result {
            Ok(_) => self.fire(),
            // Rule 16: all or nothing. A refused write takes no zxid either.
            Err(_) => self.tree = before,
        }
        result
    }

    fn place(&mut self, index: usize, entry: &ZnodePath, blockers: Blockers, count: bool) -> Place {
        let parent = entry.parent().unwrap();
        let queue = self.tree.queue(&parent);
        let Some(mine) = queue.iter().position(|name| name == entry.name()) else {
            return Place::Gone;
        };
        match nearest(&queue[..mine], blockers) {
            None => Place::Clear,
            Some(name) => {
                let by = parent.join(name).unwrap();
                let age = self.tree.nodes[entry.as_str()].age;
                // By age, because the entry's name may be reused.
                self.arm(index, &by, Waits::Turn(age, blockers));
                Place::Blocked(by, count.then_some(mine))
            }
        }
    }
}

impl Watch {
    fn is_told(&self, kind: EventKind, path: &str) -> bool {
        let here = self.path == path;
        match self.waits {
            Waits::Data => here && kind != EventKind::NodeChildrenChanged,
            Waits::Child => {
                here && matches!(
                    kind,
                    EventKind::NodeChildrenChanged | EventKind::NodeDeleted
                )
            }
            Waits::Turn(..) => here && kind == EventKind::NodeDeleted,
            Waits::Persistent => here,
            Waits::Recursive => {
                kind != EventKind::NodeChildrenChanged && is_below(path, &self.path)
            }
        }
    }
}
