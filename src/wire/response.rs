//! Responses. A response has a header, and a record that depends on the operation.

use super::code::Code;
use super::connect::{ReplyHeader, xid};
use super::extension::Ahead;
use super::frame::LENGTH_BYTES;
use super::jute::{Data, Jute, Malformed, Path, Reader, Text, records};
use super::multi::{self, MultiResult};
use super::request::Op;
use super::stat::{AclRecord, STAT_BYTES};
use crate::model::types::Stat;

records! {
    ClientInfo<'a> {
        scheme: Text<'a>,
        /// The id in the scheme. For `digest`, this is the user without the password.
        user: Text<'a>,
    }

    /// Event of a fired watch. It follows a header with the xid [`xid::EVENT`].
    WatcherEvent<'a> {
        /// 1 for created, 2 for deleted, 3 for data changed, 4 for children changed.
        kind: i32,
        /// State of the session. Servers send only 3, which means connected.
        state: i32,
        path: Path<'a>,
    }
}

/// Record of a reply. An error reply has no record, except the reply of a failed multi. The header of that reply has no
/// error, and each result has an error code (rule 16).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Response<'a> {
    /// Reply to delete, ping, auth, setWatches, checkWatches, removeWatches and closeSession, and any error reply.
    Empty,
    /// Reply to create.
    Path(Path<'a>),
    /// Reply to sync, with the path of the request.
    Synced(Option<Text<'a>>),
    /// Reply to create2, createContainer and createTTL.
    Created(Path<'a>, Stat),
    /// Reply to exists, setData and setACL.
    Stat(Stat),
    Data(Data<'a>, Stat),
    Acl(Vec<AclRecord<'a>>, Stat),
    /// Reply to getChildren (names) and getEphemerals (paths).
    Names(Vec<Text<'a>>),
    /// Reply to getChildren2.
    Children(Vec<Text<'a>>, Stat),
    /// Reply to getAllChildrenNumber.
    Count(i32),
    /// Reply to addWatch, always 0.
    Watching(i32),
    /// Reply to multi and multiRead.
    Multi(Vec<MultiResult<'a>>),
    /// Reply to sasl.
    Token(Option<Data<'a>>),
    WhoAmI(Vec<ClientInfo<'a>>),
    /// Reply to enqueue. It contains the entry, and the transaction that created the entry.
    Enqueued(Path<'a>, i64, Ahead<'a>),
    Ahead(Ahead<'a>),
    /// Reply to getQueue. It contains the names, and whether they are sorted.
    Queue(Vec<Text<'a>>, bool),
}

impl<'a> Response<'a> {
    /// Reads the record of a successful reply.
    pub(crate) fn read(op: Op, from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(match op {
            Op::Create => Self::Path(from.next()?),
            Op::Sync => Self::Synced(from.next()?),
            Op::Create2 | Op::CreateContainer | Op::CreateTtl => {
                Self::Created(from.next()?, from.next()?)
            }
            Op::Exists | Op::SetData | Op::SetAcl => Self::Stat(from.next()?),
            Op::GetData | Op::Reconfig => Self::Data(from.next()?, from.next()?),
            Op::GetAcl => Self::Acl(from.next()?, from.next()?),
            Op::GetChildren | Op::GetEphemerals => Self::Names(from.next()?),
            Op::GetChildren2 => Self::Children(from.next()?, from.next()?),
            Op::GetAllChildrenNumber => Self::Count(from.next()?),
            Op::AddWatch => Self::Watching(from.next()?),
            Op::Multi | Op::MultiRead => Self::Multi(multi::read_results(from)?),
            Op::Sasl => Self::Token(from.next()?),
            Op::WhoAmI => Self::WhoAmI(from.next()?),
            Op::Enqueue => Self::Enqueued(from.next()?, from.next()?, from.next()?),
            Op::GetPredecessor => Self::Ahead(from.next()?),
            Op::GetQueue => Self::Queue(from.next()?, from.next()?),
            Op::Delete
            | Op::Ping
            | Op::Check
            | Op::CheckWatches
            | Op::RemoveWatches
            | Op::Auth
            | Op::SetWatches
            | Op::SetWatches2
            | Op::Withdraw
            | Op::ForgetWatch
            | Op::CheckData
            | Op::CheckChildren
            | Op::GetEntry
            | Op::CloseSession => Self::Empty,
        })
    }

    pub(crate) fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Empty => {}
            Self::Path(path) => path.put(to),
            Self::Synced(path) => path.put(to),
            Self::Created(path, stat) => {
                path.put(to);
                stat.put(to);
            }
            Self::Stat(stat) => stat.put(to),
            Self::Data(data, stat) => {
                data.put(to);
                stat.put(to);
            }
            Self::Acl(acl, stat) => {
                acl.put(to);
                stat.put(to);
            }
            Self::Names(names) => names.put(to),
            Self::Children(names, stat) => {
                names.put(to);
                stat.put(to);
            }
            Self::Count(number) | Self::Watching(number) => number.put(to),
            Self::Multi(results) => multi::put_results(results, to),
            Self::Token(token) => token.put(to),
            Self::WhoAmI(infos) => infos.put(to),
            Self::Enqueued(path, czxid, ahead) => {
                path.put(to);
                czxid.put(to);
                ahead.put(to);
            }
            Self::Ahead(ahead) => ahead.put(to),
            Self::Queue(names, is_sorted) => {
                names.put(to);
                is_sorted.put(to);
            }
        }
    }

    /// Returns the size of the encoded record, in bytes. Check this size before encoding, because a multiRead may read
    /// one large znode many times.
    pub(crate) fn record_bytes(&self) -> usize {
        let text = |text: &Text<'_>| LENGTH_BYTES + text.len();
        let texts = |names: &[Text<'_>]| LENGTH_BYTES + names.iter().map(text).sum::<usize>();
        match self {
            Self::Empty => 0,
            Self::Path(path) => text(&path.0),
            Self::Synced(path) => LENGTH_BYTES + path.as_ref().map_or(0, |path| path.len()),
            Self::Created(path, _) => text(&path.0) + STAT_BYTES,
            Self::Stat(_) => STAT_BYTES,
            Self::Data(data, _) => LENGTH_BYTES + data.len() + STAT_BYTES,
            Self::Acl(acl, _) => {
                let entry = |it: &AclRecord<'_>| 4 + text(&it.scheme) + text(&it.id.0);
                LENGTH_BYTES + acl.iter().map(entry).sum::<usize>() + STAT_BYTES
            }
            Self::Names(names) => texts(names),
            Self::Children(names, _) => texts(names) + STAT_BYTES,
            Self::Count(_) | Self::Watching(_) => 4,
            Self::Multi(results) => multi::results_bytes(results),
            Self::Token(token) => LENGTH_BYTES + token.map_or(0, <[u8]>::len),
            Self::WhoAmI(infos) => {
                let info = |it: &ClientInfo<'_>| text(&it.scheme) + text(&it.user);
                LENGTH_BYTES + infos.iter().map(info).sum::<usize>()
            }
            Self::Enqueued(path, _, ahead) => text(&path.0) + 8 + ahead.bytes(),
            Self::Ahead(ahead) => ahead.bytes(),
            Self::Queue(names, _) => texts(names) + 1,
        }
    }

    /// Appends the body of a reply's frame, which consists of the header and the record.
    pub(crate) fn put_with_header(&self, xid: i32, zxid: i64, to: &mut Vec<u8>) {
        ReplyHeader::new(xid, zxid, Code::Ok).put(to);
        self.put(to);
    }
}

/// Appends the body of an event's frame. `zxid` is the transaction that fired the watch. `None` is sent as -1, as
/// ZooKeeper does for an event that answers a setWatches, and for all events before 3.9.
pub(crate) fn put_event(event: &WatcherEvent<'_>, zxid: Option<i64>, to: &mut Vec<u8>) {
    // -1 does not confuse clients, because they record only a positive zxid as their last one.
    ReplyHeader::new(xid::EVENT, zxid.unwrap_or(-1), Code::Ok).put(to);
    event.put(to);
}
