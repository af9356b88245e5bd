//! Tests of the formats and of recovery from broken logs.

mod codec;
mod frame;
mod handing_over;
#[cfg(feature = "simulation")]
mod opening;
mod recovery;
mod segment;
mod writing;

use bytes::Bytes;

use super::codec::Record;
use crate::core::{End, NewNode, NodeKind, Txn, TxnOp};
use crate::model::acl::Acl;
use crate::model::path::ZnodePath;
use crate::model::types::{AclEntry, SessionId, Zxid};

fn path(text: &str) -> ZnodePath {
    ZnodePath::new(text).unwrap()
}

fn txn(zxid: i64, op: TxnOp) -> Txn {
    Txn {
        zxid: Zxid(zxid),
        unix_ms: 1_790_000_000_000,
        session: SessionId(0x0123_4567_89ab_cdef),
        op,
    }
}

fn create(at: &str, kind: NodeKind) -> TxnOp {
    TxnOp::Create(NewNode {
        path: path(at),
        data: Bytes::from_static(b"some data"),
        acl: Acl::open(),
        kind,
        sequence: None,
        creates: 1,
    })
}

fn ops() -> Vec<TxnOp> {
    let entry = AclEntry {
        permissions: 31,
        scheme: "digest".into(),
        id: "someone:é".into(),
    };
    let mut ops = vec![
        TxnOp::OpenSession {
            timeout_ms: u64::MAX,
            password: [9; 16],
            is_local: true,
        },
        TxnOp::OpenSession {
            timeout_ms: 0,
            password: [0; 16],
            is_local: false,
        },
        TxnOp::CloseSession(End::Expired),
        TxnOp::CloseSession(End::Closed),
        create("/a", NodeKind::Persistent),
        create("/a/b", NodeKind::Ephemeral),
        create("/é", NodeKind::Container),
        create("/ttl", NodeKind::Ttl { ms: 1 << 39 }),
        TxnOp::Create(NewNode {
            path: path("/q/n-0000000003"),
            data: Bytes::new(),
            acl: Acl::new([entry.clone(), entry]),
            kind: NodeKind::Persistent,
            sequence: Some(i64::MIN),
            creates: i64::MAX,
        }),
        TxnOp::Create(NewNode {
            path: path("/none"),
            data: vec![0xff; 300].into(),
            acl: Acl::new([]),
            kind: NodeKind::Persistent,
            sequence: Some(3),
            creates: 0,
        }),
        TxnOp::Delete { path: path("/a/b") },
        TxnOp::SetData {
            path: path("/a"),
            data: Bytes::from_static(b"\0\xff"),
            version: i32::MIN,
        },
        TxnOp::Check,
        TxnOp::Multi(vec![]),
    ];
    ops.push(TxnOp::Multi(ops[4..13].to_vec()));
    ops
}

fn records() -> Vec<Record> {
    let txns = ops().into_iter().zip(7..);
    let mut records: Vec<_> = txns.map(|(op, zxid)| Record::Txn(txn(zxid, op))).collect();
    records.insert(3, Record::Epoch(u32::MAX));
    records.insert(5, Record::LongestTimeout { ms: 40_000 });
    let are_kept = true;
    let allowed_ms = 40_000;
    records.insert(
        6,
        Record::SessionTerms {
            are_kept,
            allowed_ms,
        },
    );
    records.push(Record::Clean);
    records
}
