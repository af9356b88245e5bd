//! Records: transactions, and the few other things that a log keeps.

use super::{Malformed, Put, Reader};
use crate::core::{End, NewNode, Txn, TxnOp};
use crate::types::{SessionId, Zxid};

/// What a frame holds, one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Txn(Txn),
    /// No transaction has a zxid beyond the end of this epoch (`zxid >> 32`).
    Epoch(u32),
    /// The longest session timeout that any remote client was ever given.
    LongestTimeout {
        ms: u64,
    },
    /// The store was closed in order. Any later record takes that back.
    Clean,
    /// The terms on which sessions of other processes are served from here on.
    SessionTerms {
        /// All that is acknowledged to them is in the log, whatever ends the process.
        are_kept: bool,
        /// The longest timeout that they may be granted; 0 while the store is not served.
        allowed_ms: u64,
    },
}

const TXN: u8 = 1;
const EPOCH: u8 = 2;
const LONGEST_TIMEOUT: u8 = 3;
const CLEAN: u8 = 4;
const SESSION_TERMS: u8 = 5;

const OPEN_SESSION: u8 = 1;
const CLOSE_SESSION: u8 = 2;
const CREATE: u8 = 3;
const DELETE: u8 = 4;
const SET_DATA: u8 = 5;
const CHECK: u8 = 6;
const MULTI: u8 = 7;
const SET_ACL: u8 = 8;

/// Appends a record. The zxid of a transaction is written as its distance from `first`, which must
/// not be above it.
pub(crate) fn put_record(out: &mut Vec<u8>, record: &Record, first: Zxid) {
    match record {
        Record::Txn(txn) => put_txn(out, txn, first),
        Record::Epoch(epoch) => {
            out.push(EPOCH);
            out.put_varint((*epoch).into());
        }
        Record::LongestTimeout { ms } => {
            out.push(LONGEST_TIMEOUT);
            out.put_varint(*ms);
        }
        Record::Clean => out.push(CLEAN),
        Record::SessionTerms {
            are_kept,
            allowed_ms,
        } => {
            out.push(SESSION_TERMS);
            out.put_flag(*are_kept);
            out.put_varint(*allowed_ms);
        }
    }
}

/// [`put_record`] of a transaction that nobody needs to own for it.
pub(crate) fn put_txn(out: &mut Vec<u8>, txn: &Txn, first: Zxid) {
    out.push(TXN);
    out.put_varint(txn.zxid.0.wrapping_sub(first.0) as u64);
    out.put_signed(txn.unix_ms);
    out.extend_from_slice(&txn.session.0.to_le_bytes());
    put_op(out, &txn.op);
}

fn put_op(out: &mut Vec<u8>, op: &TxnOp) {
    match op {
        TxnOp::OpenSession {
            timeout_ms,
            password,
            is_local,
        } => {
            out.push(OPEN_SESSION);
            out.put_varint(*timeout_ms);
            out.extend_from_slice(password);
            out.put_flag(*is_local);
        }
        TxnOp::CloseSession(end) => out.extend_from_slice(&[
            CLOSE_SESSION,
            match end {
                End::Expired => 0,
                End::Closed => 1,
            },
        ]),
        TxnOp::Create(new) => put_create(out, new),
        TxnOp::Delete { path } => {
            out.push(DELETE);
            out.put_path(path);
        }
        TxnOp::SetData {
            path,
            data,
            version,
        } => {
            out.push(SET_DATA);
            out.put_path(path);
            out.put_data(data);
            out.put_signed((*version).into());
        }
        TxnOp::SetAcl {
            path,
            acl,
            aversion,
        } => {
            out.push(SET_ACL);
            out.put_path(path);
            out.put_acl(acl);
            out.put_signed((*aversion).into());
        }
        TxnOp::Check => out.push(CHECK),
        TxnOp::Multi(ops) => {
            out.push(MULTI);
            out.put_varint(ops.len() as u64);
            ops.iter().for_each(|op| put_op(out, op));
        }
    }
}

fn put_create(out: &mut Vec<u8>, new: &NewNode) {
    out.push(CREATE);
    out.put_path(&new.path);
    out.put_data(&new.data);
    out.put_acl(&new.acl);
    out.put_kind(new.kind);
    out.put_flag(new.sequence.is_some());
    if let Some(sequence) = new.sequence {
        out.put_signed(sequence);
    }
    out.put_signed(new.creates);
}

/// Takes a record; the counterpart of [`put_record`].
pub(crate) fn read_record(reader: &mut Reader<'_>, first: Zxid) -> Result<Record, Malformed> {
    Ok(match reader.u8()? {
        TXN => Record::Txn(read_txn(reader, first)?),
        EPOCH => Record::Epoch(
            u32::try_from(reader.varint()?).map_err(|_| Malformed("there is no such epoch"))?,
        ),
        LONGEST_TIMEOUT => Record::LongestTimeout {
            ms: reader.varint()?,
        },
        CLEAN => Record::Clean,
        SESSION_TERMS => Record::SessionTerms {
            are_kept: reader.flag()?,
            allowed_ms: reader.varint()?,
        },
        _ => return Err(Malformed("there is no such kind of record")),
    })
}

fn read_txn(reader: &mut Reader<'_>, first: Zxid) -> Result<Txn, Malformed> {
    let distance = reader.varint()?;
    Ok(Txn {
        zxid: i64::try_from(distance)
            .ok()
            .and_then(|distance| first.0.checked_add(distance))
            .map(Zxid)
            .ok_or(Malformed("a zxid has more than 63 bits"))?,
        unix_ms: reader.signed()?,
        session: SessionId(reader.i64()?),
        op: match reader.u8()? {
            MULTI => read_multi(reader)?,
            kind => read_op(kind, reader)?,
        },
    })
}

fn read_multi(reader: &mut Reader<'_>) -> Result<TxnOp, Malformed> {
    let ops = (0..reader.count()?).map(|_| {
        let kind = reader.u8()?;
        read_op(kind, reader)
    });
    Ok(TxnOp::Multi(ops.collect::<Result<_, _>>()?))
}

/// All but a multi: there is none within another.
fn read_op(kind: u8, reader: &mut Reader<'_>) -> Result<TxnOp, Malformed> {
    Ok(match kind {
        OPEN_SESSION => TxnOp::OpenSession {
            timeout_ms: reader.varint()?,
            password: reader.array()?,
            is_local: reader.flag()?,
        },
        CLOSE_SESSION => TxnOp::CloseSession(match reader.u8()? {
            0 => End::Expired,
            1 => End::Closed,
            _ => return Err(Malformed("there is no such end of a session")),
        }),
        CREATE => TxnOp::Create(read_create(reader)?),
        DELETE => TxnOp::Delete {
            path: reader.path()?,
        },
        SET_DATA => TxnOp::SetData {
            path: reader.path()?,
            data: reader.data()?,
            version: reader.i32()?,
        },
        SET_ACL => TxnOp::SetAcl {
            path: reader.path()?,
            acl: reader.acl()?,
            aversion: reader.i32()?,
        },
        CHECK => TxnOp::Check,
        _ => return Err(Malformed("there is no such kind of operation")),
    })
}

fn read_create(reader: &mut Reader<'_>) -> Result<NewNode, Malformed> {
    Ok(NewNode {
        path: reader.path()?,
        data: reader.data()?,
        acl: reader.acl()?,
        kind: reader.kind()?,
        sequence: match reader.flag()? {
            false => None,
            true => Some(reader.signed()?),
        },
        creates: reader.signed()?,
    })
}
