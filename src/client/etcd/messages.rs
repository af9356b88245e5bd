//! Messages of etcd's API (`etcdserverpb`), with only the fields that we use. They are written by hand, because
//! generating them would need `protoc` on the user's machine.

use std::time::Duration;

use bytes::Bytes;
use prost::{Message, Oneof};

pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(super) const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
pub(super) const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub(super) const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
    /// Term of the last entry that the answering member has applied.
    #[prost(uint64, tag = "4")]
    pub(super) term: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: bytes::Bytes,
    #[prost(int64, tag = "2")]
    pub(super) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    /// Number of puts since the key was created.
    #[prost(int64, tag = "4")]
    pub(super) version: i64,
    #[prost(bytes = "bytes", tag = "5")]
    pub(super) value: bytes::Bytes,
    #[prost(int64, tag = "6")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Range {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    /// First key after the range, or empty for a single key.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) end: Vec<u8>,
    /// Largest number of keys to return. 0 for all.
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    /// Revision at which the keys are read. 0 is the latest.
    #[prost(int64, tag = "4")]
    pub(super) revision: i64,
    #[prost(int32, tag = "5")]
    pub(super) order: i32,
    #[prost(int32, tag = "6")]
    pub(super) order_by: i32,
    /// Reads what the member has applied, without a round trip to the leader.
    #[prost(bool, tag = "7")]
    pub(super) serializable: bool,
    #[prost(bool, tag = "8")]
    pub(super) keys_only: bool,
    #[prost(bool, tag = "9")]
    pub(super) count_only: bool,
    /// Skips the keys with a greater create revision. 0 for no limit.
    #[prost(int64, tag = "13")]
    pub(super) max_created: i64,
}

/// Values of `order` and `order_by` that return the newest keys first.
pub(super) const DESCENDING: i32 = 2;
pub(super) const BY_CREATE_REVISION: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    /// True if the limit of the range has cut off keys.
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
    /// Number of keys in the range, whatever the limit.
    #[prost(int64, tag = "4")]
    pub(super) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: bytes::Bytes,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
    #[prost(bool, tag = "6")]
    pub(super) keeps_lease: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRange {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRangeResponse {
    #[prost(int64, tag = "2")]
    pub(super) deleted: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Operation", tags = "1, 2, 3")]
    pub(super) operation: Option<Operation>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Operation {
    #[prost(message, tag = "1")]
    Range(Range),
    #[prost(message, tag = "2")]
    Put(Put),
    #[prost(message, tag = "3")]
    Delete(DeleteRange),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseOp {
    #[prost(oneof = "OperationResponse", tags = "1, 2, 3")]
    pub(super) response: Option<OperationResponse>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum OperationResponse {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(PutResponse),
    #[prost(message, tag = "3")]
    Delete(DeleteRangeResponse),
}

/// Relation that a [`Compare`] requires between the key's property and the operand.
pub(super) const EQUAL: i32 = 0;
pub(super) const LESS: i32 = 2;

/// Properties of a key. The operand's field number is the property's number plus four.
pub(super) const VERSION: i32 = 0;
pub(super) const CREATE: i32 = 1;
pub(super) const MODIFY: i32 = 2;
pub(super) const VALUE: i32 = 3;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    #[prost(int32, tag = "1")]
    pub(super) relation: i32,
    #[prost(int32, tag = "2")]
    pub(super) property: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    #[prost(oneof = "Operand", tags = "4, 5, 6, 7")]
    pub(super) operand: Option<Operand>,
    /// First key after the range, if the comparison must hold for every key of a range.
    #[prost(bytes = "vec", tag = "64")]
    pub(super) end: Vec<u8>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Operand {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModifyRevision(i64),
    #[prost(bytes = "bytes", tag = "7")]
    Value(bytes::Bytes),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Txn {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<ResponseOp>,
}

/// Name and password of a user of etcd.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Authenticate {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrant {
    /// In seconds.
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
}

/// Longest lease that etcd grants, in seconds.
const MAX_TTL: i64 = 9_000_000_000;

impl LeaseGrant {
    /// Requests a lease of whole seconds, because etcd does not grant fractions of a second.
    pub(super) fn rounded_up(ttl: Duration) -> Self {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        Self {
            ttl: i64::try_from(seconds).map_or(MAX_TTL, |seconds| seconds.min(MAX_TTL)),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseRevoke {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseRevokeResponse {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseKeepAlive {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseKeepAliveResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    /// Remaining seconds, or 0 if the lease does not exist.
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchRequest {
    #[prost(oneof = "WatchCommand", tags = "1, 2")]
    pub(super) command: Option<WatchCommand>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum WatchCommand {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "2")]
    Cancel(WatchCancel),
}

/// Filter of a watch that reports no puts.
pub(super) const NO_PUT: i32 = 0;

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) end: Vec<u8>,
    /// Kinds of events that the server does not send.
    #[prost(int32, repeated, tag = "5")]
    pub(super) filters: Vec<i32>,
    #[prost(bool, tag = "6")]
    pub(super) has_previous: bool,
    #[prost(int64, tag = "7")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCancel {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchResponse {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// 0 for a put, 1 for a delete.
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
    #[prost(message, optional, tag = "3")]
    pub(super) previous: Option<KeyValue>,
}

pub(super) fn range(key: Vec<u8>) -> Range {
    Range {
        key,
        ..Range::default()
    }
}

pub(super) fn operation(operation: Operation) -> RequestOp {
    RequestOp {
        operation: Some(operation),
    }
}

pub(super) fn compare(property: i32, key: &[u8], operand: Operand) -> Compare {
    Compare {
        relation: EQUAL,
        property,
        key: key.to_vec(),
        operand: Some(operand),
        end: Vec::new(),
    }
}

pub(super) fn created_at(key: &[u8], revision: i64) -> Compare {
    compare(CREATE, key, Operand::CreateRevision(revision))
}

/// etcd's version counts all puts of a key. ZooKeeper's version does not count the creation.
pub(super) fn has_version(key: &[u8], version: i32) -> Compare {
    compare(VERSION, key, Operand::Version(i64::from(version) + 1))
}

pub(super) fn put(key: Vec<u8>, value: Bytes, lease: i64) -> RequestOp {
    operation(Operation::Put(Put {
        key,
        value,
        lease,
        keeps_lease: false,
    }))
}

/// Returns the results of the ranges of a transaction, in order.
pub(super) fn ranges(response: TxnResponse) -> Vec<RangeResponse> {
    let responses = response.responses.into_iter();
    let ranges = responses.filter_map(|response| match response.response {
        Some(OperationResponse::Range(range)) => Some(range),
        _ => None,
    });
    ranges.collect()
}

pub(super) fn revision(header: Option<Header>) -> i64 {
    header.unwrap_or_default().revision
}

/// An answer of etcd's key-value service.
pub(super) trait Answer: Message + Default + Send + Sync + 'static {
    fn header(&self) -> Option<&Header>;
}

macro_rules! answers {
    ($($answer:ty)*) => {$(
        impl Answer for $answer {
            fn header(&self) -> Option<&Header> {
                self.header.as_ref()
            }
        }
    )*};
}

answers! { RangeResponse TxnResponse }
