//! Responses. A response consists of a header and a record that depends on the operation.

use super::code::Code;
use super::connect::{ReplyHeader, xid};
use super::extension::Ahead;
use super::jute::{Data, Jute, Malformed, Path, Reader, Text, by_op, records};
use super::multi::MultiResult;
use super::request::Op;
use super::stat::AclRecord;
use crate::model::types::Stat;

records! {
    ClientInfo<'a> {
        scheme: Text<'a>,
        /// The id in the scheme. For `digest`, the user without the password.
        user: Text<'a>,
    }

    WatcherEvent<'a> {
        /// Kind of event: 1 for created, 2 for deleted, 3 for data changed, 4 for children changed.
        kind: i32,
        /// State of the session. Servers send only 3, which means connected.
        state: i32,
        path: Path<'a>,
    }
}

by_op! {
    /// Record of a reply. An error reply has only a header. A failed multi is an exception: its header contains no
    /// error, and each of its results contains an error code.
    Response {
        Path(path: Path<'a>) = Create,
        Synced(path: Option<Text<'a>>) = Sync,
        Created(path: Path<'a>, stat: Stat) = Create2 | CreateContainer | CreateTtl,
        Stat(stat: Stat) = SetData | Exists | SetAcl,
        Data(data: Data<'a>, stat: Stat) = GetData | Reconfig,
        Acl(acl: Vec<AclRecord<'a>>, stat: Stat) = GetAcl,
        Names(names: Vec<Text<'a>>) = GetChildren | GetEphemerals,
        Children(names: Vec<Text<'a>>, stat: Stat) = GetChildren2,
        Count(count: i32) = GetAllChildrenNumber,
        Watching(code: i32) = AddWatch,
        Multi(results: Vec<MultiResult<'a>>) = Multi | MultiRead,
        Token(token: Option<Data<'a>>) = Sasl,
        WhoAmI(infos: Vec<ClientInfo<'a>>) = WhoAmI,
        Enqueued(path: Path<'a>, czxid: i64, ahead: Ahead<'a>) = Enqueue,
        Ahead(ahead: Ahead<'a>) = GetPredecessor,
        Queue(names: Vec<Text<'a>>, is_sorted: bool) = GetQueue,
        /// Data and Stat of an entry, and the time of its grant in milliseconds, or -1 if the time is unknown.
        Entry(data: Data<'a>, stat: Stat, granted_at_ms: i64) = GetEntry,
        ;
        Empty = Delete | Check | Ping | CheckWatches | RemoveWatches | Auth | SetWatches | SetWatches2 | Withdraw
            | ForgetWatch | CheckData | CheckChildren | CloseSession,
    }
}

impl Response<'_> {
    pub(crate) fn put_with_header(&self, xid: i32, zxid: i64, to: &mut Vec<u8>) {
        ReplyHeader::new(xid, zxid, Code::Ok).put(to);
        self.put(to);
    }
}

/// Appends the body of an event's frame. `zxid` is the transaction that fired the watch. `None` is sent as -1. Before
/// 3.9, ZooKeeper sends -1 for all events. Since 3.9, it sends -1 only for events that answer a setWatches.
pub(crate) fn put_event(event: &WatcherEvent<'_>, zxid: Option<i64>, to: &mut Vec<u8>) {
    // Clients ignore -1, because they record only a positive zxid as their last zxid.
    ReplyHeader::new(xid::EVENT, zxid.unwrap_or(-1), Code::Ok).put(to);
    event.put(to);
}
