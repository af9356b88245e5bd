//! Between what goes over the wire and what the store is asked and answers.

use std::time::Duration;

use super::code::Code;
use super::jute::Path;
use super::op::Op;
use super::request::{Create, CreateTtl, Request};
use super::response::WatcherEvent;
use super::shape::{self, Shape};
use super::stat::{AclRecord, acl};
use crate::data;
use crate::path::ZnodePath;
use crate::protocol as store;
use crate::types::CreateMode;
use crate::watch::{EventKind, WatchMode, WatchedEvent};

/// `state` of every event: connected.
const CONNECTED: i32 = 3;

/// The version that a request expects: -1 is any.
pub(super) fn version(version: i32) -> Option<i32> {
    (version != -1).then_some(version)
}

/// The path of a znode to be looked at. What is no path names no znode: a server does not check it.
/// (It would watch for its coming, though, and wait for ever.)
///
/// An empty path is the root, as on a server.
pub(super) fn looked_at(path: &Path<'_>) -> Result<ZnodePath, Code> {
    match path.0.as_ref() {
        "" => Ok(ZnodePath::root()),
        text => ZnodePath::new(text).map_err(|_| Code::NoNode),
    }
}

/// Of an exists a server checks one thing.
fn existing(path: &Path<'_>) -> Result<ZnodePath, Code> {
    if path.0.contains('\0') {
        return Err(Code::BadArguments);
    }
    looked_at(path)
}

/// The path of a znode to be written. A server checks it.
pub(super) fn written(path: &str) -> Result<ZnodePath, Code> {
    ZnodePath::new(path).map_err(|_| Code::BadArguments)
}

/// The path of a znode to be made. A server looks for the parent first, which is not there when its
/// path is none.
///
/// A path that ends with `/` is one to be numbered: the name is then the number alone.
fn made_path(path: &str, mode: CreateMode) -> Result<ZnodePath, Code> {
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

/// The path of a znode to be deleted: a server checks no more of it than that it has a parent.
pub(super) fn deleted(path: &Path<'_>) -> Result<ZnodePath, Code> {
    if !has_parent(&path.0) {
        return Err(Code::BadArguments);
    }
    looked_at(path)
}

fn has_parent(path: &str) -> bool {
    path.contains('/') && !path.contains('\0')
}

/// How a znode is to be made.
///
/// As on a server, the operation decides what is a container and has a TTL: a createContainer makes
/// a container whatever its flags say (they can only number it, and that we refuse), and a create
/// with a container's flag a persistent znode.
///
/// # Errors
/// The flag is no number from 0 to 6, or the TTL is none for it.
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

/// The number of a mode.
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

/// How an addWatch is to watch.
///
/// # Errors
/// There is no such mode: a server stumbles over it.
pub(crate) fn watch_mode(mode: i32) -> Result<WatchMode, Code> {
    match mode {
        0 => Ok(WatchMode::Persistent),
        1 => Ok(WatchMode::PersistentRecursive),
        _ => Err(Code::MarshallingError),
    }
}

/// Checks in the order of a server: mode, path, list.
pub(super) fn create(op: Op, create: &Create<'_>) -> Result<store::Create, Code> {
    made(
        op,
        &create.path,
        create.data,
        &create.acl,
        (create.flags, -1),
    )
}

pub(super) fn create_ttl(create: &CreateTtl<'_>) -> Result<store::Create, Code> {
    let mode = (create.flags, create.ttl_ms);
    made(Op::CreateTtl, &create.path, create.data, &create.acl, mode)
}

fn made(
    op: Op,
    path: &Path<'_>,
    data: &[u8],
    list: &[AclRecord<'_>],
    (flags, ttl_ms): (i32, i64),
) -> Result<store::Create, Code> {
    let mode = create_mode(op, flags, ttl_ms)?;
    if !has_parent(&path.0) {
        return Err(Code::BadArguments);
    }
    let acl = acl(list)?;
    Ok(store::Create {
        path: made_path(&path.0, mode)?,
        // A copy: a slice would keep the whole frame alive.
        data: data::copy(data),
        mode,
        acl,
    })
}

/// A request as the store is asked it; `None` where the store has no such request, and the server
/// sees to it itself: pings, who somebody is, and watches by themselves. With it comes
/// what the answer must look like.
///
/// # Errors
/// What is answered at once, in turn.
pub(crate) fn to_store(request: &Request<'_>) -> Result<(Option<store::Request>, Shape), Code> {
    match request {
        Request::Multi(ops) => shape::multi(ops).map(|(asked, shape)| (Some(asked), shape)),
        Request::MultiRead(ops) => {
            let (asked, shape) = shape::multi_read(ops);
            Ok((Some(asked), shape))
        }
        Request::GetEphemerals(it) => {
            let (asked, shape) = shape::ephemerals(&it.prefix);
            Ok((Some(asked), shape))
        }
        other => Ok((single(other)?, Shape::of(other))),
    }
}

fn single(request: &Request<'_>) -> Result<Option<store::Request>, Code> {
    Ok(Some(match request {
        Request::Create(it) | Request::Create2(it) | Request::CreateContainer(it) => {
            store::Request::Create(create(request.op(), it)?)
        }
        Request::CreateTtl(it) => store::Request::Create(create_ttl(it)?),
        Request::Delete(it) => store::Request::Delete {
            path: deleted(&it.path)?,
            version: version(it.version),
        },
        Request::SetData(it) => store::Request::SetData {
            path: written(&it.path)?,
            data: data::copy(it.data),
            version: version(it.version),
        },
        Request::Exists(it) => store::Request::Exists {
            path: existing(&it.path)?,
            watch: it.watch,
        },
        Request::GetData(it) => store::Request::GetData {
            path: looked_at(&it.path)?,
            watch: it.watch,
        },
        Request::GetChildren(it) | Request::GetChildren2(it) => store::Request::GetChildren {
            path: looked_at(&it.path)?,
            watch: it.watch,
        },
        // The path is told back and means nothing, so it need not be one.
        Request::Sync(_) => store::Request::Sync {
            path: ZnodePath::root(),
        },
        Request::GetAllChildrenNumber(it) => store::Request::GetAllChildrenNumber {
            path: looked_at(&it.path)?,
        },
        Request::AddWatch(it) => store::Request::AddWatch {
            path: written(&it.path)?,
            mode: watch_mode(it.mode)?,
        },
        Request::GetAcl(it) => store::Request::GetAcl {
            path: looked_at(&it.path)?,
        },
        Request::SetAcl(it) => store::Request::SetAcl {
            path: written(&it.path)?,
            acl: acl(&it.acl)?,
            version: version(it.version),
        },
        Request::CloseSession => store::Request::Close,
        _ => return Ok(None),
    }))
}

/// An event as it goes over the wire. Its header needs the zxid: see [`put_event`](super::put_event).
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

/// What happened, by its number in an event.
pub(crate) fn event_kind(kind: i32) -> Option<EventKind> {
    Some(match kind {
        1 => EventKind::NodeCreated,
        2 => EventKind::NodeDeleted,
        3 => EventKind::NodeDataChanged,
        4 => EventKind::NodeChildrenChanged,
        _ => return None,
    })
}
