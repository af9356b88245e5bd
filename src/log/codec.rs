//! Codec of transactions and of the other records of a log.
//!
//! Integers are little-endian. A *varint* is a LEB128 number of at most ten bytes. Signed varints use zigzag encoding.
//! Text and data are a length (varint) followed by the bytes.
//!
//! Decoding is total. Every input yields a value or [`Malformed`], and no length field in the input makes us allocate
//! more than the size of the input.

use bytes::Bytes;

use crate::core::{End, NewNode, NodeKind, Txn, TxnOp};
use crate::model::acl::Acl;
use crate::model::data;
use crate::model::path::ZnodePath;
use crate::model::types::{AclEntry, SessionId, Zxid};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_le_bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(Malformed("it ends within a field"))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for only one bit of the number. Refuse further bits, because they would be lost.
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed("a number has more than 64 bits"))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        i32::try_from(self.signed()?).map_err(|_| Malformed("a number has more than 32 bits"))
    }

    /// Reads the length of a list. Each element takes at least one byte, so a count above the number of bytes left is
    /// refused before anything is allocated.
    pub(crate) fn count(&mut self) -> Result<usize, Malformed> {
        let count = self.varint()?;
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= self.left())
            .ok_or(Malformed("it ends within a list"))
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(Malformed("it ends within a field"))?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let count = self.count()?;
        self.take(count)
    }

    /// Copies the data of a znode, because a slice would keep the whole buffer alive.
    pub(crate) fn data(&mut self) -> Result<Bytes, Malformed> {
        // Check for null data first, because null and empty data both decode to a length of 0.
        let is_null = self.rest.starts_with(&NULL);
        let read = self.bytes()?;
        Ok(data::copy(if is_null { data::null() } else { read }))
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    pub(crate) fn path(&mut self) -> Result<ZnodePath, Malformed> {
        ZnodePath::new(self.text()?).map_err(|_| Malformed("invalid path"))
    }

    pub(crate) fn acl(&mut self) -> Result<Acl, Malformed> {
        let Some(count) = self.varint()?.checked_sub(1) else {
            return Ok(Acl::open());
        };
        let entries = (0..count).map(|_| self.acl_entry());
        Ok(Acl::new(entries.collect::<Result<Vec<_>, _>>()?))
    }

    fn acl_entry(&mut self) -> Result<AclEntry, Malformed> {
        Ok(AclEntry {
            permissions: u8::try_from(self.varint()?)
                .map_err(|_| Malformed("unknown permissions"))?,
            scheme: self.text()?.to_owned(),
            id: self.text()?.to_owned(),
        })
    }

    pub(crate) fn kind(&mut self) -> Result<NodeKind, Malformed> {
        Ok(match self.varint()? {
            0 => NodeKind::Persistent,
            1 => NodeKind::Ephemeral,
            2 => NodeKind::Container,
            3 => NodeKind::Ttl { ms: self.varint()? },
            _ => return Err(Malformed("unknown kind of znode")),
        })
    }
}

/// Null data: a length of 0 in two bytes instead of one. Older versions read it as empty data.
const NULL: [u8; 2] = [0x80, 0];

pub(crate) trait Put {
    fn put_varint(&mut self, value: u64);
    fn put_bytes(&mut self, bytes: &[u8]);

    fn put_data(&mut self, data: &[u8]);

    fn put_flag(&mut self, flag: bool) {
        self.put_varint(flag.into());
    }

    fn put_signed(&mut self, value: i64) {
        self.put_varint(((value << 1) ^ (value >> 63)) as u64);
    }

    fn put_path(&mut self, path: &ZnodePath) {
        self.put_bytes(path.as_str().as_bytes());
    }

    /// Appends 0 for the open list. For other lists, appends the number of entries plus 1, and then the entries.
    fn put_acl(&mut self, acl: &Acl) {
        let Some(entries) = acl.entries() else {
            return self.put_varint(0);
        };
        self.put_varint(entries.len() as u64 + 1);
        for entry in entries {
            self.put_varint(entry.permissions.into());
            self.put_bytes(entry.scheme.as_bytes());
            self.put_bytes(entry.id.as_bytes());
        }
    }

    fn put_kind(&mut self, kind: NodeKind) {
        match kind {
            NodeKind::Persistent => self.put_varint(0),
            NodeKind::Ephemeral => self.put_varint(1),
            NodeKind::Container => self.put_varint(2),
            NodeKind::Ttl { ms } => {
                self.put_varint(3);
                self.put_varint(ms);
            }
        }
    }
}

impl Put for Vec<u8> {
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn put_data(&mut self, data: &[u8]) {
        if data::is_null(data) {
            self.extend_from_slice(&NULL);
        } else {
            self.put_bytes(data);
        }
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_varint(bytes.len() as u64);
        self.extend_from_slice(bytes);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Txn(Txn),
    /// The log has reserved this epoch (`zxid >> 32`). No transaction has a zxid in a later epoch.
    Epoch(u32),
    LongestTimeout {
        ms: u64,
    },
    /// The store was closed cleanly. Any later record revokes this.
    Clean,
    /// The terms for sessions of other processes from this record on.
    SessionTerms {
        are_kept: bool,
        /// The longest timeout that these sessions may get, in milliseconds. 0 while the store is not served.
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

/// Appends a record. A transaction's zxid is written as the distance from `first`, which takes one byte in most cases.
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

pub(crate) fn read_record(reader: &mut Reader<'_>, first: Zxid) -> Result<Record, Malformed> {
    Ok(match reader.u8()? {
        TXN => Record::Txn(read_txn(reader, first)?),
        EPOCH => Record::Epoch(
            u32::try_from(reader.varint()?)
                .map_err(|_| Malformed("an epoch has more than 32 bits"))?,
        ),
        LONGEST_TIMEOUT => Record::LongestTimeout {
            ms: reader.varint()?,
        },
        CLEAN => Record::Clean,
        SESSION_TERMS => Record::SessionTerms {
            are_kept: reader.flag()?,
            allowed_ms: reader.varint()?,
        },
        _ => return Err(Malformed("unknown kind of record")),
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

/// Reads an operation other than a multi. A nested multi is malformed, so the recursion depth is bounded.
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
            _ => return Err(Malformed("unknown end of a session")),
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
        _ => return Err(Malformed("unknown kind of operation")),
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
