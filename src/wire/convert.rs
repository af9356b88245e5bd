//! Converts between the protocol's records and the store's requests and replies.
//!
//! [`to_store`] performs its checks in the same order as a ZooKeeper server, so that a request with several faults gets
//! the same error code from both.

use std::time::Duration;

use super::code::Code;
use super::extension::{Ahead, Conditions, Departure, reason_number};
use super::jute::{Path, Text};
use super::multi::{self, MultiOp, MultiResult};
use super::request::{Create, Op, Request};
use super::response::{Response, WatcherEvent};
use super::stat::{acl_records, checked_acl};
use crate::model::data;
use crate::model::error::Error;
use crate::model::path::ZnodePath;
use crate::model::protocol::{self as store, OpReply, ReadReply, Reply};
use crate::model::types::CreateMode;
use crate::model::watch::{EventKind, PredecessorGone, WatchMode, WatchNumber, WatchedEvent};

/// The value of the field `state` in every event. It means that the client is connected.
const CONNECTED: i32 = 3;

fn version(version: i32) -> Option<i32> {
    (version != -1).then_some(version)
}

/// Parses the path of a read. Like a ZooKeeper server, treats an invalid path as a missing znode and an empty path as
/// the root.
fn read_path(path: &Path<'_>) -> Result<ZnodePath, Code> {
    match path.0.as_ref() {
        "" => Ok(ZnodePath::root()),
        text => ZnodePath::new(text).map_err(|_| Code::NoNode),
    }
}

/// Parses the path of an exists. Like a ZooKeeper server, refuses only the null character. For any other invalid path,
/// ZooKeeper arms a watch that never fires. We arm no watch.
fn exists_path(path: &Path<'_>) -> Result<ZnodePath, Code> {
    if path.0.contains('\0') {
        return Err(Code::BadArguments);
    }
    read_path(path)
}

fn write_path(path: &str) -> Result<ZnodePath, Code> {
    ZnodePath::new(path).map_err(|_| Code::BadArguments)
}

/// Parses the path of a create. Like a ZooKeeper server, reports a missing parent if the parent's path is invalid. If
/// the path of a sequential znode ends with `/`, the sequence number becomes the whole name.
fn create_path(path: &str, mode: CreateMode) -> Result<ZnodePath, Code> {
    let (parent, name) = path.rsplit_once('/').unwrap_or_default();
    match (ZnodePath::new(path), ZnodePath::new(parent)) {
        (Ok(path), _) => Ok(path),
        (Err(_), Ok(parent)) if name.is_empty() && mode.is_sequential() => {
            Ok(ZnodePath::unnamed_below(&parent))
        }
        (Err(_), Err(_)) if !parent.is_empty() => Err(Code::NoNode),
        (Err(_), _) => Err(Code::BadArguments),
    }
}

/// Parses the path of a delete. A ZooKeeper server only checks that the path has a parent.
fn delete_path(path: &Path<'_>) -> Result<ZnodePath, Code> {
    if !has_parent(&path.0) {
        return Err(Code::BadArguments);
    }
    read_path(path)
}

fn has_parent(path: &str) -> bool {
    path.contains('/') && !path.contains('\0')
}

/// Returns the mode of a create.
///
/// As in ZooKeeper, the operation, not the flags, decides whether the znode is a container or has a TTL. A plain create
/// with a container's flag, 4, creates a persistent znode.
///
/// # Errors
/// `BadArguments` for flags that the operation does not accept, or a TTL below 1 ms.
pub(crate) fn create_mode(op: Op, flags: i32, ttl_ms: i64) -> Result<CreateMode, Code> {
    let ttl = || match ttl_ms {
        1.. => Ok(Duration::from_millis(ttl_ms.unsigned_abs())),
        _ => Err(Code::BadArguments),
    };
    Ok(match (op, flags) {
        (Op::CreateContainer, 0 | 1 | 4) => CreateMode::Container,
        (Op::CreateTtl, 5) => CreateMode::PersistentTtl(ttl()?),
        (Op::CreateTtl, 6) => CreateMode::PersistentSequentialTtl(ttl()?),
        (Op::CreateContainer | Op::CreateTtl, _) => return Err(Code::BadArguments),
        (_, 0 | 4) => CreateMode::Persistent,
        (_, 1) => CreateMode::Ephemeral,
        (_, 2) => CreateMode::PersistentSequential,
        (_, 3) => CreateMode::EphemeralSequential,
        _ => return Err(Code::BadArguments),
    })
}

pub(crate) fn flags(mode: CreateMode) -> i32 {
    match mode {
        CreateMode::Persistent => 0,
        CreateMode::Ephemeral => 1,
        CreateMode::PersistentSequential => 2,
        CreateMode::EphemeralSequential => 3,
        CreateMode::Container => 4,
        CreateMode::PersistentTtl(_) => 5,
        CreateMode::PersistentSequentialTtl(_) => 6,
    }
}

/// # Errors
/// `MarshallingError` for an unknown mode, because a ZooKeeper server fails to read such a request.
pub(crate) fn watch_mode(mode: i32) -> Result<WatchMode, Code> {
    match mode {
        0 => Ok(WatchMode::Persistent),
        1 => Ok(WatchMode::PersistentRecursive),
        _ => Err(Code::MarshallingError),
    }
}

/// Checks mode, path and access control list in the same order as ZooKeeper.
fn create(op: Op, it: &Create<'_>, ttl_ms: i64) -> Result<store::Create, Code> {
    let mode = create_mode(op, it.flags, ttl_ms)?;
    if !has_parent(&it.path.0) {
        return Err(Code::BadArguments);
    }
    let acl = checked_acl(&it.acl)?;
    Ok(store::Create {
        path: create_path(&it.path.0, mode)?,
        // Copy the data, because a slice would keep the whole frame in memory.
        data: data::copy(it.data),
        mode,
        acl,
    })
}

/// Converts a request, and returns the shape of its reply. The request is `None` if the server answers without the
/// store: for pings, proofs of identity and the management of watches.
///
/// # Errors
/// The code of the reply, which the server must send after the replies to earlier requests.
pub(crate) fn to_store(request: &Request<'_>) -> Result<(Option<store::Request>, Shape), Code> {
    let mut shape = Shape {
        op: request.op(),
        text: None,
        parts: Box::default(),
        refused: Vec::new(),
    };
    let asked = match request {
        Request::Create(it) | Request::Create2(it) | Request::CreateContainer(it) => {
            store::Request::Create(create(request.op(), it, -1)?)
        }
        Request::CreateTtl(it) => {
            store::Request::Create(create(Op::CreateTtl, &it.create, it.ttl_ms)?)
        }
        Request::Delete(it) => store::Request::Delete {
            path: delete_path(&it.path)?,
            version: version(it.version),
        },
        Request::SetData(it) => store::Request::SetData {
            path: write_path(&it.path)?,
            data: data::copy(it.data),
            version: version(it.version),
        },
        Request::Exists(it) => store::Request::Exists {
            path: exists_path(&it.path)?,
            watch: it.watch,
        },
        Request::GetData(it) => store::Request::GetData {
            path: read_path(&it.path)?,
            watch: it.watch,
        },
        Request::GetChildren(it) | Request::GetChildren2(it) => store::Request::GetChildren {
            path: read_path(&it.path)?,
            watch: it.watch,
        },
        // The reply only echoes the path, so the path need not be valid.
        Request::Sync(it) => {
            shape.text = it.path.as_deref().map(Box::from);
            store::Request::Sync {
                path: ZnodePath::root(),
            }
        }
        Request::GetAllChildrenNumber(it) => store::Request::GetAllChildrenNumber {
            path: read_path(&it.path)?,
        },
        Request::AddWatch(it) => store::Request::AddWatch {
            path: write_path(&it.path)?,
            mode: watch_mode(it.mode)?,
        },
        Request::GetAcl(it) => store::Request::GetAcl {
            path: read_path(&it.path)?,
        },
        Request::SetAcl(it) => store::Request::SetAcl {
            path: write_path(&it.path)?,
            acl: checked_acl(&it.acl)?,
            version: version(it.version),
        },
        Request::CloseSession => store::Request::Close,
        Request::Enqueue(it) => store::Request::Enqueue(store::Enqueue {
            parent: write_path(&it.parent.0)?,
            name: it.name.to_string(),
            data: data::copy(it.data),
            acl: checked_acl(&it.acl)?,
            blockers: it.blockers.try_into()?,
            count: it.count,
            queue_data: it.queue_data.map(data::copy),
            conditions: conditions(&it.conditions)?,
        }),
        Request::GetPredecessor(it) => store::Request::GetPredecessor(store::GetPredecessor {
            entry: write_path(&it.entry.0)?,
            blockers: it.blockers.try_into()?,
            count: it.count,
            conditions: conditions(&it.conditions)?,
        }),
        Request::GetQueue(it) => store::Request::GetQueue {
            parent: write_path(&it.parent.0)?,
            limit: usize::try_from(it.limit).map_err(|_| Code::BadArguments)?,
        },
        Request::Withdraw(it) => store::Request::Withdraw {
            entry: delete_path(&it.path)?,
        },
        Request::Multi(ops) => multi(ops, &mut shape)?,
        Request::MultiRead(ops) => multi_read(ops, &mut shape),
        Request::GetEphemerals(it) => get_ephemerals(&it.prefix, &mut shape),
        _ => return Ok((None, shape)),
    };
    Ok((Some(asked), shape))
}

pub(crate) fn event(event: &WatchedEvent) -> WatcherEvent<'_> {
    WatcherEvent {
        kind: match event.kind {
            EventKind::NodeCreated => 1,
            EventKind::NodeDeleted => 2,
            EventKind::NodeDataChanged => 3,
            EventKind::NodeChildrenChanged => 4,
        },
        state: CONNECTED,
        path: event.path.as_str().into(),
    }
}

pub(crate) fn departure(watch: &impl WatchNumber, gone: PredecessorGone) -> Departure {
    Departure {
        watch: watch.watch_number(),
        clear: gone.clear,
        reason: reason_number(gone.reason),
    }
}

pub(crate) fn event_kind(kind: i32) -> Option<EventKind> {
    Some(match kind {
        1 => EventKind::NodeCreated,
        2 => EventKind::NodeDeleted,
        3 => EventKind::NodeDataChanged,
        4 => EventKind::NodeChildrenChanged,
        _ => return None,
    })
}

/// The part of a request that determines the form of its reply. We keep it until the store answers, because the store's
/// reply does not identify its request. For example, create and create2 are the same request to the store, but have
/// different replies on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    op: Op,
    /// For sync, the path to echo. For getEphemerals, a prefix that is not a valid path.
    text: Option<Box<str>>,
    parts: Box<[Op]>,
    /// Indexes and error codes of operations that we refused before asking the store.
    ///
    /// In a multi, this is at most one operation. We replace it with an operation that the store always refuses. So the
    /// store checks the operations before it and applies none of them. In a multiRead, we replace a refused operation
    /// with another read and ignore the result.
    refused: Vec<(usize, Code)>,
}

impl Shape {
    pub(crate) fn op(&self) -> Op {
        self.op
    }

    fn refused_at(&self, index: usize) -> Option<Code> {
        let mut refused = self.refused.iter();
        refused.find(|(at, _)| *at == index).map(|(_, code)| *code)
    }

    pub(crate) fn answer<'a, W: WatchNumber, P>(
        &'a self,
        answer: &'a Result<Reply<W, P>, Error>,
    ) -> Result<Response<'a>, Code> {
        match answer {
            Ok(reply) => self.reply(reply),
            Err(Error::MultiFailed { index, source }) => {
                // If an earlier operation failed in the store, return its error instead of our refusal.
                let refused = self.refused_at(*index);
                let code = refused.unwrap_or_else(|| Code::from(&**source));
                let results = multi::failed(self.parts.len(), *index, code);
                Ok(Response::Multi(results))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn failure<'a, T>(&self, answer: &'a Result<T, Error>) -> Option<&'a Error> {
        match answer {
            Err(Error::MultiFailed { index, source }) if self.refused_at(*index).is_none() => {
                Some(source)
            }
            _ => None,
        }
    }

    fn reply<'a, W: WatchNumber, P>(
        &'a self,
        reply: &'a Reply<W, P>,
    ) -> Result<Response<'a>, Code> {
        Ok(match reply {
            Reply::Created { path, .. } if self.op == Op::Create => {
                Response::Path(path.as_str().into())
            }
            Reply::Created { path, stat } => Response::Created(path.as_str().into(), *stat),
            Reply::Done if self.op == Op::Sync => {
                Response::Synced(self.text.as_deref().map(Text::Borrowed))
            }
            Reply::Done if self.op == Op::AddWatch => Response::Watching(0),
            Reply::Done => Response::Empty,
            Reply::Exists { stat, .. } => Response::Stat(stat.ok_or(Code::NoNode)?),
            Reply::Stat(stat) => Response::Stat(*stat),
            Reply::Acl { acl, stat } => Response::Acl(acl_records(acl), *stat),
            Reply::Data { data, stat, .. } => Response::Data(data, *stat),
            Reply::Children { names, .. } if self.op == Op::GetChildren => {
                Response::Names(texts(names))
            }
            Reply::Children { names, stat, .. } => Response::Children(texts(names), *stat),
            Reply::Multi(parts) => Response::Multi(self.multi_results(parts)),
            Reply::MultiRead(parts) => Response::Multi(self.multi_read_results(parts)),
            Reply::Paths(paths) => Response::Names(self.with_prefix(paths)),
            Reply::Count(count) => Response::Count(i32::try_from(*count).unwrap_or(i32::MAX)),
            Reply::Watching(_) => Response::Watching(0),
            Reply::Enqueued {
                path,
                czxid,
                ahead: predecessor,
            } => Response::Enqueued(path.as_str().into(), czxid.0, ahead(predecessor)),
            Reply::Predecessor(predecessor) => Response::Ahead(ahead(predecessor)),
            Reply::Queue { names, sorted } => Response::Queue(texts(names), *sorted),
        })
    }

    fn multi_results<'a>(&self, parts: &'a [OpReply]) -> Vec<MultiResult<'a>> {
        let result = |(part, op): (&'a OpReply, &Op)| match part {
            OpReply::Created { path, stat } => {
                let path = path.as_str().into();
                match stat {
                    Some(stat) if *op != Op::Create => {
                        (Op::Create2, Response::Created(path, *stat))
                    }
                    _ => (Op::Create, Response::Path(path)),
                }
            }
            OpReply::Deleted => (Op::Delete, Response::Empty),
            OpReply::Set(stat) => (Op::SetData, Response::Stat(*stat)),
            OpReply::Checked => (Op::Check, Response::Empty),
        };
        parts.iter().zip(&self.parts).map(result).map(Ok).collect()
    }

    fn multi_read_results<'a>(&self, parts: &'a [ReadReply]) -> Vec<MultiResult<'a>> {
        let result = |(at, part): (usize, &'a ReadReply)| {
            if let Some(code) = self.refused_at(at) {
                return Err(code.number());
            }
            match part {
                ReadReply::Data { data, stat } => Ok((Op::GetData, Response::Data(data, *stat))),
                ReadReply::Entry {
                    data,
                    stat,
                    granted_at_ms,
                } => {
                    let granted_at_ms = granted_at_ms.unwrap_or(-1);
                    Ok((Op::GetEntry, Response::Entry(data, *stat, granted_at_ms)))
                }
                ReadReply::Children(names) => Ok((Op::GetChildren, Response::Names(texts(names)))),
                ReadReply::Failed(error) => Err(Code::from(error).number()),
            }
        };
        parts.iter().enumerate().map(result).collect()
    }

    fn with_prefix<'a>(&self, paths: &'a [ZnodePath]) -> Vec<Text<'a>> {
        let paths = paths.iter().map(ZnodePath::as_str);
        let with_prefix = self.text.as_deref().unwrap_or_default();
        let wanted = paths.filter(|path| path.starts_with(with_prefix));
        wanted.map(Text::Borrowed).collect()
    }
}

fn ahead<W: WatchNumber>(predecessor: &store::Predecessor<W>) -> Ahead<'_> {
    match predecessor {
        store::Predecessor::Clear => Ahead::Clear,
        store::Predecessor::Blocked { by, watcher, count } => Ahead::Blocked {
            by: by.as_str().into(),
            watch: watcher.watch_number(),
            count: count.map_or(-1, |count| i32::try_from(count).unwrap_or(i32::MAX)),
        },
        store::Predecessor::Gone => Ahead::Gone,
        store::Predecessor::Listed(names) => Ahead::Listed(texts(names)),
        store::Predecessor::Unknown => Ahead::Unknown,
    }
}

fn texts(names: &[String]) -> Vec<Text<'_>> {
    names.iter().map(|name| Text::Borrowed(&**name)).collect()
}

/// # Errors
/// `MarshallingError` for a create with invalid flags, because a ZooKeeper server fails to read the whole multi.
fn multi(ops: &[MultiOp<'_>], shape: &mut Shape) -> Result<store::Request, Code> {
    if ops.iter().any(has_bad_flags) {
        return Err(Code::MarshallingError);
    }
    shape.parts = ops.iter().map(MultiOp::op).collect();
    let mut asked = Vec::with_capacity(ops.len());
    for (index, op) in ops.iter().enumerate() {
        match write_op(op) {
            Ok(op) => asked.push(op),
            Err(code) => {
                shape.refused.push((index, code));
                asked.push(always_refused());
                // Stop here, because a ZooKeeper server does not check the operations after a failed one either.
                break;
            }
        }
    }
    Ok(store::Request::Multi(asked))
}

fn has_bad_flags(op: &MultiOp<'_>) -> bool {
    match op {
        MultiOp::Create(it) | MultiOp::Create2(it) | MultiOp::CreateContainer(it) => {
            create_mode(op.op(), it.flags, -1).is_err()
        }
        _ => false,
    }
}

fn always_refused() -> store::Op {
    store::Op::Delete {
        path: ZnodePath::root(),
        version: None,
    }
}

fn write_op(op: &MultiOp<'_>) -> Result<store::Op, Code> {
    Ok(match op {
        MultiOp::Create(it) | MultiOp::Create2(it) | MultiOp::CreateContainer(it) => {
            store::Op::Create(create(op.op(), it, -1)?)
        }
        MultiOp::CreateTtl(it) => store::Op::Create(create(Op::CreateTtl, &it.create, it.ttl_ms)?),
        MultiOp::Delete(it) => store::Op::Delete {
            path: delete_path(&it.path)?,
            version: version(it.version),
        },
        MultiOp::SetData(it) => store::Op::SetData {
            path: write_path(&it.path)?,
            data: data::copy(it.data),
            version: version(it.version),
        },
        MultiOp::Check(it) => store::Op::Check {
            path: write_path(&it.path.0)?,
            version: version(it.version),
        },
        other => store::Op::Require(condition(other)?),
    })
}

fn condition(op: &MultiOp<'_>) -> Result<store::Condition, Code> {
    match op {
        MultiOp::CheckData(it) => Ok(store::Condition::Data {
            znode: write_path(&it.path.0)?,
            data: data::copy(it.data),
        }),
        MultiOp::CheckChildren(it) => Ok(store::Condition::Children {
            znode: write_path(&it.path.0)?,
            limit: u32::try_from(it.limit).map_err(|_| Code::BadArguments)?,
        }),
        // Unreachable from a frame, because a multi has no reads and `Conditions` has no other operations.
        _ => Err(Code::MarshallingError),
    }
}

fn conditions(records: &Conditions<'_>) -> Result<Vec<store::Condition>, Code> {
    records.0.iter().map(condition).collect()
}

fn multi_read(ops: &[MultiOp<'_>], shape: &mut Shape) -> store::Request {
    let read = |(index, op)| {
        read_op(op).unwrap_or_else(|code| {
            shape.refused.push((index, code));
            store::ReadOp::GetChildren(ZnodePath::root())
        })
    };
    store::Request::MultiRead(ops.iter().enumerate().map(read).collect())
}

fn read_op(op: &MultiOp<'_>) -> Result<store::ReadOp, Code> {
    match op {
        MultiOp::GetData(it) => read_path(&it.path).map(store::ReadOp::GetData),
        MultiOp::GetChildren(it) => read_path(&it.path).map(store::ReadOp::GetChildren),
        MultiOp::GetEntry(it) => read_path(&it.path).map(store::ReadOp::GetEntry),
        _ => Err(Code::MarshallingError),
    }
}

/// The prefix may be any text. If it is not a valid path, we ask the store for all paths and filter them.
fn get_ephemerals(prefix: &str, shape: &mut Shape) -> store::Request {
    let wants_all = prefix.trim().is_empty() || prefix.trim() == "/";
    let prefix = ZnodePath::new(prefix).unwrap_or_else(|_| {
        shape.text = (!wants_all).then(|| prefix.into());
        ZnodePath::root()
    });
    store::Request::GetEphemerals { prefix }
}
