//! How transactions and what else a log holds become bytes, and bytes become them again.
//!
//! Integers are little-endian. A *varint* is LEB128, at most ten bytes; signed ones are zigzag
//! varints. Text and data: their length as a varint, then their bytes.
//!
//! Writing goes straight into the buffer. Reading is total: any bytes give a value or
//! [`Malformed`], and nothing is allocated for a length that the bytes themselves do not hold.

mod read;
mod txn;
mod write;

pub(crate) use self::read::{Malformed, Reader};
pub(crate) use self::txn::{Record, put_record, put_txn, read_record};
pub(crate) use self::write::Put;
