//! The records of a snapshot.
//!
//! A znode's path and times are encoded as the difference from the previous znode in the same chunk, because the znodes
//! of a queue differ little. The first znode of a chunk is complete, so each chunk can be decoded separately.

use super::super::codec::{Malformed, Put, Reader};
use super::super::recovery::{Completeness, Facts};
use crate::core::{NodeImage, NodeKind, SessionImage};
use crate::model::path::ZnodePath;
use crate::model::types::{SessionId, Zxid};

const SESSION: u8 = 1;
const NODE: u8 = 2;
const FACTS_OF_FORMAT_1: u8 = 3;
const FACTS: u8 = 4;
const END: u8 = 9;

/// The order is: facts, sessions, znodes (parents before children), end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Facts { facts: Facts, counts: Counts },
    Session(SessionImage),
    Node(NodeImage),
    End(Counts),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sessions: u64,
    pub(crate) nodes: u64,
}

#[derive(Debug, Default)]
pub(super) struct DeltaBase {
    path: String,
    czxid: i64,
    ctime: i64,
}

impl DeltaBase {
    pub(super) fn reset(&mut self) {
        self.path.clear();
        (self.czxid, self.ctime) = (0, 0);
    }

    fn set(&mut self, image: &NodeImage) {
        (self.czxid, self.ctime) = (image.czxid.0, image.ctime);
    }
}

pub(super) fn put_facts(out: &mut Vec<u8>, facts: &Facts, counts: Counts) {
    out.push(FACTS);
    out.put_varint(facts.longest_timeout_ms);
    out.put_flag(facts.is_clean);
    out.push(match facts.completeness {
        Completeness::Unknown => 0,
        Completeness::Partial => 1,
        Completeness::Complete => 2,
        Completeness::Restored => 3,
    });
    out.put_varint(
        facts
            .allowed_timeout_ms
            .map_or(0, |ms| ms.saturating_add(1)),
    );
    put_counts(out, counts);
}

pub(super) fn put_end(out: &mut Vec<u8>, counts: Counts) {
    out.push(END);
    put_counts(out, counts);
}

fn put_counts(out: &mut Vec<u8>, counts: Counts) {
    out.put_varint(counts.sessions);
    out.put_varint(counts.nodes);
}

pub(super) fn put_session(out: &mut Vec<u8>, session: &SessionImage) {
    out.push(SESSION);
    out.extend_from_slice(&session.id.0.to_le_bytes());
    out.extend_from_slice(&session.password);
    out.put_varint(session.timeout_ms);
    out.put_flag(session.is_local);
}

pub(super) fn put_node(out: &mut Vec<u8>, node: &NodeImage, before: &mut DeltaBase) {
    out.push(NODE);
    put_path(out, node.path.as_str(), before);
    out.put_kind(node.kind);
    if node.kind == NodeKind::Ephemeral {
        out.extend_from_slice(&node.owner.0.to_le_bytes());
    }
    let czxid = node.czxid.0;
    out.put_signed(czxid.wrapping_sub(before.czxid));
    out.put_signed(node.mzxid.0.wrapping_sub(czxid));
    out.put_signed(node.pzxid.0.wrapping_sub(czxid));
    out.put_signed(node.ctime.wrapping_sub(before.ctime));
    out.put_signed(node.mtime.wrapping_sub(node.ctime));
    out.put_signed(node.version.into());
    out.put_signed(node.aversion.into());
    out.put_signed(node.creates);
    out.put_flag(node.queue_key.is_some());
    if let Some((number, creates)) = node.queue_key {
        out.put_signed(number);
        out.put_signed(creates);
    }
    out.put_acl(&node.acl);
    out.put_data(&node.data);
    before.set(node);
}

fn put_path(out: &mut Vec<u8>, path: &str, before: &mut DeltaBase) {
    let pairs = path.bytes().zip(before.path.bytes());
    let mut shared = pairs.take_while(|(one, other)| one == other).count();
    while !path.is_char_boundary(shared) {
        shared -= 1;
    }
    let rest = &path[shared..];
    out.put_varint(shared as u64);
    out.put_bytes(rest.as_bytes());
    // `shared` is a character boundary of the previous path too, because both paths are equal up to that position.
    before.path.truncate(shared);
    before.path.push_str(rest);
}

pub(super) fn read_record(
    reader: &mut Reader<'_>,
    before: &mut DeltaBase,
) -> Result<Record, Malformed> {
    Ok(match reader.u8()? {
        NODE => Record::Node(read_node(reader, before)?),
        SESSION => Record::Session(SessionImage {
            id: SessionId(reader.i64()?),
            password: reader.array()?,
            timeout_ms: reader.varint()?,
            is_local: reader.flag()?,
        }),
        FACTS => Record::Facts {
            facts: Facts {
                longest_timeout_ms: reader.varint()?,
                is_clean: reader.flag()?,
                completeness: read_completeness(reader)?,
                allowed_timeout_ms: reader.varint()?.checked_sub(1),
                ..Facts::default()
            },
            counts: read_counts(reader)?,
        },
        FACTS_OF_FORMAT_1 => Record::Facts {
            facts: Facts {
                longest_timeout_ms: reader.varint()?,
                is_clean: reader.flag()?,
                completeness: Completeness::Unknown,
                allowed_timeout_ms: None,
                ..Facts::default()
            },
            counts: read_counts(reader)?,
        },
        END => Record::End(read_counts(reader)?),
        _ => return Err(Malformed("unknown kind of record")),
    })
}

fn read_completeness(reader: &mut Reader<'_>) -> Result<Completeness, Malformed> {
    Ok(match reader.u8()? {
        0 => Completeness::Unknown,
        1 => Completeness::Partial,
        2 => Completeness::Complete,
        3 => Completeness::Restored,
        _ => return Err(Malformed("unknown completeness of the log")),
    })
}

fn read_counts(reader: &mut Reader<'_>) -> Result<Counts, Malformed> {
    Ok(Counts {
        sessions: reader.varint()?,
        nodes: reader.varint()?,
    })
}

fn read_node(reader: &mut Reader<'_>, before: &mut DeltaBase) -> Result<NodeImage, Malformed> {
    let path = read_path(reader, before)?;
    let kind = reader.kind()?;
    let owner = match kind {
        NodeKind::Ephemeral => reader.i64()?,
        _ => 0,
    };
    let czxid = reader.signed()?.wrapping_add(before.czxid);
    let mzxid = reader.signed()?.wrapping_add(czxid);
    let pzxid = reader.signed()?.wrapping_add(czxid);
    let ctime = reader.signed()?.wrapping_add(before.ctime);
    let image = NodeImage {
        path,
        kind,
        owner: SessionId(owner),
        czxid: Zxid(czxid),
        mzxid: Zxid(mzxid),
        pzxid: Zxid(pzxid),
        ctime,
        mtime: reader.signed()?.wrapping_add(ctime),
        version: reader.i32()?,
        aversion: reader.i32()?,
        creates: reader.signed()?,
        queue_key: match reader.flag()? {
            true => Some((reader.signed()?, reader.signed()?)),
            false => None,
        },
        acl: reader.acl()?,
        data: reader.data()?,
    };
    before.set(&image);
    Ok(image)
}

fn read_path(reader: &mut Reader<'_>, before: &mut DeltaBase) -> Result<ZnodePath, Malformed> {
    let shared = usize::try_from(reader.varint()?).unwrap_or(usize::MAX);
    if !before.path.is_char_boundary(shared) {
        return Err(Malformed(
            "a path shares more bytes than the previous one has",
        ));
    }
    let rest = reader.text()?;
    before.path.truncate(shared);
    before.path.push_str(rest);
    ZnodePath::new(&before.path).map_err(|_| Malformed("invalid path"))
}
