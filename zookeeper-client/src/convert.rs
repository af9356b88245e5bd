//! Conversion between the types of zookeeper-client and of the store.

use std::borrow::Cow;

use bytes::Bytes;
use lockkeeper_store::{
    Acl, AclEntry, Create, CreateMode, Error, EventKind, Op, OpReply, ReadOp, ReadReply, Result,
    SessionId, Stat, WatchMode, WatchedEvent, ZnodePath, Zxid,
};
use zookeeper_client as zk;

#[derive(Clone, Copy)]
pub(crate) struct RequestContext<'a> {
    pub(crate) what: &'static str,
    /// Path of the request. Empty if the request has no path or several paths.
    pub(crate) path: &'a str,
    pub(crate) version: Option<i32>,
    pub(crate) session: SessionId,
}

impl RequestContext<'_> {
    pub(crate) fn error(self, error: zk::Error) -> Error {
        let path = || self.path.to_owned();
        match error {
            zk::Error::BadArguments(reason) => {
                Error::BadArguments(format!("{}: {reason}", self.subject()))
            }
            zk::Error::Unimplemented => Error::Unimplemented { what: self.what },
            zk::Error::AuthFailed => Error::AuthFailed,
            zk::Error::SessionExpired => Error::SessionExpired {
                session: self.session,
            },
            zk::Error::ClientClosed => Error::SessionClosed {
                session: self.session,
            },
            // When a connection ends, the crate fails the requests in flight with the error that ended the connection.
            // So after each of these errors the outcome of the request is unknown.
            zk::Error::ConnectionLoss
            | zk::Error::Timeout
            | zk::Error::SessionMoved
            | zk::Error::Custom(_) => Error::ConnectionLoss,
            // The specific errors need a path, and this request has none.
            other if self.path.is_empty() => self.unexpected(&other),
            zk::Error::NoNode if self.what == CREATE => Error::NoNode {
                path: self.parent(),
            },
            zk::Error::NoNode => Error::NoNode { path: path() },
            zk::Error::NodeExists => Error::NodeExists { path: path() },
            zk::Error::NotEmpty => Error::NotEmpty { path: path() },
            zk::Error::NoAuth => Error::NoAuth { path: path() },
            zk::Error::InvalidAcl => Error::InvalidAcl { path: path() },
            zk::Error::NoChildrenForEphemerals => Error::NoChildrenForEphemerals { path: path() },
            zk::Error::BadVersion => Error::BadVersion {
                path: path(),
                expected: self.version.unwrap_or(-1),
            },
            other => self.unexpected(&other),
        }
    }

    fn unexpected(self, error: &zk::Error) -> Error {
        Error::Protocol(format!("{}: {error}", self.subject()))
    }

    /// Returns the parent of the path. The path is valid, because it was sent.
    fn parent(self) -> String {
        let cut = self.path.rfind('/').unwrap_or(0).max(1);
        self.path[..cut].to_owned()
    }

    fn subject(self) -> String {
        match self.path {
            "" => self.what.to_owned(),
            path => format!("{} of {path}", self.what),
        }
    }
}

pub(crate) const CREATE: &str = "create";

pub(crate) fn stat(stat: zk::Stat) -> Stat {
    Stat {
        czxid: Zxid(stat.czxid),
        mzxid: Zxid(stat.mzxid),
        pzxid: Zxid(stat.pzxid),
        ctime: stat.ctime,
        mtime: stat.mtime,
        version: stat.version,
        cversion: stat.cversion,
        aversion: stat.aversion,
        ephemeral_owner: SessionId(stat.ephemeral_owner),
        data_length: stat.data_length,
        num_children: stat.num_children,
    }
}

/// A converted access control list, or `None` for the open one.
pub(crate) struct Acls(Option<Vec<zk::Acl>>);

impl Acls {
    pub(crate) fn new(acl: &Acl) -> Self {
        Self(
            acl.entries()
                .map(|entries| entries.iter().map(acl_entry).collect()),
        )
    }

    pub(crate) fn list(&self) -> Cow<'_, [zk::Acl]> {
        match &self.0 {
            Some(list) => Cow::Borrowed(list),
            None => {
                let anyone = zk::Acl::new(zk::Permission::ALL, zk::AuthId::anyone());
                Cow::Owned(vec![anyone])
            }
        }
    }

    pub(crate) fn options(&self, mode: CreateMode) -> zk::CreateOptions<'_> {
        let acls = self
            .0
            .as_deref()
            .map_or(zk::Acls::anyone_all(), zk::Acls::new);
        let (plain, ttl) = match mode {
            CreateMode::Persistent => (zk::CreateMode::Persistent, None),
            CreateMode::PersistentSequential => (zk::CreateMode::PersistentSequential, None),
            CreateMode::Ephemeral => (zk::CreateMode::Ephemeral, None),
            CreateMode::EphemeralSequential => (zk::CreateMode::EphemeralSequential, None),
            CreateMode::Container => (zk::CreateMode::Container, None),
            CreateMode::PersistentTtl(ttl) => (zk::CreateMode::Persistent, Some(ttl)),
            CreateMode::PersistentSequentialTtl(ttl) => {
                (zk::CreateMode::PersistentSequential, Some(ttl))
            }
        };
        let options = plain.with_acls(acls);
        match ttl {
            Some(ttl) => options.with_ttl(ttl),
            None => options,
        }
    }
}

const RIGHTS: [(u8, zk::Permission); 5] = [
    (AclEntry::READ, zk::Permission::READ),
    (AclEntry::WRITE, zk::Permission::WRITE),
    (AclEntry::CREATE, zk::Permission::CREATE),
    (AclEntry::DELETE, zk::Permission::DELETE),
    (AclEntry::ADMIN, zk::Permission::ADMIN),
];

/// Converts a list from a server. A list that grants everything to `world:anyone` is the open list.
pub(crate) fn acl(list: &[zk::Acl]) -> Acl {
    let entries = list.iter().map(|acl| {
        let rights = RIGHTS
            .iter()
            .filter(|(_, right)| acl.permission().has(*right));
        AclEntry {
            permissions: rights.map(|(right, _)| right).sum(),
            scheme: acl.scheme().to_owned(),
            id: acl.id().to_owned(),
        }
    });
    let entries = entries.collect::<Vec<_>>();
    match &entries[..] {
        [only]
            if (&*only.scheme, &*only.id) == ("world", "anyone")
                && only.permissions == AclEntry::ALL =>
        {
            Acl::open()
        }
        _ => Acl::new(entries),
    }
}

fn acl_entry(entry: &AclEntry) -> zk::Acl {
    let permission = RIGHTS
        .into_iter()
        .filter(|(right, _)| entry.permissions & right != 0)
        .fold(zk::Permission::NONE, |sum, (_, permission)| {
            sum | permission
        });
    zk::Acl::new(permission, zk::AuthId::new(&entry.scheme, &entry.id))
}

pub(crate) fn watch_mode(mode: WatchMode) -> zk::AddWatchMode {
    match mode {
        WatchMode::Persistent => zk::AddWatchMode::Persistent,
        WatchMode::PersistentRecursive => zk::AddWatchMode::PersistentRecursive,
    }
}

/// Converts a watch event. A session event becomes an error, because it reports the end of the session or the loss of
/// its connection.
pub(crate) fn event(event: zk::WatchedEvent, session: SessionId) -> Result<WatchedEvent> {
    let kind = match event.event_type {
        zk::EventType::NodeCreated => EventKind::NodeCreated,
        zk::EventType::NodeDeleted => EventKind::NodeDeleted,
        zk::EventType::NodeDataChanged => EventKind::NodeDataChanged,
        zk::EventType::NodeChildrenChanged => EventKind::NodeChildrenChanged,
        zk::EventType::Session => {
            return Err(match event.session_state {
                zk::SessionState::Expired | zk::SessionState::AuthFailed => {
                    Error::SessionExpired { session }
                }
                zk::SessionState::Closed => Error::SessionClosed { session },
                _ => Error::ConnectionLoss,
            });
        }
    };
    Ok(WatchedEvent {
        kind,
        path: ZnodePath::new(event.path)?,
        // Servers before 3.9 do not send the zxid.
        zxid: (event.zxid != zk::WatchedEvent::NO_ZXID).then_some(Zxid(event.zxid)),
        predecessor_gone: None,
    })
}

/// Returns the path of a created znode. A sequential znode's path ends with the number, in the same format as
/// ZooKeeper's (rule 4).
pub(crate) fn made(create: &Create, number: zk::CreateSequence) -> Result<ZnodePath> {
    match create.mode.is_sequential() {
        true => ZnodePath::new(format!("{}{:010}", create.path, number.into_i64())),
        false => Ok(create.path.clone()),
    }
}

pub(crate) fn about_op(op: &Op, session: SessionId) -> RequestContext<'_> {
    let (what, path, version) = match op {
        Op::Create(create) => (CREATE, &create.path, None),
        Op::Delete { path, version } => ("delete", path, *version),
        Op::SetData { path, version, .. } => ("setData", path, *version),
        Op::Check { path, version } => ("check", path, *version),
        Op::Require(condition) => ("condition", condition.znode(), None),
    };
    RequestContext {
        what,
        path: path.as_str(),
        version,
        session,
    }
}

pub(crate) fn add_op(writer: &mut zk::MultiWriter<'_>, op: &Op) -> Result<(), zk::Error> {
    match op {
        Op::Create(create) => {
            let acls = Acls::new(&create.acl);
            writer.add_create(
                create.path.as_str(),
                &create.data,
                &acls.options(create.mode),
            )
        }
        Op::Delete { path, version } => writer.add_delete(path.as_str(), *version),
        Op::SetData {
            path,
            data,
            version,
        } => writer.add_set_data(path.as_str(), data, *version),
        Op::Check { path, version } => {
            writer.add_check_version(path.as_str(), version.unwrap_or(-1))
        }
        // `multi` has already refused requests with conditions.
        Op::Require(_) => Err(zk::Error::Unimplemented),
    }
}

pub(crate) fn op_reply(result: zk::MultiWriteResult) -> Result<OpReply> {
    Ok(match result {
        zk::MultiWriteResult::Check => OpReply::Checked,
        zk::MultiWriteResult::Delete => OpReply::Deleted,
        zk::MultiWriteResult::SetData { stat: set } => OpReply::Set(stat(set)),
        zk::MultiWriteResult::Create { path, stat: made } => OpReply::Created {
            // Do not return `InvalidPath` here. It would mean that nothing was sent, and the caller would not clean up.
            path: ZnodePath::new(path).map_err(|error| Error::Protocol(error.to_string()))?,
            stat: (!made.is_invalid()).then(|| stat(made)),
        },
        _ => {
            return Err(Error::Protocol(
                "a multi was answered with a result of an unknown kind".to_owned(),
            ));
        }
    })
}

pub(crate) fn add_read(reader: &mut zk::MultiReader<'_>, op: &ReadOp) -> Result<(), zk::Error> {
    match op {
        ReadOp::GetData(path) | ReadOp::GetEntry(path) => reader.add_get_data(path.as_str()),
        ReadOp::GetChildren(path) => reader.add_get_children(path.as_str()),
    }
}

pub(crate) fn read_reply(
    op: &ReadOp,
    result: zk::MultiReadResult,
    session: SessionId,
) -> ReadReply {
    match result {
        zk::MultiReadResult::Data { data, stat: found } => {
            data_reply(op, Bytes::from(data), stat(found))
        }
        zk::MultiReadResult::Children { children } => ReadReply::Children(children),
        zk::MultiReadResult::Error { err } => ReadReply::Failed(about_read(op, session).error(err)),
        _ => ReadReply::Failed(Error::Protocol(
            "a multi-read was answered with a result of an unknown kind".to_owned(),
        )),
    }
}

/// Returns the reply to a read of data. It contains no grant time, because ZooKeeper does not know when an entry was
/// granted.
pub(crate) fn data_reply(op: &ReadOp, data: Bytes, stat: Stat) -> ReadReply {
    match op {
        ReadOp::GetEntry(_) => ReadReply::Entry {
            data,
            stat,
            granted_at_ms: None,
        },
        _ => ReadReply::Data { data, stat },
    }
}

pub(crate) fn about_read(op: &ReadOp, session: SessionId) -> RequestContext<'_> {
    let path = op.path();
    RequestContext {
        what: "multiRead",
        path: path.as_str(),
        version: None,
        session,
    }
}
