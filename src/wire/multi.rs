//! Bodies of multi and multiRead. A header precedes each operation, and an end header follows the last one.

use super::code::Code;
use super::extension::{CheckChildren, CheckData};
use super::frame::LENGTH_BYTES;
use super::jute::{Data, Jute, Malformed, Path, Reader, Text, put_count, records};
use super::request::Op;
use super::request::{Create, CreateTtl, Read, SetData, Versioned};
use super::stat::STAT_BYTES;
use crate::model::types::Stat;

records! {
    /// Header before each operation and each result.
    Header {
        /// Number of the operation. -1 before an error and in the end header.
        kind: i32,
        is_end: bool,
        /// -1 in requests and in the end header. In replies, 0 before a result, and the error's number before an error.
        err: i32,
    }
}

/// Size of an encoded header, in bytes.
const HEADER_BYTES: usize = 9;

impl Header {
    /// Header after the last operation or result, with the values of Java's `MultiHeader`.
    const END: Self = Self {
        kind: -1,
        is_end: true,
        err: -1,
    };
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "each is the operation of its name, with the record that it has"
)]
pub(crate) enum MultiOp<'a> {
    Create(Create<'a>),
    Create2(Create<'a>),
    CreateContainer(Create<'a>),
    CreateTtl(CreateTtl<'a>),
    Delete(Versioned<'a>),
    SetData(SetData<'a>),
    Check(Versioned<'a>),
    CheckData(CheckData<'a>),
    CheckChildren(CheckChildren<'a>),
    GetChildren(Read<'a>),
    GetData(Read<'a>),
    GetEntry(Read<'a>),
}

impl<'a> MultiOp<'a> {
    fn read(kind: i32, from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(match Op::of(kind) {
            Some(Op::Create) => Self::Create(from.next()?),
            Some(Op::Create2) => Self::Create2(from.next()?),
            Some(Op::CreateContainer) => Self::CreateContainer(from.next()?),
            Some(Op::CreateTtl) => Self::CreateTtl(from.next()?),
            Some(Op::Delete) => Self::Delete(from.next()?),
            Some(Op::SetData) => Self::SetData(from.next()?),
            Some(Op::Check) => Self::Check(from.next()?),
            Some(Op::CheckData) => Self::CheckData(from.next()?),
            Some(Op::CheckChildren) => Self::CheckChildren(from.next()?),
            Some(Op::GetChildren) => Self::GetChildren(from.next()?),
            Some(Op::GetData) => Self::GetData(from.next()?),
            Some(Op::GetEntry) => Self::GetEntry(from.next()?),
            _ => return Err(Malformed("a multi has no such operation")),
        })
    }

    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Create(it) | Self::Create2(it) | Self::CreateContainer(it) => it.put(to),
            Self::CreateTtl(it) => it.put(to),
            Self::Delete(it) | Self::Check(it) => it.put(to),
            Self::SetData(it) => it.put(to),
            Self::CheckData(it) => it.put(to),
            Self::CheckChildren(it) => it.put(to),
            Self::GetChildren(it) | Self::GetData(it) | Self::GetEntry(it) => it.put(to),
        }
    }

    pub(crate) fn op(&self) -> Op {
        match self {
            Self::Create(_) => Op::Create,
            Self::Create2(_) => Op::Create2,
            Self::CreateContainer(_) => Op::CreateContainer,
            Self::CreateTtl(_) => Op::CreateTtl,
            Self::Delete(_) => Op::Delete,
            Self::SetData(_) => Op::SetData,
            Self::Check(_) => Op::Check,
            Self::CheckData(_) => Op::CheckData,
            Self::CheckChildren(_) => Op::CheckChildren,
            Self::GetChildren(_) => Op::GetChildren,
            Self::GetData(_) => Op::GetData,
            Self::GetEntry(_) => Op::GetEntry,
        }
    }

    fn is_read(&self) -> bool {
        matches!(
            self,
            Self::GetChildren(_) | Self::GetData(_) | Self::GetEntry(_)
        )
    }
}

/// Reads the operations of a multi and refuses reads.
pub(super) fn read_writes<'a>(from: &mut Reader<'a>) -> Result<Vec<MultiOp<'a>>, Malformed> {
    read_ops(from, false)
}

/// Reads the operations of a multiRead and refuses writes.
pub(super) fn read_reads<'a>(from: &mut Reader<'a>) -> Result<Vec<MultiOp<'a>>, Malformed> {
    read_ops(from, true)
}

fn read_ops<'a>(from: &mut Reader<'a>, reads: bool) -> Result<Vec<MultiOp<'a>>, Malformed> {
    let mut ops = Vec::new();
    loop {
        let header: Header = from.next()?;
        // Check only the flag, because clients differ in the other fields of the end header. Java sends -1 and
        // go-zookeeper 0.
        if header.is_end {
            return Ok(ops);
        }
        let op = MultiOp::read(header.kind, from)?;
        // Refuse a mixture of reads and writes. A multi fails as a whole, but the operations of a multiRead fail
        // separately (rule 16).
        if op.is_read() != reads {
            return Err(Malformed("a multi mixes reads and writes"));
        }
        ops.push(op);
    }
}

pub(super) fn put_ops(ops: &[MultiOp<'_>], to: &mut Vec<u8>) {
    for op in ops {
        let header = Header {
            kind: op.op().number(),
            is_end: false,
            err: -1,
        };
        header.put(to);
        op.put(to);
    }
    Header::END.put(to);
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "each is the result of the operation of its name"
)]
pub(crate) enum MultiResult<'a> {
    Created(Path<'a>),
    /// Result of create2, createContainer or createTTL. Servers before 3.9 send [`Created`](Self::Created) for these
    /// operations, too.
    Created2(Path<'a>, Stat),
    Deleted,
    Set(Stat),
    Checked,
    Children(Vec<Text<'a>>),
    Data(Data<'a>, Stat),
    /// Data and Stat of an entry, and the time of its grant in milliseconds, or -1 if the time is unknown.
    Entry(Data<'a>, Stat, i64),
    /// Number of an error [`Code`]. In a failed multi, each operation has this result, with 0 before the failed
    /// operation and -2 after it.
    Failed(i32),
}

impl<'a> MultiResult<'a> {
    fn read(kind: i32, from: &mut Reader<'a>) -> Result<Self, Malformed> {
        // The header and the record both contain the code. Clients read the record.
        if kind == Header::END.kind {
            return from.next().map(Self::Failed);
        }
        Ok(match Op::of(kind) {
            Some(Op::Create) => Self::Created(from.next()?),
            Some(Op::Create2) => Self::Created2(from.next()?, from.next()?),
            Some(Op::Delete) => Self::Deleted,
            Some(Op::SetData) => Self::Set(from.next()?),
            Some(Op::Check) => Self::Checked,
            Some(Op::GetChildren) => Self::Children(from.next()?),
            Some(Op::GetData) => Self::Data(from.next()?, from.next()?),
            Some(Op::GetEntry) => Self::Entry(from.next()?, from.next()?, from.next()?),
            _ => return Err(Malformed("a multi has no such result")),
        })
    }

    fn put(&self, to: &mut Vec<u8>) {
        self.header().put(to);
        match self {
            Self::Created(path) => path.put(to),
            Self::Created2(path, stat) => {
                path.put(to);
                stat.put(to);
            }
            Self::Deleted | Self::Checked => {}
            Self::Set(stat) => stat.put(to),
            Self::Children(names) => {
                put_count(names.len(), to);
                names.iter().for_each(|name| name.put(to));
            }
            Self::Data(data, stat) => {
                data.put(to);
                stat.put(to);
            }
            Self::Entry(data, stat, granted_at_ms) => {
                data.put(to);
                stat.put(to);
                granted_at_ms.put(to);
            }
            Self::Failed(err) => err.put(to),
        }
    }

    fn header(&self) -> Header {
        let (op, err) = match self {
            Self::Created(_) => (Op::Create, 0),
            Self::Created2(..) => (Op::Create2, 0),
            Self::Deleted => (Op::Delete, 0),
            Self::Set(_) => (Op::SetData, 0),
            Self::Checked => (Op::Check, 0),
            Self::Children(_) => (Op::GetChildren, 0),
            Self::Data(..) => (Op::GetData, 0),
            Self::Entry(..) => (Op::GetEntry, 0),
            Self::Failed(err) => {
                return Header {
                    err: *err,
                    is_end: false,
                    ..Header::END
                };
            }
        };
        Header {
            kind: op.number(),
            is_end: false,
            err,
        }
    }
}

/// Returns the results of a multi of `count` operations that failed at `index`.
pub(crate) fn failed<'a>(count: usize, index: usize, code: Code) -> Vec<MultiResult<'a>> {
    let result = |at: usize| match at.cmp(&index) {
        std::cmp::Ordering::Less => Code::Ok,
        std::cmp::Ordering::Equal => code,
        std::cmp::Ordering::Greater => Code::RuntimeInconsistency,
    };
    let number = |at| MultiResult::Failed(result(at).number());
    (0..count).map(number).collect()
}

pub(super) fn read_results<'a>(from: &mut Reader<'a>) -> Result<Vec<MultiResult<'a>>, Malformed> {
    let mut results = Vec::new();
    loop {
        let header: Header = from.next()?;
        if header.is_end {
            return Ok(results);
        }
        results.push(MultiResult::read(header.kind, from)?);
    }
}

/// Returns the number of bytes that [`put_results`] appends.
pub(super) fn results_bytes(results: &[MultiResult<'_>]) -> usize {
    let bytes = |result: &MultiResult<'_>| {
        HEADER_BYTES
            + match result {
                MultiResult::Created(path) => LENGTH_BYTES + path.0.len(),
                MultiResult::Created2(path, _) => LENGTH_BYTES + path.0.len() + STAT_BYTES,
                MultiResult::Deleted | MultiResult::Checked => 0,
                MultiResult::Set(_) => STAT_BYTES,
                MultiResult::Children(names) => {
                    let names = names.iter().map(|name| LENGTH_BYTES + name.len());
                    LENGTH_BYTES + names.sum::<usize>()
                }
                MultiResult::Data(data, _) => LENGTH_BYTES + data.len() + STAT_BYTES,
                MultiResult::Entry(data, ..) => LENGTH_BYTES + data.len() + STAT_BYTES + 8,
                MultiResult::Failed(_) => 4,
            }
    };
    results.iter().map(bytes).sum::<usize>() + HEADER_BYTES
}

pub(super) fn put_results(results: &[MultiResult<'_>], to: &mut Vec<u8>) {
    results.iter().for_each(|result| result.put(to));
    Header::END.put(to);
}
