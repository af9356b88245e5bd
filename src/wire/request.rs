//! Requests: ZooKeeper's operation numbers, their records, and [`Incoming`], which reads a request from any bytes.

use super::code::Code;
use super::connect::RequestHeader;
use super::extension::{CheckChildren, CheckData, Enqueue, ForgetWatch, GetPredecessor, GetQueue};
use super::jute::{Data, Jute, Malformed, NonNullList, Path, Reader, Text, by_op, records};
use super::multi::MultiOp;
use super::stat::AclRecord;

macro_rules! ops {
    ($($name:ident = $number:literal $letters:literal,)*) => {
        /// Operation of a request, with ZooKeeper's number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each is named as in ZooKeeper's ZooDefs.OpCode")]
        pub(crate) enum Op {
            $($name = $number,)*
        }

        impl Op {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];

            pub(crate) fn of(number: i32) -> Option<Self> {
                Some(match number {
                    $($number => Self::$name,)*
                    _ => return None,
                })
            }

            #[cfg(feature = "metrics")]
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            pub(crate) fn letters(self) -> &'static str {
                match self {
                    $(Self::$name => $letters,)*
                }
            }
        }
    };
}

ops! {
    Create = 1 "CREA",
    Delete = 2 "DELE",
    Exists = 3 "EXIS",
    GetData = 4 "GETD",
    SetData = 5 "SETD",
    GetAcl = 6 "GETA",
    SetAcl = 7 "SETA",
    GetChildren = 8 "GETC",
    Sync = 9 "SYNC",
    Ping = 11 "PING",
    // getChildren2 is like getChildren, with the parent's Stat in the reply.
    GetChildren2 = 12 "GETC",
    Check = 13 "CHEC",
    Multi = 14 "MULT",
    // create2 is like create, with a Stat in the reply.
    Create2 = 15 "CREA",
    Reconfig = 16 "RECO",
    CheckWatches = 17 "CHKW",
    RemoveWatches = 18 "REMW",
    CreateContainer = 19 "CREA",
    // The number 20 is deleteContainer, which is reserved for the server's own removal of empty containers.
    CreateTtl = 21 "CREA",
    MultiRead = 22 "MLTR",
    Auth = 100 "NA",
    SetWatches = 101 "SETW",
    Sasl = 102 "NA",
    GetEphemerals = 103 "GETE",
    GetAllChildrenNumber = 104 "GETACN",
    SetWatches2 = 105 "STW2",
    AddWatch = 106 "ADDW",
    WhoAmI = 107 "HOMI",
    CloseSession = -11 "CLOS",
    // Lockkeeper's own operations, for connections that agreed to the extension.
    Enqueue = 4001 "ENQU",
    GetPredecessor = 4002 "GETP",
    GetQueue = 4003 "GETQ",
    Withdraw = 4004 "WITH",
    ForgetWatch = 4005 "FGTW",
    // checkData and checkChildren are operations of a multi, like check.
    CheckData = 4006 "CHKD",
    CheckChildren = 4007 "CHKN",
    // getEntry is an operation of a multiRead.
    GetEntry = 4008 "GENT",
}

impl Op {
    pub(crate) fn number(self) -> i32 {
        self as i32
    }

    pub(crate) fn is_extension(self) -> bool {
        matches!(
            self,
            Self::Enqueue
                | Self::GetPredecessor
                | Self::GetQueue
                | Self::Withdraw
                | Self::ForgetWatch
                | Self::CheckData
                | Self::CheckChildren
                | Self::GetEntry
        )
    }

    #[cfg_attr(not(feature = "server"), allow(dead_code, reason = "a server asks"))]
    pub(crate) fn is_read(self) -> bool {
        matches!(
            self,
            Self::Exists
                | Self::GetData
                | Self::GetAcl
                | Self::GetChildren
                | Self::GetChildren2
                | Self::GetEphemerals
                | Self::GetAllChildrenNumber
                | Self::MultiRead
                | Self::GetPredecessor
                | Self::GetQueue
                | Self::GetEntry
        )
    }

    pub(crate) fn is_create(self) -> bool {
        matches!(
            self,
            Self::Create | Self::Create2 | Self::CreateContainer | Self::CreateTtl
        )
    }
}

records! {
    Create<'a> {
        path: Path<'a>,
        data: Data<'a>,
        acl: Vec<AclRecord<'a>>,
        flags: i32,
    }

    CreateTtl<'a> {
        create: Create<'a>,
        ttl_ms: i64,
    }

    Versioned<'a> {
        path: Path<'a>,
        version: i32,
    }

    Read<'a> {
        path: Path<'a>,
        watch: bool,
    }

    SetData<'a> {
        path: Text<'a>,
        data: Data<'a>,
        version: i32,
    }

    Named<'a> {
        path: Path<'a>,
    }

    /// The server only echoes the path.
    Sync<'a> {
        path: Option<Text<'a>>,
    }

    SetAcl<'a> {
        path: Text<'a>,
        acl: Vec<AclRecord<'a>>,
        /// The expected version of the list, not of the data.
        version: i32,
    }

    Reconfig<'a> {
        joining: Option<Text<'a>>,
        leaving: Option<Text<'a>>,
        members: Option<Text<'a>>,
        config: i64,
    }

    Watches<'a> {
        path: Text<'a>,
        /// Kind of watch: 1 for children, 2 for data, 3 for any, 4 for persistent, 5 for persistent recursive.
        kind: i32,
    }

    Auth<'a> {
        kind: i32,
        scheme: Text<'a>,
        auth: Data<'a>,
    }

    SetWatches<'a> {
        /// The last zxid that the client has seen. Later changes fire the watches.
        relative_zxid: i64,
        data: NonNullList<Path<'a>>,
        exist: NonNullList<Path<'a>>,
        child: NonNullList<Path<'a>>,
    }

    SetWatches2<'a> {
        relative_zxid: i64,
        data: NonNullList<Path<'a>>,
        exist: NonNullList<Path<'a>>,
        child: NonNullList<Path<'a>>,
        persistent: NonNullList<Path<'a>>,
        recursive: NonNullList<Path<'a>>,
    }

    Sasl<'a> {
        token: Data<'a>,
    }

    Prefix<'a> {
        prefix: Text<'a>,
    }

    AddWatch<'a> {
        path: Text<'a>,
        /// Mode of the watch: 0 for persistent, 1 for persistent recursive.
        mode: i32,
    }
}

impl Request<'_> {
    #[cfg_attr(not(feature = "server"), allow(dead_code, reason = "a server asks"))]
    pub(crate) fn is_extension(&self) -> bool {
        match self {
            Self::Multi(ops) | Self::MultiRead(ops) => ops.iter().any(|op| op.op().is_extension()),
            other => other.op().is_extension(),
        }
    }
}

by_op! {
    Request {
        Create(it: Create<'a>) = Create,
        Delete(it: Versioned<'a>) = Delete,
        Exists(it: Read<'a>) = Exists,
        GetData(it: Read<'a>) = GetData,
        SetData(it: SetData<'a>) = SetData,
        GetAcl(it: Named<'a>) = GetAcl,
        SetAcl(it: SetAcl<'a>) = SetAcl,
        GetChildren(it: Read<'a>) = GetChildren,
        Sync(it: Sync<'a>) = Sync,
        GetChildren2(it: Read<'a>) = GetChildren2,
        Check(it: Versioned<'a>) = Check,
        Multi(ops: Vec<MultiOp<'a>>) = Multi,
        Create2(it: Create<'a>) = Create2,
        Reconfig(it: Reconfig<'a>) = Reconfig,
        CheckWatches(it: Watches<'a>) = CheckWatches,
        RemoveWatches(it: Watches<'a>) = RemoveWatches,
        CreateContainer(it: Create<'a>) = CreateContainer,
        CreateTtl(it: CreateTtl<'a>) = CreateTtl,
        MultiRead(ops: Vec<MultiOp<'a>>) = MultiRead,
        Auth(it: Auth<'a>) = Auth,
        SetWatches(it: SetWatches<'a>) = SetWatches,
        Sasl(it: Sasl<'a>) = Sasl,
        GetEphemerals(it: Prefix<'a>) = GetEphemerals,
        GetAllChildrenNumber(it: Named<'a>) = GetAllChildrenNumber,
        SetWatches2(it: SetWatches2<'a>) = SetWatches2,
        AddWatch(it: AddWatch<'a>) = AddWatch,
        Enqueue(it: Enqueue<'a>) = Enqueue,
        GetPredecessor(it: GetPredecessor<'a>) = GetPredecessor,
        GetQueue(it: GetQueue<'a>) = GetQueue,
        Withdraw(it: Named<'a>) = Withdraw,
        ForgetWatch(it: ForgetWatch) = ForgetWatch,
        CheckData(it: CheckData<'a>) = CheckData,
        CheckChildren(it: CheckChildren<'a>) = CheckChildren,
        GetEntry(it: Read<'a>) = GetEntry,
        ;
        Ping = Ping,
        WhoAmI = WhoAmI,
        CloseSession = CloseSession,
    }
}

impl Request<'_> {
    /// Returns true for a multi that contains a read, and for a multiRead that contains a write. We refuse both,
    /// because a multi fails as a whole, while the operations of a multiRead fail separately.
    fn mixes_reads_and_writes(&self) -> bool {
        match self {
            Self::Multi(ops) => ops.iter().any(|op| op.op().is_read()),
            Self::MultiRead(ops) => ops.iter().any(|op| !op.op().is_read()),
            _ => false,
        }
    }

    pub(crate) fn put_with_header(&self, xid: i32, to: &mut Vec<u8>) {
        let op = self.op().number();
        RequestHeader { xid, op }.put(to);
        self.put(to);
    }
}

pub(crate) const UNKNOWN_ZXID: i64 = -1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Incoming<'a> {
    pub(crate) xid: i32,
    pub(crate) request: Request<'a>,
}

/// Treatment of a frame that is not a well-formed request, as in ZooKeeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The record is malformed. Answer with the error after the replies to earlier requests, and keep the connection.
    Answer { xid: i32, code: Code },
    /// The operation is unknown. Answer with the error and [`UNKNOWN_ZXID`], then close the connection.
    AnswerAndClose { xid: i32, code: Code },
    /// The header is incomplete or a proof of identity is malformed. Close the connection.
    Close,
}

impl<'a> Incoming<'a> {
    /// Reads any frame after the handshake.
    pub(crate) fn read(frame: &'a [u8]) -> Result<Self, Refused> {
        let mut from = Reader::new(frame);
        let RequestHeader { xid, op } = from.next().map_err(|_| Refused::Close)?;
        let op = Op::of(op).filter(|op| is_for_clients(*op));
        let op = op.ok_or(Refused::AnswerAndClose {
            xid,
            code: Code::Unimplemented,
        })?;
        match Request::read(op, &mut from) {
            Ok(request) if request.mixes_reads_and_writes() => Err(Refused::Answer {
                xid,
                code: Code::MarshallingError,
            }),
            Ok(request) => Ok(Self { xid, request }),
            // ZooKeeper reads the records of auth and sasl in its network layer, which closes the connection on a
            // malformed record. Its request processors read all other records, and answer a malformed record with an
            // error.
            Err(_) if matches!(op, Op::Auth | Op::Sasl) => Err(Refused::Close),
            Err(_) => Err(Refused::Answer {
                xid,
                code: Code::MarshallingError,
            }),
        }
    }
}

/// Returns false for a check, which exists only within a multi.
fn is_for_clients(op: Op) -> bool {
    op != Op::Check
}
