//! What a frame of a client is, whatever bytes it has.

use super::code::Code;
use super::connect::RequestHeader;
use super::jute::Reader;
use super::op::Op;
use super::request::Request;

/// The zxid in the answer to an operation that there is not.
pub(crate) const UNKNOWN_ZXID: i64 = -1;

/// A request that a server takes up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Incoming<'a> {
    /// Its number, for the reply.
    pub(crate) xid: i32,
    /// What it asks.
    pub(crate) request: Request<'a>,
}

/// What a server does with a frame that is no request it takes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It answers the error, in turn, with the zxid that any reply would have, and goes on: the record
    /// is malformed.
    Answer {
        /// The number of the reply.
        xid: i32,
        /// Its error.
        code: Code,
    },
    /// It answers the error at once, with [`UNKNOWN_ZXID`], and closes the connection: there is no such operation.
    AnswerAndClose {
        /// The number of the reply.
        xid: i32,
        /// Its error.
        code: Code,
    },
    /// It closes the connection: not even the header is there, or what should prove the client's
    /// identity is malformed.
    Close,
}

impl<'a> Incoming<'a> {
    /// Reads the frame of a request: any that follows the handshake.
    ///
    /// # Errors
    /// See [`Refused`].
    pub(crate) fn read(frame: &'a [u8]) -> Result<Self, Refused> {
        let mut from = Reader::new(frame);
        let RequestHeader { xid, op } = from.next().map_err(|_| Refused::Close)?;
        let op = Op::of(op).filter(|op| is_for_clients(*op));
        let op = op.ok_or(Refused::AnswerAndClose {
            xid,
            code: Code::Unimplemented,
        })?;
        match Request::read(op, &mut from) {
            Ok(request) => Ok(Self { xid, request }),
            Err(_) if matches!(op, Op::Auth | Op::Sasl) => Err(Refused::Close),
            Err(_) => Err(Refused::Answer {
                xid,
                code: Code::MarshallingError,
            }),
        }
    }
}

/// A check is for a multi alone: by itself it is no operation.
fn is_for_clients(op: Op) -> bool {
    op != Op::Check
}
