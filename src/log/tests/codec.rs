//! Tests that records are decoded exactly as they were encoded, and that other bytes are refused.

use super::*;
use crate::log::codec::{Malformed, Put, Reader, put_record, read_record};
use crate::model::data;

fn encoded(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        put_record(&mut bytes, record, Zxid(7));
    }
    bytes
}

fn decoded(bytes: &[u8]) -> Result<Vec<Record>, Malformed> {
    let mut reader = Reader::new(bytes);
    let mut records = Vec::new();
    while !reader.is_empty() {
        records.push(read_record(&mut reader, Zxid(7))?);
    }
    Ok(records)
}

#[test]
fn every_record_comes_back() {
    assert_eq!(decoded(&encoded(&records())), Ok(records()));
}

#[test]
fn no_record_has_a_beginning_that_is_one() {
    for record in records() {
        let bytes = encoded(std::slice::from_ref(&record));
        for end in 1..bytes.len() {
            let cut = decoded(&bytes[..end]);
            assert!(cut.is_err(), "{record:?} cut at {end}: {cut:?}");
        }
    }
}

#[test]
fn any_bytes_are_a_value_or_an_error() {
    let whole = encoded(&records());
    for at in 0..whole.len() {
        for bits in [0x01, 0x80, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= bits;
            if let Ok(records) = decoded(&bytes) {
                assert_eq!(decoded(&encoded(&records)), Ok(records));
            }
        }
    }
}

/// The bound of an operation may exceed its encoded size by this many bytes, and by as many again for each entry of its
/// access control list.
const MAX_ROOM: usize = 50;

fn parts(op: &TxnOp) -> usize {
    let entries = |acl: &Acl| acl.entries().map_or(0, <[AclEntry]>::len);
    1 + match op {
        TxnOp::Create(new) => entries(&new.acl),
        TxnOp::SetAcl { acl, .. } => entries(acl),
        TxnOp::Multi(ops) => ops.iter().map(parts).sum(),
        _ => 0,
    }
}

/// A write is admitted if the upper bound on its size fits, but takes only its actual size in the log.
#[test]
fn no_transaction_takes_more_than_its_bound() {
    let mut ops = ops();
    ops.push(TxnOp::Create(NewNode {
        path: path("/a"),
        data: Bytes::new(),
        acl: Acl::open(),
        kind: NodeKind::Ttl { ms: u64::MAX },
        sequence: Some(i64::MIN),
        creates: i64::MAX,
    }));
    for acl in [Acl::open(), Acl::new(Vec::new())] {
        let (path, aversion) = (path("/a"), i32::MIN);
        ops.push(TxnOp::SetAcl {
            path,
            acl,
            aversion,
        });
    }
    for bytes in [0, 1, 127, 128, 20_000, 3 << 20] {
        ops.push(TxnOp::SetData {
            path: path(&format!("/{}", "p".repeat(bytes))),
            data: vec![1; bytes].into(),
            version: i32::MIN,
        });
        let entry = |number: usize| AclEntry {
            permissions: u8::MAX,
            scheme: "x509".into(),
            id: format!("{number}{}", "n".repeat(bytes / 100)),
        };
        ops.push(TxnOp::SetAcl {
            path: path("/a"),
            acl: Acl::new((0..100).map(entry).collect::<Vec<_>>()),
            aversion: i32::MIN,
        });
    }
    for op in ops {
        let txn = Txn {
            unix_ms: i64::MIN,
            ..txn(i64::MAX, op)
        };
        let bytes = encoded(&[Record::Txn(txn.clone())]).len();
        let (bound, room) = (txn.log_bytes(), MAX_ROOM * parts(&txn.op));
        assert!(bytes <= bound, "{bytes}, and not {bound}");
        assert!(bound <= bytes + room, "{bytes}, and not {bound}");
    }
}

#[test]
fn numbers_at_their_ends() {
    for value in [0, 1, -1, 63, 64, -64, -65, i64::MAX, i64::MIN] {
        let mut bytes = Vec::new();
        bytes.put_signed(value);
        bytes.put_varint(value as u64);
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.signed(), Ok(value));
        assert_eq!(reader.varint(), Ok(value as u64));
        assert!(reader.is_empty());
    }
    let too_long = [0xff; 10];
    assert!(Reader::new(&too_long).varint().is_err());
    let too_large = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
    assert!(Reader::new(&too_large).varint().is_err());
}

#[test]
fn a_length_beyond_the_end_allocates_nothing() {
    let mut bytes = Vec::new();
    bytes.put_varint(u64::MAX);
    assert!(Reader::new(&bytes).data().is_err());
    assert!(Reader::new(&bytes).acl().is_err());
    let mut multi = encoded(&[Record::Txn(txn(7, TxnOp::Multi(vec![])))]);
    multi.pop();
    multi.put_varint(1 << 40);
    assert!(decoded(&multi).is_err());
}

#[test]
fn there_is_no_multi_within_a_multi() {
    let nested = TxnOp::Multi(vec![TxnOp::Multi(vec![])]);
    assert!(decoded(&encoded(&[Record::Txn(txn(7, nested))])).is_err());
}

#[test]
fn null_data_come_back_as_null_and_read_as_empty_by_old_versions() {
    let mut bytes = Vec::new();
    bytes.put_data(data::null());
    bytes.put_data(b"");
    bytes.put_data(b"x");
    let mut reader = Reader::new(&bytes);
    let read: Vec<_> = (0..3).map(|_| reader.data().unwrap()).collect();
    assert_eq!(read, [&b""[..], b"", b"x"]);
    let nulls: Vec<_> = read.iter().map(|read| data::is_null(read)).collect();
    assert_eq!(nulls, [true, false, false]);
    assert_eq!(Reader::new(&bytes).bytes(), Ok(&b""[..]));
}
