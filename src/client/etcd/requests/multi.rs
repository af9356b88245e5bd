//! Reads and writes of several znodes in one transaction.

use bytes::Bytes;

use super::{check_count, malformed, state};
use crate::client::etcd::channel::Connection;
use crate::client::etcd::keys::stat;
use crate::client::etcd::messages::{
    Compare, DeleteRange, KeyValue, LESS, Operand, Operation, Put, RangeResponse, Txn, VALUE,
    compare, created_at, has_version, operation, put, range, ranges, revision,
};
use crate::client::etcd::session::Shared;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{Condition, Op, OpReply, ReadOp, ReadReply, Reply};

impl Shared {
    pub(super) async fn multi_read(
        &self,
        connection: &Connection,
        ops: &[ReadOp],
    ) -> Result<Reply> {
        let mut reads = Vec::new();
        let candidates: Vec<_> = ops
            .iter()
            .map(|op| self.keys.candidates(op.path()))
            .collect();
        for (op, candidates) in ops.iter().zip(&candidates) {
            match op {
                ReadOp::GetChildren(path) => {
                    reads.push(self.keys_below(path));
                }
                ReadOp::GetEntry(_) => reads.extend(candidates.reads()),
                ReadOp::GetData(path) => {
                    reads.extend(candidates.reads());
                    reads.push(self.count_below(path));
                }
            }
        }
        let (ranges, at) = self.read(connection, reads, "multiRead").await?;
        let mut ranges = ranges.into_iter();
        let mut replies = Vec::with_capacity(ops.len());
        for (op, candidates) in ops.iter().zip(&candidates) {
            let missing = || {
                ReadReply::Failed(Error::NoNode {
                    path: op.path().as_str().to_owned(),
                })
            };
            replies.push(match op {
                ReadOp::GetChildren(path) => {
                    let range = ranges.next().ok_or_else(|| malformed("multiRead"))?;
                    let names = self.children_of(path, &range, at).names;
                    ReadReply::Children(names.into_iter().collect())
                }
                ReadOp::GetData(path) => {
                    let kv = candidates.found(&mut ranges);
                    let below = ranges.next().map_or(0, |range| range.count);
                    match state(path, kv.as_ref(), below) {
                        Some(stat) => ReadReply::Data {
                            data: kv.map_or_else(Bytes::new, |kv| kv.value),
                            stat,
                        },
                        None => missing(),
                    }
                }
                ReadOp::GetEntry(_) => {
                    candidates
                        .found(&mut ranges)
                        .map_or_else(missing, |kv| ReadReply::Entry {
                            stat: stat(&kv),
                            data: kv.value,
                            granted_at_ms: None,
                        })
                }
            });
        }
        Ok(Reply::MultiRead(replies))
    }

    /// Executes a multi as a transaction. An etcd transaction may change each key only once, so if the multi creates a
    /// znode and then sets its data, we create the znode with the new data.
    ///
    /// `departure` is the reason for which the multi deletes the session's own entries.
    pub(super) async fn multi(
        &self,
        connection: &Connection,
        ops: Vec<Op>,
        departure: &'static [u8],
    ) -> Result<Vec<OpReply>> {
        let mut txn = Txn::default();
        let mut nodes = Vec::with_capacity(ops.len());
        for (index, op) in ops.iter().enumerate() {
            let failed = |source| Error::MultiFailed {
                index,
                source: Box::new(source),
            };
            let node = match set_in_create(op, &ops[..index], &mut txn) {
                true => Ok(0),
                false => self.add(connection, op, &mut txn).await,
            };
            nodes.push(node.map_err(|error| match error.is_answer() {
                true => failed(error),
                false => error,
            })?);
        }
        // Always leave room for the put of the departure and the read of the session's fence. Otherwise one transaction
        // could create more entries than one transaction can delete.
        check_count(txn.success.len() + 2)?;
        let leaves =
            |op: &Op| matches!(op, Op::Delete { path, .. } if self.made.lock().contains_key(path));
        let unrecorded = ops.iter().any(leaves).then(|| txn.clone());
        if unrecorded.is_some() {
            txn.success.push(self.record_departure(departure));
        }
        let (mut answer, mut is_repeated) = (self.txn(connection, txn, "multi").await, false);
        // An etcd without room refuses every put, but entries must still be able to leave.
        if let (Err(Error::DiskFull { .. }), Some(unrecorded)) = (&answer, unrecorded) {
            answer = self.txn(connection, unrecorded, "multi").await;
            is_repeated = true;
        }
        let answer = answer?;
        let (succeeded, at) = (answer.succeeded, revision(answer.header.clone()));
        let mut ranges = ranges(answer).into_iter();
        let mut replies = Vec::with_capacity(ops.len());
        for (index, (op, created)) in ops.iter().zip(nodes).enumerate() {
            if succeeded {
                replies.push(self.op_reply(op, at, &mut ranges)?);
                continue;
            }
            let range = ranges.next().ok_or_else(|| malformed("multi"))?;
            if let Some(source) = failure(op, created, &range) {
                if matches!(source, Error::NoNode { .. }) {
                    self.made.lock().remove(path_of(op));
                    // When etcd runs out of room, it refuses a transaction that it has executed.
                    if is_repeated && matches!(op, Op::Delete { .. }) {
                        replies.push(OpReply::Deleted);
                        continue;
                    }
                }
                return Err(Error::MultiFailed {
                    index,
                    source: Box::new(source),
                });
            }
        }
        if replies.len() == ops.len() {
            return Ok(replies);
        }
        // No other check has failed, so a child was created after we counted the children.
        let is_count = |op: &Op| matches!(op, Op::Require(Condition::Children { .. }));
        let index = ops.iter().position(is_count);
        let index = index.ok_or_else(|| malformed("multi"))?;
        Err(Error::MultiFailed {
            index,
            source: Box::new(Error::NotEmpty {
                path: path_of(&ops[index]).as_str().to_owned(),
            }),
        })
    }

    /// Adds an operation to a transaction. Returns the create revision that the znode must have.
    async fn add(&self, connection: &Connection, op: &Op, txn: &mut Txn) -> Result<i64> {
        let path = path_of(op);
        let missing = || Error::NoNode {
            path: path.as_str().to_owned(),
        };
        let (key, created) = match op {
            Op::Create(_) => (self.keys.exact(path), 0),
            Op::Require(Condition::Children { .. }) => (self.keys.below(path).0, 0),
            _ => self.node(connection, path).await?.ok_or_else(missing)?,
        };
        let read = operation(Operation::Range(range(key.clone())));
        txn.failure.push(read.clone());
        match op {
            Op::Create(create) => {
                let (_, lease) = self.key_and_lease(connection, create).await?;
                txn.compare.push(created_at(&key, 0));
                txn.success.push(put(key, create.data.clone(), lease));
            }
            Op::Delete { version, .. } => {
                txn.compare.push(created_at(&key, created));
                txn.compare
                    .extend(version.map(|version| has_version(&key, version)));
                txn.success
                    .push(operation(Operation::Delete(DeleteRange { key })));
            }
            Op::SetData { data, version, .. } => {
                txn.compare.push(created_at(&key, created));
                txn.compare
                    .extend(version.map(|version| has_version(&key, version)));
                txn.success.push(operation(Operation::Put(Put {
                    key,
                    value: data.clone(),
                    lease: 0,
                    keeps_lease: true,
                })));
                txn.success.push(read);
            }
            Op::Check { version, .. } => {
                txn.compare.push(created_at(&key, created));
                txn.compare
                    .extend(version.map(|version| has_version(&key, version)));
            }
            Op::Require(Condition::Data { data, .. }) => {
                txn.compare
                    .push(compare(VALUE, &key, Operand::Value(data.clone())));
            }
            Op::Require(Condition::Children { znode, limit }) => {
                let children = self.children(connection, znode).await?;
                if children.names.len() > *limit as usize {
                    return Err(Error::NotEmpty {
                        path: znode.as_str().to_owned(),
                    });
                }
                // Require that no child was created after we counted the children. Deletions do no harm, because they
                // only reduce the number.
                let (key, end) = self.keys.below(znode);
                txn.compare.push(Compare {
                    relation: LESS,
                    end,
                    ..created_at(&key, children.at + 1)
                });
            }
        }
        Ok(created)
    }

    /// Returns the reply to an operation that was executed at revision `at`.
    fn op_reply(
        &self,
        op: &Op,
        at: i64,
        ranges: &mut impl Iterator<Item = RangeResponse>,
    ) -> Result<OpReply> {
        Ok(match op {
            Op::Create(create) => {
                let mut kv = self.own(self.keys.exact(&create.path), create.data.clone(), at);
                if !create.mode.is_ephemeral() {
                    kv.lease = 0;
                }
                OpReply::Created {
                    path: self.record(&kv)?,
                    stat: Some(stat(&kv)),
                }
            }
            Op::Delete { path, .. } => {
                self.made.lock().remove(path);
                OpReply::Deleted
            }
            Op::SetData { .. } => {
                let kv = ranges.next().and_then(|mut range| range.kvs.pop());
                OpReply::Set(stat(&kv.ok_or_else(|| malformed("multi"))?))
            }
            Op::Check { .. } | Op::Require(_) => OpReply::Checked,
        })
    }
}

/// If `op` sets the data of a znode that an earlier operation creates, puts the new data into the create. Returns false
/// otherwise.
fn set_in_create(op: &Op, earlier: &[Op], txn: &mut Txn) -> bool {
    let Op::SetData { path, data, .. } = op else {
        return false;
    };
    let creates = |op: &Op| matches!(op, Op::Create(create) if create.path == *path);
    let Some(index) = earlier.iter().position(creates) else {
        return false;
    };
    // `txn.failure` contains exactly one range for each earlier operation.
    let read = txn.failure[index].clone();
    let Some(Operation::Range(range)) = &read.operation else {
        return false;
    };
    for put in &mut txn.success {
        if let Some(Operation::Put(put)) = &mut put.operation
            && put.key == range.key
        {
            put.value = data.clone();
        }
    }
    txn.success.push(read.clone());
    txn.failure.push(read);
    true
}

/// Returns why an operation has failed, or `None` if it did not fail. `range` is the read of the operation's znode.
fn failure(op: &Op, created: i64, range: &RangeResponse) -> Option<Error> {
    let path = path_of(op).as_str().to_owned();
    let kv = range
        .kvs
        .first()
        .filter(|kv| created == 0 || kv.create_revision == created);
    let has = |kv: &KeyValue, version: &Option<i32>| {
        version.is_none_or(|version| i64::from(version) + 1 == kv.version)
    };
    match (op, kv) {
        (Op::Create(_), None) => None,
        (Op::Create(_), Some(_)) => Some(Error::NodeExists { path }),
        // The same multi creates this znode, so the znode need not exist.
        (Op::SetData { .. }, None) if created == 0 => None,
        (Op::Require(Condition::Children { .. }), _) => None,
        (_, None) => Some(Error::NoNode { path }),
        (
            Op::Delete { version, .. } | Op::SetData { version, .. } | Op::Check { version, .. },
            Some(kv),
        ) => (!has(kv, version)).then(|| Error::BadVersion {
            path,
            expected: version.unwrap_or(-1),
        }),
        (Op::Require(Condition::Data { data, .. }), Some(kv)) => {
            (kv.value != data).then_some(Error::BadVersion { path, expected: -1 })
        }
    }
}

pub(in crate::client::etcd) fn path_of(op: &Op) -> &ZnodePath {
    match op {
        Op::Create(create) => &create.path,
        Op::Delete { path, .. } | Op::SetData { path, .. } | Op::Check { path, .. } => path,
        Op::Require(condition) => condition.znode(),
    }
}
