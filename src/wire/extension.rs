//! Lockkeeper's own records: of queues of locks, and of the events by which a server passes a lock on.
//!
//! They are spoken on connections that have agreed on them in the handshake ([`EXTENSION`](super::EXTENSION)), beside
//! all of ZooKeeper's. `docs/protocol.md` describes them by the byte.

use super::code::Code;
use super::connect::{ReplyHeader, xid};
use super::frame::LENGTH_BYTES;
use super::jute::{Data, Jute, Malformed, Path, Reader, Text, records};
use super::request::Op;
use super::stat::AclRecord;
use crate::model::protocol::Blockers;
use crate::model::watch::DeleteReason;

records! {
    /// Of enqueue: creates an ephemeral sequential znode, and looks for its predecessor.
    Enqueue<'a> {
        /// The queue.
        parent: Path<'a>,
        /// The entry's name, without the number.
        name: Text<'a>,
        data: Data<'a>,
        acl: Vec<AclRecord<'a>>,
        blockers: BlockersRecord,
        /// True to count the entries ahead.
        count: bool,
        /// Data of the queue, which is created if it is missing; null: it must exist.
        queue_data: Option<Data<'a>>,
        conditions: Conditions<'a>,
    }

    /// Of getPredecessor.
    GetPredecessor<'a> {
        entry: Path<'a>,
        blockers: BlockersRecord,
        count: bool,
        conditions: Conditions<'a>,
    }

    /// Of getQueue.
    GetQueue<'a> {
        parent: Path<'a>,
        /// Number of names at most; 0: all.
        limit: i32,
    }

    /// Of forgetWatch: a watch on a predecessor whose waiter is gone.
    ForgetWatch {
        /// The watch's number, from [`Ahead::Blocked`].
        watch: i64,
    }

    /// Of checkData, in a multi or of an entry that waits.
    CheckData<'a> {
        path: Path<'a>,
        /// The data that the znode must have.
        data: Data<'a>,
    }

    /// Of checkChildren, in a multi or of an entry that waits.
    CheckChildren<'a> {
        path: Path<'a>,
        /// Number of children at most. A missing znode has none.
        limit: i32,
    }

    /// The departure of a predecessor, after a header with the xid [`xid::DEPARTURE`].
    Departure {
        /// The watch's number. It names the waiting entry, too, which is that of the request that armed it.
        watch: i64,
        /// True if the waiting entry exists, is this session's, and nothing ahead blocks it at the end of the
        /// transaction: then it holds.
        clear: bool,
        /// See [`reason`].
        reason: i32,
    }
}

/// The nearest entry ahead that blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ahead<'a> {
    /// None.
    Clear,
    Blocked {
        by: Path<'a>,
        /// Number of the watch on its departure, unique on the server.
        watch: i64,
        /// Number of all entries ahead; -1 if it was not asked for.
        count: i32,
    },
    /// The entry itself is gone.
    Gone,
    /// All children of the parent, for the client to sort.
    Listed(Vec<Text<'a>>),
    /// Only a list can tell.
    Unknown,
}

impl<'a> Jute<'a> for Ahead<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(match from.next::<i32>()? {
            0 => Self::Clear,
            1 => Self::Blocked {
                by: from.next()?,
                watch: from.next()?,
                count: from.next()?,
            },
            2 => Self::Gone,
            3 => Self::Listed(from.next()?),
            4 => Self::Unknown,
            _ => return Err(Malformed("an unknown kind of predecessor")),
        })
    }

    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Clear => 0_i32.put(to),
            Self::Blocked { by, watch, count } => {
                1_i32.put(to);
                by.put(to);
                watch.put(to);
                count.put(to);
            }
            Self::Gone => 2_i32.put(to),
            Self::Listed(names) => {
                3_i32.put(to);
                names.put(to);
            }
            Self::Unknown => 4_i32.put(to),
        }
    }
}

impl Ahead<'_> {
    /// Returns the size of the record, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let text = |text: &Text<'_>| LENGTH_BYTES + text.len();
        4 + match self {
            Self::Clear | Self::Gone | Self::Unknown => 0,
            Self::Blocked { by, .. } => text(&by.0) + 8 + 4,
            Self::Listed(names) => LENGTH_BYTES + names.iter().map(text).sum::<usize>(),
        }
    }
}

/// The entries ahead that block, by number: 0, all; 1, the exclusive ones; any other is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockersRecord(pub(crate) i32);

/// Of version 3: all of them, and the leases of a semaphore, by a limit and a zxid. Read as all of them: such a client
/// checks the leases itself when its turn comes.
const BLOCKERS_WITH_LEASES: i32 = 2;

impl<'a> Jute<'a> for BlockersRecord {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(match from.next()? {
            BLOCKERS_WITH_LEASES => {
                let (_limit, _zxid) = (from.next::<i32>()?, from.next::<i64>()?);
                Blockers::All.into()
            }
            number => Self(number),
        })
    }

    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }
}

impl From<Blockers> for BlockersRecord {
    fn from(blockers: Blockers) -> Self {
        Self(match blockers {
            Blockers::All => 0,
            Blockers::Exclusive => 1,
        })
    }
}

impl TryFrom<BlockersRecord> for Blockers {
    type Error = Code;

    /// # Errors
    /// `BadArguments` for blockers of a later version.
    fn try_from(record: BlockersRecord) -> Result<Self, Code> {
        match record.0 {
            0 => Ok(Self::All),
            1 => Ok(Self::Exclusive),
            _ => Err(Code::BadArguments),
        }
    }
}

/// The conditions that an entry waits for. The last field of its request, which is left out where there are none, and of
/// version 3.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conditions<'a>(pub(crate) Vec<ConditionRecord<'a>>);

impl<'a> Jute<'a> for Conditions<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Self(match from.is_empty() {
            true => Vec::new(),
            false => from.next()?,
        }))
    }

    fn put(&self, to: &mut Vec<u8>) {
        if !self.0.is_empty() {
            self.0.put(to);
        }
    }
}

/// One of them: the number of its operation, and its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConditionRecord<'a> {
    Data(CheckData<'a>),
    Children(CheckChildren<'a>),
}

impl<'a> Jute<'a> for ConditionRecord<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        match Op::of(from.next()?) {
            Some(Op::CheckData) => from.next().map(Self::Data),
            Some(Op::CheckChildren) => from.next().map(Self::Children),
            _ => Err(Malformed("an unknown kind of condition")),
        }
    }

    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Data(record) => {
                Op::CheckData.number().put(to);
                record.put(to);
            }
            Self::Children(record) => {
                Op::CheckChildren.number().put(to);
                record.put(to);
            }
        }
    }
}

/// Returns the number of the way in which an entry left.
pub(super) fn reason_number(reason: DeleteReason) -> i32 {
    match reason {
        DeleteReason::Unknown => 0,
        DeleteReason::Released => 1,
        DeleteReason::Died => 2,
        DeleteReason::Removed => 3,
    }
}

/// Returns the way of a number; unknown for one of a later server.
pub(crate) fn reason(number: i32) -> DeleteReason {
    match number {
        1 => DeleteReason::Released,
        2 => DeleteReason::Died,
        3 => DeleteReason::Removed,
        _ => DeleteReason::Unknown,
    }
}

/// Appends the body of the frame of a departure.
pub(crate) fn put_departure(departure: &Departure, zxid: i64, to: &mut Vec<u8>) {
    ReplyHeader::new(xid::DEPARTURE, zxid, Code::Ok).put(to);
    departure.put(to);
}
