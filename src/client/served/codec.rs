//! Encodes requests as frames and decodes replies. Uses Lockkeeper's own operations if the server agreed to them
//! ([`Dialect`]), otherwise only ZooKeeper's operations.

use bytes::Bytes;

use super::chroot::Chroot;
use super::watches::{Interest, WatchKey, WatchTable};
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{
    Condition, Create, Op as WriteOp, OpReply, Predecessor, ReadOp, ReadReply, Reply, Request,
};
use crate::model::types::{CreateMode, SessionId, Zxid};
use crate::model::watch::WatchMode;
use crate::wire::{
    self, About, Ahead, Code, Malformed, MultiOp, MultiResult, Op, Reader, Response, acl,
    acl_records, flags, put_frame,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dialect {
    #[default]
    Plain,
    /// Version 3 of Lockkeeper's extension, which has no getEntry and no conditions for waiting entries.
    Third,
    Extended,
}

/// Appends the frame of a request. Returns the operation that decodes the reply.
///
/// Does not encode [`Request::AddAuth`], nor [`Request::Enqueue`] for a ZooKeeper server. The session sends both
/// itself.
pub(super) fn put_request(
    request: &Request,
    xid: i32,
    chroot: &Chroot,
    dialect: Dialect,
    to: &mut Vec<u8>,
) -> Result<Op> {
    let own = match dialect {
        Dialect::Plain => {
            if let Request::Multi(ops) = request {
                WriteOp::check_known_to_zookeeper(ops)?;
            }
            None
        }
        Dialect::Third | Dialect::Extended => own_record(request, chroot, dialect),
    };
    let record = own.map_or_else(|| record(request, chroot), Ok)?;
    put_frame(to, |to| record.put_with_header(xid, to));
    Ok(record.op())
}

fn own_record<'a>(
    request: &'a Request,
    chroot: &Chroot,
    dialect: Dialect,
) -> Option<wire::Request<'a>> {
    let conditions = |conditions: &'a [Condition]| match dialect {
        Dialect::Extended => conditions.iter().map(|it| condition(it, chroot)).collect(),
        // Version 3 of the extension cannot transmit the conditions of a waiting entry. The client checks the
        // conditions itself once no entry is ahead.
        _ => Vec::new(),
    };
    Some(match request {
        Request::Enqueue(it) => wire::Request::Enqueue(wire::Enqueue {
            parent: chroot.absolute(&it.parent),
            name: it.name.as_str().into(),
            data: &it.data,
            acl: acl_records(&it.acl),
            blockers: it.blockers.into(),
            count: it.count,
            queue_data: it.queue_data.as_deref(),
            conditions: wire::Conditions(conditions(&it.conditions)),
        }),
        Request::GetPredecessor(it) => wire::Request::GetPredecessor(wire::GetPredecessor {
            entry: chroot.absolute(&it.entry),
            blockers: it.blockers.into(),
            count: it.count,
            conditions: wire::Conditions(conditions(&it.conditions)),
        }),
        Request::GetQueue { parent, limit } => wire::Request::GetQueue(wire::GetQueue {
            parent: chroot.absolute(parent),
            limit: i32::try_from(*limit).unwrap_or(i32::MAX),
        }),
        Request::Withdraw { entry } => wire::Request::Withdraw(wire::Named {
            path: chroot.absolute(entry),
        }),
        Request::MultiRead(ops) if dialect == Dialect::Extended => {
            wire::Request::MultiRead(ops.iter().map(|op| read_op(op, chroot)).collect())
        }
        _ => return None,
    })
}

fn record<'a>(request: &'a Request, chroot: &Chroot) -> Result<wire::Request<'a>> {
    let path = |path: &'a ZnodePath| chroot.absolute(path);
    let read = |path: &'a ZnodePath, watch: bool| wire::Read {
        path: chroot.absolute(path),
        watch,
    };
    Ok(match request {
        Request::Create(it) => create(it, chroot).into(),
        Request::Delete { path, version } => {
            wire::Request::Delete(versioned(path, *version, chroot))
        }
        // A ZooKeeper server has no withdraw, so delete the entry. The waiters behind the entry cannot distinguish this
        // delete from a release, so they check the queue themselves.
        Request::Withdraw { entry } => wire::Request::Delete(versioned(entry, None, chroot)),
        Request::Exists { path, watch } => wire::Request::Exists(read(path, *watch)),
        Request::GetData { path, watch } => wire::Request::GetData(read(path, *watch)),
        Request::GetChildren { path, watch } => wire::Request::GetChildren2(read(path, *watch)),
        Request::SetData {
            path,
            data,
            version,
        } => wire::Request::SetData(set_data(path, data, *version, chroot)),
        Request::Multi(ops) => {
            wire::Request::Multi(ops.iter().map(|op| write_op(op, chroot)).collect())
        }
        Request::MultiRead(ops) => {
            wire::Request::MultiRead(ops.iter().map(|op| plain_read(op, chroot)).collect())
        }
        Request::Sync { path } => wire::Request::Sync(wire::Sync {
            path: Some(chroot.absolute(path).0),
        }),
        Request::GetEphemerals { prefix } => wire::Request::GetEphemerals(wire::Prefix {
            prefix: path(prefix).0,
        }),
        Request::GetAllChildrenNumber { path: top } => {
            wire::Request::GetAllChildrenNumber(wire::Named { path: path(top) })
        }
        Request::AddWatch { path: top, mode } => wire::Request::AddWatch(wire::AddWatch {
            path: path(top).0,
            mode: match mode {
                WatchMode::Persistent => 0,
                WatchMode::PersistentRecursive => 1,
            },
        }),
        // A ZooKeeper server has no index of queues, so GetPredecessor and GetQueue list all children.
        Request::GetPredecessor(look) => {
            let parent = look.entry.parent().unwrap_or_else(ZnodePath::root);
            wire::Request::GetChildren(owned_read(&parent, chroot))
        }
        Request::GetQueue { parent, .. } => wire::Request::GetChildren(read(parent, false)),
        Request::GetAcl { path: of } => wire::Request::GetAcl(wire::Named { path: path(of) }),
        Request::SetAcl {
            path: of,
            acl,
            version,
        } => wire::Request::SetAcl(wire::SetAcl {
            path: path(of).0,
            acl: acl_records(acl),
            version: version.unwrap_or(-1),
        }),
        Request::Close => wire::Request::CloseSession,
        Request::Enqueue(_) | Request::AddAuth { .. } => {
            return Err(Error::Unimplemented {
                what: "a request of several frames",
            });
        }
    })
}

fn create<'a>(create: &'a Create, chroot: &Chroot) -> MultiOp<'a> {
    let record = wire::Create {
        path: chroot.absolute(&create.path),
        data: &create.data,
        acl: acl_records(&create.acl),
        flags: flags(create.mode),
    };
    match create.mode {
        CreateMode::PersistentTtl(ttl) | CreateMode::PersistentSequentialTtl(ttl) => {
            MultiOp::CreateTtl(wire::CreateTtl {
                create: record,
                ttl_ms: i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX),
            })
        }
        CreateMode::Container => MultiOp::CreateContainer(record),
        // Use create2, because its reply contains the Stat, and the Stat contains the lock's fencing token.
        _ => MultiOp::Create2(record),
    }
}

fn versioned<'a>(
    path: &'a ZnodePath,
    version: Option<i32>,
    chroot: &Chroot,
) -> wire::Versioned<'a> {
    wire::Versioned {
        path: chroot.absolute(path),
        version: version.unwrap_or(-1),
    }
}

fn set_data<'a>(
    path: &'a ZnodePath,
    data: &'a Bytes,
    version: Option<i32>,
    chroot: &Chroot,
) -> wire::SetData<'a> {
    wire::SetData {
        path: chroot.absolute(path).0,
        data,
        version: version.unwrap_or(-1),
    }
}

fn owned_read(path: &ZnodePath, chroot: &Chroot) -> wire::Read<'static> {
    wire::Read {
        path: chroot.absolute(path).0.into_owned().into(),
        watch: false,
    }
}

fn write_op<'a>(op: &'a WriteOp, chroot: &Chroot) -> MultiOp<'a> {
    match op {
        WriteOp::Create(it) => create(it, chroot),
        WriteOp::Delete { path, version } => MultiOp::Delete(versioned(path, *version, chroot)),
        WriteOp::SetData {
            path,
            data,
            version,
        } => MultiOp::SetData(set_data(path, data, *version, chroot)),
        WriteOp::Check { path, version } => MultiOp::Check(versioned(path, *version, chroot)),
        WriteOp::Require(it) => condition(it, chroot),
    }
}

fn condition<'a>(condition: &'a Condition, chroot: &Chroot) -> MultiOp<'a> {
    let path = chroot.absolute(condition.znode());
    match condition {
        Condition::Data { data, .. } => MultiOp::CheckData(wire::CheckData { path, data }),
        Condition::Children { limit, .. } => {
            let limit = i32::try_from(*limit).unwrap_or(i32::MAX);
            MultiOp::CheckChildren(wire::CheckChildren { path, limit })
        }
    }
}

fn read_op<'a>(op: &'a ReadOp, chroot: &Chroot) -> MultiOp<'a> {
    let record = wire::Read {
        path: chroot.absolute(op.path()),
        watch: false,
    };
    match op {
        ReadOp::GetData(_) => MultiOp::GetData(record),
        ReadOp::GetChildren(_) => MultiOp::GetChildren(record),
        ReadOp::GetEntry(_) => MultiOp::GetEntry(record),
    }
}

fn plain_read<'a>(op: &'a ReadOp, chroot: &Chroot) -> MultiOp<'a> {
    match read_op(op, chroot) {
        MultiOp::GetEntry(record) => MultiOp::GetData(record),
        op => op,
    }
}

pub(super) fn put_read(read: &ReadOp, xid: i32, chroot: &Chroot, to: &mut Vec<u8>) -> Op {
    let record = wire::Request::from(plain_read(read, chroot));
    put_frame(to, |to| record.put_with_header(xid, to));
    record.op()
}

pub(super) fn read_alone(
    read: &ReadOp,
    op: Op,
    err: i32,
    body: &mut Reader<'_>,
    session: SessionId,
) -> Result<ReadReply> {
    let result = match err {
        0 => Response::read(op, body).map(|response| Ok((op, response))),
        err => Ok(Err(err)),
    };
    let result = result.map_err(|Malformed(why)| malformed("multiRead", why))?;
    match read_result(read, result, session)? {
        ReadReply::Failed(error) if !error.is_answer() => Err(error),
        reply => Ok(reply),
    }
}

pub(super) fn about(request: &Request, session: SessionId) -> About<'_> {
    let (what, path, version) = match request {
        Request::Create(create) => (CREATE, create.path.as_str(), None),
        Request::Delete { path, version } => ("delete", path.as_str(), *version),
        Request::Withdraw { entry } => ("withdraw", entry.as_str(), None),
        Request::Exists { path, .. } => ("exists", path.as_str(), None),
        Request::GetData { path, .. } => ("getData", path.as_str(), None),
        Request::SetData { path, version, .. } => ("setData", path.as_str(), *version),
        Request::GetChildren { path, .. } => ("getChildren", path.as_str(), None),
        Request::Multi(_) => ("multi", "", None),
        Request::MultiRead(_) => ("multiRead", "", None),
        Request::Sync { path } => ("sync", path.as_str(), None),
        Request::GetEphemerals { prefix } => ("getEphemerals", prefix.as_str(), None),
        Request::GetAllChildrenNumber { path } => ("getAllChildrenNumber", path.as_str(), None),
        Request::AddWatch { path, .. } => ("addWatch", path.as_str(), None),
        Request::Enqueue(enqueue) => ("enqueue", enqueue.parent.as_str(), None),
        Request::GetPredecessor(look) => ("getPredecessor", look.entry.as_str(), None),
        Request::GetQueue { parent, .. } => ("getQueue", parent.as_str(), None),
        Request::GetAcl { path } => ("getACL", path.as_str(), None),
        Request::SetAcl { path, version, .. } => ("setACL", path.as_str(), *version),
        Request::AddAuth { .. } => ("auth", "", None),
        Request::Close => ("closeSession", "", None),
    };
    About {
        what,
        path,
        version,
        session,
    }
}

/// Name of a create in errors. If an operation has this name, [`Code::error`] reports the parent as the missing znode.
pub(super) const CREATE: &str = "create";

fn about_op(op: &WriteOp, session: SessionId) -> About<'_> {
    let (what, path, version) = match op {
        WriteOp::Create(create) => (CREATE, &create.path, None),
        WriteOp::Delete { path, version } => ("delete", path, *version),
        WriteOp::SetData { path, version, .. } => ("setData", path, *version),
        WriteOp::Check { path, version } => ("check", path, *version),
        WriteOp::Require(condition) => ("condition", condition.znode(), None),
    };
    About {
        what,
        path: path.as_str(),
        version,
        session,
    }
}

pub(super) fn error(number: i32, about: About<'_>) -> Error {
    let error = match Code::of(number) {
        // The session has moved to another connection. The request may still be executed, but its reply is lost.
        Some(Code::SessionMoved) => Some(Error::ConnectionLoss),
        code => code.and_then(|code| code.error(about)),
    };
    error.unwrap_or_else(|| {
        Error::Protocol(format!(
            "{about} was answered with the unknown error {number}"
        ))
    })
}

/// Converts an error number and the reason that may follow it. Without a reason, or with a reason from a later version
/// of Lockkeeper, only the number determines the error.
pub(super) fn refused(number: i32, body: &mut Reader<'_>, about: About<'_>) -> Error {
    let reason = body.next::<wire::Refusal<'_>>().ok();
    let reason = reason.and_then(|reason| reason.error(about));
    reason.unwrap_or_else(|| error(number, about))
}

pub(super) const OTHER_KIND: &str = "its record is of another kind";

pub(super) fn malformed(what: &str, why: &str) -> Error {
    Error::Protocol(format!("the reply to {what} is malformed: {why}"))
}

pub(super) fn read_reply(
    request: &Request,
    op: Op,
    body: &mut Reader<'_>,
    chroot: &Chroot,
    session: SessionId,
    watches: &mut WatchTable,
) -> Result<Reply<WatchKey, WatchKey>> {
    let mut arm = |interest, path: &ZnodePath| watches.add(interest, path);
    let what = about(request, session).what;
    let response = Response::read(op, body);
    let response = response.map_err(|Malformed(why)| malformed(what, why))?;
    Ok(match (request, response) {
        (Request::Create(_), Response::Created(path, stat)) => Reply::Created {
            path: chroot.parse(&path.0)?,
            stat,
        },
        (Request::Exists { path, watch }, Response::Stat(stat)) => Reply::Exists {
            stat: Some(stat),
            watcher: watch.then(|| arm(Interest::Data, path)),
        },
        (Request::GetData { path, watch }, Response::Data(data, stat)) => Reply::Data {
            data: crate::model::data::copy(data),
            stat,
            watcher: watch.then(|| arm(Interest::Data, path)),
        },
        (Request::SetData { .. } | Request::SetAcl { .. }, Response::Stat(stat)) => {
            Reply::Stat(stat)
        }
        (Request::GetAcl { .. }, Response::Acl(list, stat)) => Reply::Acl {
            acl: acl(&list),
            stat,
        },
        (Request::GetChildren { path, watch }, Response::Children(names, stat)) => {
            Reply::Children {
                names: owned(names),
                stat,
                watcher: watch.then(|| arm(Interest::Children, path)),
            }
        }
        (Request::Enqueue(_), Response::Enqueued(path, czxid, ahead)) => Reply::Enqueued {
            path: chroot.parse(&path.0)?,
            czxid: Zxid(czxid),
            ahead: predecessor(ahead, chroot, watches)?,
        },
        (Request::GetPredecessor(_), Response::Ahead(ahead)) => {
            Reply::Predecessor(predecessor(ahead, chroot, watches)?)
        }
        (Request::GetQueue { .. }, Response::Queue(names, sorted)) => Reply::Queue {
            names: owned(names),
            sorted,
        },
        (Request::GetPredecessor(_), Response::Names(names)) => {
            Reply::Predecessor(Predecessor::Listed(owned(names)))
        }
        (Request::GetQueue { .. }, Response::Names(names)) => Reply::Queue {
            names: owned(names),
            sorted: false,
        },
        (Request::GetEphemerals { .. }, Response::Names(paths)) => {
            let inside = paths.iter().filter_map(|path| chroot.relative(path));
            let paths = inside.map(|path| path.parse::<ZnodePath>());
            let paths = paths.collect::<Result<_>>();
            Reply::Paths(paths.map_err(|error| Error::Protocol(error.to_string()))?)
        }
        (Request::GetAllChildrenNumber { .. }, Response::Count(count)) => {
            Reply::Count(usize::try_from(count).unwrap_or(0))
        }
        (Request::AddWatch { path, mode }, Response::Watching(_)) => {
            Reply::Watching(arm(Interest::of(*mode), path))
        }
        (Request::Multi(ops), Response::Multi(results)) => {
            written(ops, results, body, chroot, session)?
        }
        (Request::MultiRead(ops), Response::Multi(results)) if results.len() == ops.len() => {
            let replies = ops.iter().zip(results);
            let replies = replies.map(|(op, result)| read_result(op, result, session));
            Reply::MultiRead(replies.collect::<Result<_>>()?)
        }
        (Request::Delete { .. } | Request::Withdraw { .. } | Request::Close, Response::Empty)
        | (Request::Sync { .. }, Response::Synced(_)) => Reply::Done,
        _ => return Err(malformed(what, OTHER_KIND)),
    })
}

/// Decodes an error reply. For an exists or a getPredecessor, `NoNode` is an ordinary answer.
pub(super) fn read_error(
    request: &Request,
    number: i32,
    body: &mut Reader<'_>,
    session: SessionId,
    watches: &mut WatchTable,
) -> Result<Reply<WatchKey, WatchKey>> {
    match request {
        // Of all reads, only exists arms a watch on a missing znode.
        Request::Exists { path, watch } if number == Code::NoNode.number() => Ok(Reply::Exists {
            stat: None,
            watcher: watch.then(|| watches.add(Interest::Existence, path)),
        }),
        Request::GetPredecessor(_) if number == Code::NoNode.number() => {
            Ok(Reply::Predecessor(Predecessor::Gone))
        }
        // The entry was not created, so the error shows its path without a sequence number.
        Request::Enqueue(enqueue) => {
            let path = enqueue.parent.join(&enqueue.name)?;
            let about = about(request, session);
            let path = path.as_str();
            Err(refused(number, body, About { path, ..about }))
        }
        _ => Err(refused(number, body, about(request, session))),
    }
}

fn predecessor(
    ahead: Ahead<'_>,
    chroot: &Chroot,
    watches: &mut WatchTable,
) -> Result<Predecessor<WatchKey>> {
    Ok(match ahead {
        Ahead::Clear => Predecessor::Clear,
        Ahead::Blocked { by, watch, count } => {
            let by = chroot.parse(&by.0)?;
            Predecessor::Blocked {
                watcher: watches.add_predecessor(watch, &by),
                by,
                count: usize::try_from(count).ok(),
            }
        }
        Ahead::Gone => Predecessor::Gone,
        Ahead::Listed(names) => Predecessor::Listed(owned(names)),
        Ahead::Unknown => Predecessor::Unknown,
    })
}

/// Decodes the results of a multi. A failed multi is decoded here too, because its reply header contains no error.
fn written(
    ops: &[WriteOp],
    results: Vec<MultiResult<'_>>,
    body: &mut Reader<'_>,
    chroot: &Chroot,
    session: SessionId,
) -> Result<Reply<WatchKey, WatchKey>> {
    // Operations before the failed one have the code 0, and operations after it have RuntimeInconsistency (-2).
    let failed = results.iter().position(|result| {
        matches!(result, Err(code) if *code != 0 && *code != Code::RuntimeInconsistency.number())
    });
    if let Some(index) = failed {
        let (Some(op), Err(code)) = (ops.get(index), &results[index]) else {
            return Err(malformed("multi", "it has more results than operations"));
        };
        return Err(Error::MultiFailed {
            index,
            source: Box::new(refused(*code, body, about_op(op, session))),
        });
    }
    if results.len() != ops.len() {
        return Err(malformed("multi", "it has another number of results"));
    }
    let replies = results
        .into_iter()
        .map(|result| write_result(result, chroot));
    Ok(Reply::Multi(replies.collect::<Result<_>>()?))
}

fn write_result(result: MultiResult<'_>, chroot: &Chroot) -> Result<OpReply> {
    Ok(match result {
        Ok((_, Response::Path(path))) => OpReply::Created {
            path: chroot.parse(&path.0)?,
            stat: None,
        },
        Ok((_, Response::Created(path, stat))) => OpReply::Created {
            path: chroot.parse(&path.0)?,
            stat: Some(stat),
        },
        Ok((Op::Delete, _)) => OpReply::Deleted,
        Ok((_, Response::Stat(stat))) => OpReply::Set(stat),
        Ok((Op::Check, _)) => OpReply::Checked,
        _ => return Err(malformed("multi", OTHER_KIND)),
    })
}

fn read_result(op: &ReadOp, result: MultiResult<'_>, session: SessionId) -> Result<ReadReply> {
    let entry = |data, stat, granted_at_ms| ReadReply::Entry {
        data: crate::model::data::copy(data),
        stat,
        granted_at_ms,
    };
    Ok(match result {
        Ok((_, Response::Data(data, stat))) if matches!(op, ReadOp::GetEntry(_)) => {
            entry(data, stat, None)
        }
        Ok((_, Response::Data(data, stat))) => ReadReply::Data {
            data: crate::model::data::copy(data),
            stat,
        },
        Ok((_, Response::Entry(data, stat, at_ms))) => {
            entry(data, stat, (at_ms >= 0).then_some(at_ms))
        }
        Ok((_, Response::Names(names))) => ReadReply::Children(owned(names)),
        Err(number) => {
            let about = About {
                what: "multiRead",
                path: op.path().as_str(),
                version: None,
                session,
            };
            ReadReply::Failed(error(number, about))
        }
        _ => return Err(malformed("multiRead", OTHER_KIND)),
    })
}

fn owned(names: Vec<wire::Text<'_>>) -> Vec<String> {
    names.into_iter().map(wire::Text::into_owned).collect()
}
