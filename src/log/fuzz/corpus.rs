//! Corpus of the fuzzers: frames and logs of every shape, written by the encoder.

use super::{FIX_CHECKSUMS, STORE};
use crate::core::{End, NewNode, NodeKind, Txn, TxnOp};
use crate::log::codec::Record;
use crate::log::frame::{Batch, FrameChain, mark};
use crate::log::segment::{HEADER_BYTES, Header};
use crate::model::acl::Acl;
use crate::model::path::ZnodePath;
use crate::model::types::{AclEntry, SessionId, Zxid};

const SIZE: u64 = 576;

const SALT: u64 = 0x5a17_5a17_5a17_5a17;

const SESSION: SessionId = SessionId(0x0100_0000_0000_002a);

pub(crate) type Inputs = Vec<(&'static str, Vec<u8>)>;

pub(crate) fn frames() -> Inputs {
    let link = FrameChain {
        salt: SALT,
        chain: 1,
        synced: 0,
    };
    let frame = |records: &[Record]| {
        let mut batch = Batch::default();
        batch.begin(Zxid(0x1000));
        records.iter().for_each(|record| batch.push_record(record));
        batch.seal(link).to_vec()
    };
    let all = history();
    let mut inputs = vec![
        ("mark", mark(link, Zxid(0x1000)).to_vec()),
        ("all", frame(&all)),
        ("cut", frame(&all)[..100].to_vec()),
        ("facts", frame(&facts())),
    ];
    let names = ["sessions", "creates", "changes", "multi"];
    let parts = all.chunks(all.len().div_ceil(names.len()));
    inputs.extend(names.into_iter().zip(parts.map(frame)));
    inputs
}

pub(crate) fn logs() -> Inputs {
    let whole = log(false);
    let mut torn = whole.clone();
    torn[1][300..].fill(0);
    let mut damaged = whole.clone();
    damaged[0][HEADER_BYTES as usize + 60] ^= 0x10;
    let mut truncated = whole.clone();
    truncated[1].truncate(500);
    let mut swapped = whole.clone();
    swapped.swap(0, 1);
    vec![
        ("empty", packed(0, &[])),
        ("whole", packed(0, &whole)),
        ("made-right", packed(FIX_CHECKSUMS, &whole)),
        ("reused", packed(0, &log(true))),
        ("reused-made-right", packed(FIX_CHECKSUMS, &log(true))),
        ("torn", packed(0, &torn)),
        ("damaged", packed(0, &damaged)),
        ("truncated", packed(0, &truncated)),
        ("swapped", packed(0, &swapped)),
        ("prepared", packed(0, &[segment(0, false)])),
    ]
}

fn packed(flags: u8, segments: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![flags];
    for segment in segments {
        bytes.extend_from_slice(&(segment.len() as u16).to_le_bytes());
        bytes.extend_from_slice(segment);
    }
    bytes
}

fn segment(number: u64, is_reused: bool) -> Vec<u8> {
    let header = Header {
        salt: SALT + number,
        number,
        size: SIZE,
        store: STORE,
    };
    let mut bytes = header.encode().to_vec();
    let fill = if is_reused { 0xa5 } else { 0 };
    bytes.resize(SIZE as usize, fill);
    bytes
}

fn log(is_reused: bool) -> Vec<Vec<u8>> {
    let mut segments = vec![segment(0, is_reused)];
    let mut at = HEADER_BYTES as usize;
    let mut last = Zxid(0);
    let mut link = FrameChain {
        salt: SALT,
        chain: 1,
        synced: 0,
    };
    let records = [facts(), history()].concat();
    for records in records.chunks(3) {
        let mut batch = Batch::default();
        batch.begin(last);
        records.iter().for_each(|record| batch.push_record(record));
        if at + batch.frame_bytes() > SIZE as usize {
            link.salt += 1;
            segments.push(segment(segments.len() as u64, is_reused));
            at = HEADER_BYTES as usize;
        }
        let frame = batch.seal(link);
        segments.last_mut().expect("there is one")[at..at + frame.len()].copy_from_slice(frame);
        at += frame.len();
        last = batch.last();
        link.synced = link.chain;
        link.chain += 1;
    }
    let mark = mark(link, last);
    segments.last_mut().expect("there is one")[at..at + mark.len()].copy_from_slice(&mark);
    segments.push(segment(segments.len() as u64, is_reused));
    segments
}

fn facts() -> Vec<Record> {
    vec![
        Record::Epoch(7),
        Record::LongestTimeout { ms: 40_000 },
        Record::SessionTerms {
            are_kept: true,
            allowed_ms: 40_000,
        },
        Record::Clean,
    ]
}

fn history() -> Vec<Record> {
    let session = |is_local, timeout_ms| TxnOp::OpenSession {
        timeout_ms,
        password: [7; 16],
        is_local,
    };
    let read_only = Acl::new([AclEntry {
        permissions: AclEntry::READ,
        scheme: "world".into(),
        id: "anyone".into(),
    }]);
    let set_acl = TxnOp::SetAcl {
        path: path("/a"),
        acl: read_only.clone(),
        aversion: 1,
    };
    let ops = vec![
        (1, session(true, 0)),
        (2, session(false, 30_000)),
        (0, create("/a", NodeKind::Persistent, None, 1, Acl::open())),
        (
            0,
            create("/q", NodeKind::Container, None, 2, Acl::creator_all()),
        ),
        (
            0,
            create("/t", NodeKind::Ttl { ms: 5_000 }, None, 3, read_only),
        ),
        (
            1,
            create(
                "/q/n-0000000000",
                NodeKind::Ephemeral,
                Some(0),
                1,
                Acl::open(),
            ),
        ),
        (
            2,
            create(
                "/q/n-0000000001",
                NodeKind::Ephemeral,
                Some(1),
                2,
                Acl::open(),
            ),
        ),
        (1, set("/a", "other data", 1)),
        (1, set_acl),
        (1, delete("/q/n-0000000000")),
        (
            2,
            TxnOp::Multi(vec![
                TxnOp::Check,
                create("/a/b", NodeKind::Persistent, None, 1, Acl::open()),
                set("/a/b", "", 1),
                delete("/a/b"),
            ]),
        ),
        (2, TxnOp::CloseSession(End::Expired)),
        (1, TxnOp::CloseSession(End::Closed)),
    ];
    let txn = |(index, (session, op)): (usize, (i64, TxnOp))| {
        Record::Txn(Txn {
            zxid: Zxid(0x1001 + 2 * index as i64),
            unix_ms: 1_790_000_000_000 + index as i64,
            session: SessionId(SESSION.0 + session),
            op,
        })
    };
    ops.into_iter().enumerate().map(txn).collect()
}

fn create(at: &str, kind: NodeKind, sequence: Option<i64>, creates: i64, acl: Acl) -> TxnOp {
    TxnOp::Create(NewNode {
        path: path(at),
        data: "some data".into(),
        acl,
        kind,
        sequence,
        creates,
    })
}

fn set(at: &str, data: &'static str, version: i32) -> TxnOp {
    TxnOp::SetData {
        path: path(at),
        data: data.into(),
        version,
    }
}

fn delete(at: &str) -> TxnOp {
    TxnOp::Delete { path: path(at) }
}

fn path(text: &str) -> ZnodePath {
    ZnodePath::new(text).expect("it keeps the rules")
}
