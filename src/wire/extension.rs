//! Lockkeeper's own records, for lock queues and the events that hand over a lock.
//!
//! Only connections that agreed to the extension in the handshake ([`EXTENSION`](super::EXTENSION)) use these records.
//! `docs/protocol.md` specifies each byte.

use super::code::Code;
use super::connect::{ReplyHeader, xid};
use super::jute::{Data, Jute, Malformed, Path, Reader, Text, put_count, records};
use super::multi::MultiOp;
use super::request::Op;
use super::stat::AclRecord;
use crate::model::protocol::Blockers;
use crate::model::watch::DeleteReason;

records! {
    Enqueue<'a> {
        parent: Path<'a>,
        name: Text<'a>,
        data: Data<'a>,
        acl: Vec<AclRecord<'a>>,
        blockers: BlockersRecord,
        count: bool,
        /// Data of the queue's znode, which the server creates if it is missing. If this is null, the queue must exist.
        queue_data: Option<Data<'a>>,
        conditions: Conditions<'a>,
    }

    GetPredecessor<'a> {
        entry: Path<'a>,
        blockers: BlockersRecord,
        count: bool,
        conditions: Conditions<'a>,
    }

    GetQueue<'a> {
        parent: Path<'a>,
        /// Maximum number of names, or 0 for all names.
        limit: i32,
    }

    ForgetWatch {
        watch: i64,
    }

    CheckData<'a> {
        path: Path<'a>,
        data: Data<'a>,
    }

    CheckChildren<'a> {
        path: Path<'a>,
        /// Maximum number of children. A missing znode counts as a znode without children.
        limit: i32,
    }

    /// Event that a predecessor has left its queue. It follows a header with the xid [`xid::DEPARTURE`].
    Departure {
        /// Number of the watch. The number also identifies the waiting entry, whose request armed the watch.
        watch: i64,
        /// True if, at the end of the transaction in which the predecessor left, the waiting entry exists, belongs to
        /// this session and is not blocked. The entry then holds the lock.
        clear: bool,
        reason: i32,
    }
}

/// Predecessor of an entry: the nearest entry ahead that blocks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ahead<'a> {
    Clear,
    Blocked {
        by: Path<'a>,
        watch: i64,
        /// Number of all entries ahead, or -1 if the request did not ask for this number.
        count: i32,
    },
    Gone,
    Listed(Vec<Text<'a>>),
    /// The server did not look for the predecessor, so the client has to request a list.
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

    fn bytes(&self) -> usize {
        4 + match self {
            Self::Clear | Self::Gone | Self::Unknown => 0,
            Self::Blocked { by, watch, count } => by.bytes() + watch.bytes() + count.bytes(),
            Self::Listed(names) => names.bytes(),
        }
    }
}

/// The entries ahead that block an entry: 0 for all entries, 1 for exclusive entries only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockersRecord(pub(crate) i32);

/// The number that only clients of version 3 send, followed by a limit and a zxid. It means that all entries ahead and
/// a semaphore's leases block the entry. We read it as 0, because these clients check the leases themselves once no
/// entry is ahead.
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

    fn bytes(&self) -> usize {
        self.0.bytes()
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
    /// `BadArguments` for a number that only a later version defines.
    fn try_from(record: BlockersRecord) -> Result<Self, Code> {
        match record.0 {
            0 => Ok(Self::All),
            1 => Ok(Self::Exclusive),
            _ => Err(Code::BadArguments),
        }
    }
}

/// Conditions that an entry waits for, in the last field of a request. The field is absent if there are no conditions,
/// and in version 3 of the extension.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conditions<'a>(pub(crate) Vec<MultiOp<'a>>);

impl<'a> Jute<'a> for Conditions<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let count = match from.is_empty() {
            true => 0,
            false => from.next::<i32>()?,
        };
        let mut conditions = Vec::new();
        for _ in 0..count {
            let op = Op::of(from.next()?);
            let op = op.filter(|op| matches!(op, Op::CheckData | Op::CheckChildren));
            let op = op.ok_or(Malformed("an unknown kind of condition"))?;
            conditions.push(MultiOp::read(op, from)?);
        }
        Ok(Self(conditions))
    }

    fn put(&self, to: &mut Vec<u8>) {
        if !self.0.is_empty() {
            put_count(self.0.len(), to);
        }
        for condition in &self.0 {
            condition.op().number().put(to);
            condition.put(to);
        }
    }

    fn bytes(&self) -> usize {
        let count = if self.0.is_empty() { 0 } else { 4 };
        let condition = |condition: &MultiOp<'_>| 4 + condition.bytes();
        count + self.0.iter().map(condition).sum::<usize>()
    }
}

pub(super) fn reason_number(reason: DeleteReason) -> i32 {
    match reason {
        DeleteReason::Unknown => 0,
        DeleteReason::Released => 1,
        DeleteReason::Died => 2,
        DeleteReason::Removed => 3,
    }
}

/// Returns the reason with this number, or `Unknown` for a number that only a later version defines.
pub(crate) fn reason(number: i32) -> DeleteReason {
    match number {
        1 => DeleteReason::Released,
        2 => DeleteReason::Died,
        3 => DeleteReason::Removed,
        _ => DeleteReason::Unknown,
    }
}

pub(crate) fn put_departure(departure: &Departure, zxid: i64, to: &mut Vec<u8>) {
    ReplyHeader::new(xid::DEPARTURE, zxid, Code::Ok).put(to);
    departure.put(to);
}
