//! What a client asks: a record for each operation.

use super::connect::RequestHeader;
use super::jute::{Data, Jute, Listed, Malformed, Path, Reader, Text, records};
use super::multi::{self, MultiOp};
use super::op::Op;
use super::stat::AclRecord;

records! {
    /// Of create, create2 and createContainer.
    Create<'a> {
        path: Path<'a>,
        data: Data<'a>,
        acl: Vec<AclRecord<'a>>,
        /// A number of a mode, 0 to 6. See [`create_mode`](super::convert::create_mode).
        flags: i32,
    }

    /// Of createTTL.
    CreateTtl<'a> {
        path: Path<'a>,
        data: Data<'a>,
        acl: Vec<AclRecord<'a>>,
        flags: i32,
        ttl_ms: i64,
    }

    /// Of delete and check.
    Versioned<'a> {
        path: Path<'a>,
        /// -1: any.
        version: i32,
    }

    /// Of exists, getData, getChildren and getChildren2.
    Look<'a> {
        path: Path<'a>,
        watch: bool,
    }

    /// Of setData.
    SetData<'a> {
        path: Text<'a>,
        data: Data<'a>,
        version: i32,
    }

    /// Of getACL and getAllChildrenNumber.
    Named<'a> {
        path: Path<'a>,
    }

    /// Of sync. The path means nothing, and is told back.
    Sync<'a> {
        path: Option<Text<'a>>,
    }

    /// Of setACL.
    SetAcl<'a> {
        path: Text<'a>,
        acl: Vec<AclRecord<'a>>,
        /// The expected version of the list, not of the data.
        version: i32,
    }

    /// Of reconfig.
    Reconfig<'a> {
        joining: Option<Text<'a>>,
        leaving: Option<Text<'a>>,
        members: Option<Text<'a>>,
        config: i64,
    }

    /// Of checkWatches and removeWatches: what kind of watches are meant.
    Watches<'a> {
        path: Text<'a>,
        /// 1 children, 2 data, 3 any, 4 persistent, 5 persistent recursive.
        kind: i32,
    }

    /// Of auth.
    Auth<'a> {
        /// 0; nobody reads it.
        kind: i32,
        scheme: Text<'a>,
        auth: Data<'a>,
    }

    /// Of setWatches: what a client that comes back wants to go on watching.
    SetWatches<'a> {
        /// The last zxid that the client has seen.
        relative_zxid: i64,
        data: Listed<Path<'a>>,
        exist: Listed<Path<'a>>,
        child: Listed<Path<'a>>,
    }

    /// Of setWatches2 (3.6 and later).
    SetWatches2<'a> {
        relative_zxid: i64,
        data: Listed<Path<'a>>,
        exist: Listed<Path<'a>>,
        child: Listed<Path<'a>>,
        persistent: Listed<Path<'a>>,
        recursive: Listed<Path<'a>>,
    }

    /// Of sasl.
    Sasl<'a> {
        token: Data<'a>,
    }

    /// Of getEphemerals: how their paths begin. Null, empty and `/` mean all.
    Prefix<'a> {
        prefix: Text<'a>,
    }

    /// Of addWatch.
    AddWatch<'a> {
        path: Text<'a>,
        /// 0 persistent, 1 persistent recursive.
        mode: i32,
    }
}

/// Declares the requests: variant, operation and record; those without a record at the end.
macro_rules! requests {
    ($($name:ident($record:ty),)* ; $($bare:ident,)*) => {
        /// A request, by its operation.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each is the operation of its name, with the record that it has")]
        pub(crate) enum Request<'a> {
            $($name($record),)*
            Multi(Vec<MultiOp<'a>>),
            MultiRead(Vec<MultiOp<'a>>),
            $($bare,)*
        }

        impl<'a> Request<'a> {
            /// Reads the record of this operation. What follows it is ignored, as by a server.
            pub(crate) fn read(op: Op, from: &mut Reader<'a>) -> Result<Self, Malformed> {
                Ok(match op {
                    $(Op::$name => Self::$name(from.next()?),)*
                    Op::Multi => Self::Multi(multi::read_writes(from)?),
                    Op::MultiRead => Self::MultiRead(multi::read_reads(from)?),
                    $(Op::$bare => Self::$bare,)*
                })
            }

            /// Appends the record.
            pub(crate) fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$name(record) => record.put(to),)*
                    Self::Multi(ops) | Self::MultiRead(ops) => multi::put_ops(ops, to),
                    $(Self::$bare => {})*
                }
            }

            /// The operation.
            pub(crate) fn op(&self) -> Op {
                match self {
                    $(Self::$name(_) => Op::$name,)*
                    Self::Multi(_) => Op::Multi,
                    Self::MultiRead(_) => Op::MultiRead,
                    $(Self::$bare => Op::$bare,)*
                }
            }
        }
    };
}

requests! {
    Create(Create<'a>),
    Delete(Versioned<'a>),
    Exists(Look<'a>),
    GetData(Look<'a>),
    SetData(SetData<'a>),
    GetAcl(Named<'a>),
    SetAcl(SetAcl<'a>),
    GetChildren(Look<'a>),
    Sync(Sync<'a>),
    GetChildren2(Look<'a>),
    Check(Versioned<'a>),
    Create2(Create<'a>),
    Reconfig(Reconfig<'a>),
    CheckWatches(Watches<'a>),
    RemoveWatches(Watches<'a>),
    CreateContainer(Create<'a>),
    CreateTtl(CreateTtl<'a>),
    Auth(Auth<'a>),
    SetWatches(SetWatches<'a>),
    Sasl(Sasl<'a>),
    GetEphemerals(Prefix<'a>),
    GetAllChildrenNumber(Named<'a>),
    SetWatches2(SetWatches2<'a>),
    AddWatch(AddWatch<'a>),
    ;
    Ping,
    WhoAmI,
    CloseSession,
}

impl Request<'_> {
    /// Appends the body of the request's frame: its header, and its record.
    pub(crate) fn put_with_header(&self, xid: i32, to: &mut Vec<u8>) {
        let op = self.op().number();
        RequestHeader { xid, op }.put(to);
        self.put(to);
    }
}
