//! Bodies of multi and multiRead. A header precedes each operation, and an end header follows the last one.

use super::code::Code;
use super::extension::{CheckChildren, CheckData};
use super::jute::{Jute, Malformed, Reader, by_op, records};
use super::request::{Create, CreateTtl, Op, Read, Request, SetData, Versioned};
use super::response::Response;

records! {
    Header {
        /// Number of the operation, or -1 before an error and in the end header.
        kind: i32,
        is_end: bool,
        /// In a reply, the number of the error that follows, or 0 before a result. -1 in requests and in the end
        /// header.
        err: i32,
    }
}

impl Header {
    const END: Self = Self {
        kind: -1,
        is_end: true,
        err: -1,
    };

    fn new(kind: i32, err: i32) -> Self {
        Self {
            kind,
            is_end: false,
            err,
        }
    }
}

by_op! {
    MultiOp {
        Create(it: Create<'a>) = Create,
        Create2(it: Create<'a>) = Create2,
        CreateContainer(it: Create<'a>) = CreateContainer,
        CreateTtl(it: CreateTtl<'a>) = CreateTtl,
        Delete(it: Versioned<'a>) = Delete,
        SetData(it: SetData<'a>) = SetData,
        Check(it: Versioned<'a>) = Check,
        CheckData(it: CheckData<'a>) = CheckData,
        CheckChildren(it: CheckChildren<'a>) = CheckChildren,
        GetChildren(it: Read<'a>) = GetChildren,
        GetData(it: Read<'a>) = GetData,
        GetEntry(it: Read<'a>) = GetEntry,
        ;
    }
}

impl<'a> From<MultiOp<'a>> for Request<'a> {
    fn from(op: MultiOp<'a>) -> Self {
        match op {
            MultiOp::Create(it) => Self::Create(it),
            MultiOp::Create2(it) => Self::Create2(it),
            MultiOp::CreateContainer(it) => Self::CreateContainer(it),
            MultiOp::CreateTtl(it) => Self::CreateTtl(it),
            MultiOp::Delete(it) => Self::Delete(it),
            MultiOp::SetData(it) => Self::SetData(it),
            MultiOp::Check(it) => Self::Check(it),
            MultiOp::CheckData(it) => Self::CheckData(it),
            MultiOp::CheckChildren(it) => Self::CheckChildren(it),
            MultiOp::GetChildren(it) => Self::GetChildren(it),
            MultiOp::GetData(it) => Self::GetData(it),
            MultiOp::GetEntry(it) => Self::GetEntry(it),
        }
    }
}

/// Result of an operation, or the number of an error. In a failed multi, every operation has an error: 0 before the
/// failed operation and -2 after it.
///
/// Servers before 3.9 answer create2, createContainer and createTTL with the result of a create.
pub(crate) type MultiResult<'a> = Result<(Op, Response<'a>), i32>;

/// Operations whose results a reply may contain. Without this list, a server could nest multis until our stack
/// overflows.
const RESULTS: [Op; 8] = [
    Op::Create,
    Op::Create2,
    Op::Delete,
    Op::SetData,
    Op::Check,
    Op::GetChildren,
    Op::GetData,
    Op::GetEntry,
];

fn next_kind(from: &mut Reader<'_>) -> Result<Option<i32>, Malformed> {
    let header: Header = from.next()?;
    // Check only the flag, because clients differ in the other fields of the end header. Java sends -1 and go-zookeeper
    // sends 0.
    Ok((!header.is_end).then_some(header.kind))
}

impl<'a> Jute<'a> for Vec<MultiOp<'a>> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut ops = Vec::new();
        while let Some(kind) = next_kind(from)? {
            let op = Op::of(kind).ok_or(Malformed("an unknown operation"))?;
            ops.push(MultiOp::read(op, from)?);
        }
        Ok(ops)
    }

    fn put(&self, to: &mut Vec<u8>) {
        for op in self {
            Header::new(op.op().number(), -1).put(to);
            op.put(to);
        }
        Header::END.put(to);
    }

    fn bytes(&self) -> usize {
        let op = |op: &MultiOp<'_>| Header::END.bytes() + op.bytes();
        self.iter().map(op).sum::<usize>() + Header::END.bytes()
    }
}

impl<'a> Jute<'a> for Vec<MultiResult<'a>> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut results = Vec::new();
        while let Some(kind) = next_kind(from)? {
            results.push(match Op::of(kind).filter(|op| RESULTS.contains(op)) {
                Some(op) => Ok((op, Response::read(op, from)?)),
                None if kind == Header::END.kind => Err(from.next()?),
                None => return Err(Malformed("a multi has no such result")),
            });
        }
        Ok(results)
    }

    fn put(&self, to: &mut Vec<u8>) {
        for result in self {
            match result {
                Ok((op, response)) => {
                    Header::new(op.number(), 0).put(to);
                    response.put(to);
                }
                Err(err) => {
                    Header::new(Header::END.kind, *err).put(to);
                    err.put(to);
                }
            }
        }
        Header::END.put(to);
    }

    fn bytes(&self) -> usize {
        let record = |result: &MultiResult<'_>| match result {
            Ok((_, response)) => response.bytes(),
            Err(err) => err.bytes(),
        };
        let result = |result| Header::END.bytes() + record(result);
        self.iter().map(result).sum::<usize>() + Header::END.bytes()
    }
}

pub(crate) fn failed<'a>(count: usize, index: usize, code: Code) -> Vec<MultiResult<'a>> {
    let code = |at: usize| match at.cmp(&index) {
        std::cmp::Ordering::Less => Code::Ok,
        std::cmp::Ordering::Equal => code,
        std::cmp::Ordering::Greater => Code::RuntimeInconsistency,
    };
    (0..count).map(|at| Err(code(at).number())).collect()
}
