//! Maps the requests of recipes to calls of etcd. Requests that no recipe needs return `Unimplemented`.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use tonic::Code;

use super::channel::{Connection, Failure};
use super::keys::{Candidates, stat};
use super::messages::{
    CREATE, Compare, DeleteRange, EQUAL, Header, KeyValue, LESS, Operand, Operation,
    OperationResponse, Put, Range, RangeResponse, RequestOp, Txn, TxnResponse, VALUE, VERSION,
};
use super::session::Shared;
use super::watches::Target;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{
    Blockers, Condition, Create, Enqueue, GetPredecessor, Op, OpReply, Predecessor, ReadOp,
    ReadReply, Reply, Request, SEMAPHORE_CHILDREN, SHARED_MARKER, sequence_of,
};
use crate::model::types::{CreateMode, Stat, Zxid};
use crate::model::watch::{DeleteReason, PersistentWatcher, PredecessorGone};

/// etcd's default limit of operations in a transaction (`--max-txn-ops`).
const MAX_OPERATIONS: usize = 128;

fn range(key: Vec<u8>) -> Range {
    Range {
        key,
        ..Range::default()
    }
}

fn operation(operation: Operation) -> RequestOp {
    RequestOp {
        operation: Some(operation),
    }
}

fn compare(property: i32, key: &[u8], operand: Operand) -> Compare {
    Compare {
        relation: EQUAL,
        property,
        key: key.to_vec(),
        operand: Some(operand),
        end: Vec::new(),
    }
}

fn created_at(key: &[u8], revision: i64) -> Compare {
    compare(CREATE, key, Operand::CreateRevision(revision))
}

/// etcd's version counts all puts of a key, including the first. ZooKeeper's version counts only the changes after it.
fn has_version(key: &[u8], version: i32) -> Compare {
    compare(VERSION, key, Operand::Version(i64::from(version) + 1))
}

fn put(key: Vec<u8>, value: Bytes, lease: i64) -> RequestOp {
    operation(Operation::Put(Put {
        key,
        value,
        lease,
        keeps_lease: false,
    }))
}

/// Returns the results of the ranges of a transaction, in order.
fn ranges(response: TxnResponse) -> Vec<RangeResponse> {
    let responses = response.responses.into_iter();
    let ranges = responses.filter_map(|response| match response.response {
        Some(OperationResponse::Range(range)) => Some(range),
        _ => None,
    });
    ranges.collect()
}

fn revision(header: Option<Header>) -> i64 {
    header.unwrap_or_default().revision
}

fn malformed(what: &str) -> Error {
    Error::Protocol(format!("etcd's answer to {what} lacks a part"))
}

/// A znode's key, and its create revision.
type Node = (Vec<u8>, i64);

impl Shared {
    async fn txn(&self, connection: &Connection, txn: Txn, about: &str) -> Result<TxnResponse> {
        let answer = connection.call("/etcdserverpb.KV/Txn", txn, self.patience());
        answer.await.map_err(|failure| self.error(failure, about))
    }

    async fn range(
        &self,
        connection: &Connection,
        range: Range,
        about: &str,
    ) -> Result<RangeResponse> {
        let answer = connection.call("/etcdserverpb.KV/Range", range, self.patience());
        answer.await.map_err(|failure| self.error(failure, about))
    }

    fn error(&self, failure: Failure, about: &str) -> Error {
        match failure {
            Failure::Lost(reason) => {
                tracing::debug!(session = %self.status.id(), reason, "an answer of etcd was lost");
                Error::ConnectionLoss
            }
            // Among the calls of this file, only a put whose lease is gone fails with `NotFound`. The lease is the
            // session's lease, so the session has ended.
            Failure::Refused {
                code: Code::NotFound,
                ..
            } => Error::SessionExpired {
                session: self.status.id(),
            },
            Failure::Refused {
                code: Code::PermissionDenied,
                ..
            } => Error::NoAuth {
                path: about.to_owned(),
            },
            Failure::Refused {
                code: Code::Unauthenticated,
                ..
            } => Error::AuthFailed,
            Failure::Refused { code, reason } => Error::Protocol(format!(
                "etcd refuses the request for {about} ({code:?}): {reason}"
            )),
        }
    }

    pub(super) async fn carry_out(
        self: &Arc<Self>,
        connection: &Connection,
        request: Request,
    ) -> Result<Reply> {
        match request {
            Request::Create(create) => self.create(connection, create).await,
            Request::Delete { path, version } => {
                self.delete(connection, &path, version, RELEASED).await
            }
            Request::Withdraw { entry } => self.delete(connection, &entry, None, WITHDRAWN).await,
            Request::Exists { path, watch } => self.exists(connection, path, watch).await,
            Request::GetData { path, watch } => self.get_data(connection, path, watch).await,
            Request::SetData {
                path,
                data,
                version,
            } => self.set_data(connection, &path, data, version).await,
            Request::GetChildren { path, watch } => {
                self.get_children(connection, path, watch).await
            }
            Request::Multi(ops) => self.multi(connection, ops).await,
            Request::MultiRead(ops) => self.multi_read(connection, &ops).await,
            Request::Sync { path } => {
                let read = range(self.keys.exact(&path));
                self.range(connection, read, path.as_str()).await?;
                Ok(Reply::Done)
            }
            Request::GetAllChildrenNumber { path } => {
                let count = self.count_below(&path);
                let counted = self.range(connection, count, path.as_str()).await?;
                Ok(Reply::Count(usize::try_from(counted.count).unwrap_or(0)))
            }
            Request::AddWatch { path, mode } => {
                let events = self.watches.persistent(self.clone(), path, mode).await?;
                Ok(Reply::Watching(PersistentWatcher::from_stream(events)))
            }
            Request::Enqueue(enqueue) => self.enqueue(connection, enqueue).await,
            Request::GetPredecessor(look) => self.get_predecessor(connection, look).await,
            Request::GetQueue { parent, limit } => {
                let children = self.children(connection, &parent).await?;
                Ok(match children.queue() {
                    Some(queue) => Reply::Queue {
                        names: match limit {
                            0 => queue,
                            limit => queue.into_iter().take(limit).collect(),
                        },
                        sorted: true,
                    },
                    None => Reply::Queue {
                        names: children.names.into_iter().collect(),
                        sorted: false,
                    },
                })
            }
            Request::GetEphemerals { .. } => unimplemented("getEphemerals"),
            Request::GetAcl { .. } | Request::SetAcl { .. } => {
                unimplemented("access control lists, which etcd has by prefix (etcdctl role)")
            }
            Request::AddAuth { .. } => unimplemented("addAuth"),
            Request::Close => unreachable!("the session closes itself"),
        }
    }

    /// Finds a znode by its path. If the name ends with a number, either etcd has numbered the znode, or the key itself
    /// ends with this number.
    async fn find(
        &self,
        connection: &Connection,
        path: &ZnodePath,
    ) -> Result<(Option<KeyValue>, i64)> {
        let candidates = self.keys.candidates(path);
        let read = Txn {
            success: reads(&candidates),
            ..Txn::default()
        };
        let answer = self.txn(connection, read, path.as_str()).await?;
        let at = revision(answer.header.clone());
        Ok((found(&candidates, &mut ranges(answer).into_iter()), at))
    }

    async fn node(&self, connection: &Connection, path: &ZnodePath) -> Result<Option<Node>> {
        if let Some(node) = self.made.lock().get(path) {
            return Ok(Some(node.clone()));
        }
        let (kv, _) = self.find(connection, path).await?;
        Ok(kv.map(|kv| (kv.key.to_vec(), kv.create_revision)))
    }

    async fn create(&self, connection: &Connection, create: Create) -> Result<Reply> {
        let path = &create.path;
        // Create nothing. Like a container, every parent exists while it has children.
        if create.mode == CreateMode::Container {
            return Ok(Reply::Created {
                path: path.clone(),
                stat: Stat::default(),
            });
        }
        let lease = self.lease_of(create.mode)?;
        let key = self.keys.exact(path);
        let txn = Txn {
            compare: vec![created_at(&key, 0)],
            success: vec![
                put(key.clone(), create.data.clone(), lease),
                operation(Operation::Range(range(key))),
            ],
            failure: Vec::new(),
        };
        let answer = self.txn(connection, txn, path.as_str()).await?;
        if !answer.succeeded {
            return Err(Error::NodeExists {
                path: path.as_str().to_owned(),
            });
        }
        let kv = ranges(answer).pop().and_then(|mut range| range.kvs.pop());
        let kv = kv.ok_or_else(|| malformed("create"))?;
        let path = self.record(&kv)?;
        Ok(Reply::Created {
            path,
            stat: stat(&kv),
        })
    }

    fn lease_of(&self, mode: CreateMode) -> Result<i64> {
        match mode {
            CreateMode::Persistent => Ok(0),
            CreateMode::Ephemeral | CreateMode::EphemeralSequential => Ok(self.lease),
            _ => unimplemented("this mode of a create"),
        }
    }

    /// Records a znode of this session, and returns its path.
    fn record(&self, kv: &KeyValue) -> Result<ZnodePath> {
        let path = self.keys.path(kv).ok_or_else(|| malformed("create"))?;
        if kv.lease == self.lease {
            let node = (kv.key.to_vec(), kv.create_revision);
            self.made.lock().insert(path.clone(), node);
        }
        Ok(path)
    }

    async fn delete(
        &self,
        connection: &Connection,
        path: &ZnodePath,
        version: Option<i32>,
        reason: &'static [u8],
    ) -> Result<Reply> {
        let missing = || Error::NoNode {
            path: path.as_str().to_owned(),
        };
        let is_own = self.made.lock().contains_key(path);
        let node = self.node(connection, path).await?;
        let (key, created) = node.ok_or_else(missing)?;
        let mut conditions = vec![created_at(&key, created)];
        conditions.extend(version.map(|version| has_version(&key, version)));
        let mut success = vec![operation(Operation::Delete(DeleteRange {
            key: key.clone(),
        }))];
        success.extend(is_own.then(|| self.record_departure(reason)));
        let txn = Txn {
            compare: conditions,
            success,
            failure: vec![operation(Operation::Range(range(key)))],
        };
        let answer = self.txn(connection, txn, path.as_str()).await?;
        if answer.succeeded {
            self.made.lock().remove(path);
            return Ok(Reply::Done);
        }
        let kv = ranges(answer).pop().and_then(|mut range| range.kvs.pop());
        match kv.filter(|kv| kv.create_revision == created) {
            Some(_) => Err(Error::BadVersion {
                path: path.as_str().to_owned(),
                expected: version.unwrap_or(-1),
            }),
            None => {
                self.made.lock().remove(path);
                // The entry may be missing because the session has ended. In this case, return the session's end as the
                // error.
                if is_own {
                    self.check_alive(connection).await?;
                }
                Err(missing())
            }
        }
    }

    /// Returns the put that records the reason of a departure in the session's key, where the waiter behind the entry
    /// reads it ([`Waiter::consequence`]).
    fn record_departure(&self, reason: &'static [u8]) -> RequestOp {
        put(self.own_key.clone(), Bytes::from_static(reason), self.lease)
    }

    async fn set_data(
        &self,
        connection: &Connection,
        path: &ZnodePath,
        data: Bytes,
        version: Option<i32>,
    ) -> Result<Reply> {
        let op = Op::SetData {
            path: path.clone(),
            data,
            version,
        };
        match self.multi(connection, vec![op]).await {
            Ok(Reply::Multi(replies)) => match replies.first() {
                Some(OpReply::Set(stat)) => Ok(Reply::Stat(*stat)),
                _ => Err(malformed("setData")),
            },
            Ok(_) => Err(malformed("setData")),
            Err(Error::MultiFailed { source, .. }) => Err(*source),
            Err(error) => Err(error),
        }
    }

    async fn exists(
        self: &Arc<Self>,
        connection: &Connection,
        path: ZnodePath,
        watch: bool,
    ) -> Result<Reply> {
        let armed = self.armed(watch, Target::node(&self.keys, &path)).await?;
        let (kv, stat, at) = self.look(connection, &path).await?;
        let watcher = armed.map(|armed| armed.watcher(self.clone(), path, kv, at));
        Ok(Reply::Exists { stat, watcher })
    }

    async fn get_data(
        self: &Arc<Self>,
        connection: &Connection,
        path: ZnodePath,
        watch: bool,
    ) -> Result<Reply> {
        let armed = self.armed(watch, Target::node(&self.keys, &path)).await?;
        let (kv, stat, at) = self.look(connection, &path).await?;
        let stat = stat.ok_or_else(|| Error::NoNode {
            path: path.as_str().to_owned(),
        })?;
        let data = kv.as_ref().map_or_else(Bytes::new, |kv| kv.value.clone());
        let watcher = armed.map(|armed| armed.watcher(self.clone(), path, kv, at));
        Ok(Reply::Data {
            data,
            stat,
            watcher,
        })
    }

    fn keys_below(&self, path: &ZnodePath) -> Range {
        let (key, end) = self.keys.below(path);
        Range {
            key,
            end,
            keys_only: true,
            ..Range::default()
        }
    }

    fn count_below(&self, path: &ZnodePath) -> Range {
        Range {
            keys_only: false,
            count_only: true,
            ..self.keys_below(path)
        }
    }

    /// Returns a znode's key and state, and the revision at which they were read.
    async fn look(
        &self,
        connection: &Connection,
        path: &ZnodePath,
    ) -> Result<(Option<KeyValue>, Option<Stat>, i64)> {
        let candidates = self.keys.candidates(path);
        let mut success = reads(&candidates);
        success.push(operation(Operation::Range(self.count_below(path))));
        let read = Txn {
            success,
            ..Txn::default()
        };
        let answer = self.txn(connection, read, path.as_str()).await?;
        let at = revision(answer.header.clone());
        let mut ranges = ranges(answer).into_iter();
        let kv = found(&candidates, &mut ranges);
        let below = ranges.next().map_or(0, |range| range.count);
        let stat = state(path, kv.as_ref(), below);
        Ok((kv, stat, at))
    }

    async fn get_children(
        self: &Arc<Self>,
        connection: &Connection,
        path: ZnodePath,
        watch: bool,
    ) -> Result<Reply> {
        let armed = self
            .armed(watch, Target::children(&self.keys, &path))
            .await?;
        let children = self.children(connection, &path).await?;
        if children.names.is_empty() && !path.is_root() {
            let (kv, _) = self.find(connection, &path).await?;
            kv.ok_or_else(|| Error::NoNode {
                path: path.as_str().to_owned(),
            })?;
        }
        let at = children.at;
        let names: Vec<_> = children.names.into_iter().collect();
        let stat = Stat {
            num_children: i32::try_from(names.len()).unwrap_or(i32::MAX),
            ..Stat::default()
        };
        let watcher = armed.map(|armed| armed.watcher(self.clone(), path, None, at));
        Ok(Reply::Children {
            names,
            stat,
            watcher,
        })
    }

    async fn armed(&self, watch: bool, target: Target) -> Result<Option<super::watches::Armed>> {
        match watch {
            true => self
                .watches
                .arm(target)
                .await
                .map(Some)
                .ok_or_else(|| self.end()),
            false => Ok(None),
        }
    }

    async fn children(&self, connection: &Connection, parent: &ZnodePath) -> Result<Children> {
        let read = self.keys_below(parent);
        let answer = self.range(connection, read, parent.as_str()).await?;
        Ok(self.children_of(parent, &answer))
    }

    fn children_of(&self, parent: &ZnodePath, answer: &RangeResponse) -> Children {
        let mut children = Children {
            at: revision(answer.header.clone()),
            ..Children::default()
        };
        for kv in &answer.kvs {
            if let Some((name, is_whole)) = self.keys.child(parent, kv) {
                if is_whole && kv.lease != 0 && sequence_of(&name).is_some() {
                    children.entries.push((name.clone(), kv.clone()));
                }
                children.names.insert(name);
            }
        }
        children.entries.sort_by_key(|(name, _)| sequence_of(name));
        children
    }

    async fn enqueue(self: &Arc<Self>, connection: &Connection, enqueue: Enqueue) -> Result<Reply> {
        let path = enqueue.parent.join(&enqueue.name)?;
        let key = self.keys.exact(&path);
        let queue = operation(Operation::Range(self.keys_below(&enqueue.parent)));
        let own = operation(Operation::Range(range(key.clone())));
        let txn = Txn {
            compare: vec![created_at(&key, 0)],
            success: vec![
                put(key, enqueue.data.clone(), self.lease),
                own.clone(),
                queue.clone(),
            ],
            // The entry already exists if an earlier attempt has created it and only the answer was lost.
            failure: vec![own, queue],
        };
        let answer = self.txn(connection, txn, path.as_str()).await?;
        let mut ranges = ranges(answer).into_iter();
        let own = ranges.next().and_then(|mut range| range.kvs.pop());
        let own = own.ok_or_else(|| malformed("enqueue"))?;
        if own.lease != self.lease {
            return Err(Error::NodeExists {
                path: path.as_str().to_owned(),
            });
        }
        let queue = ranges.next().ok_or_else(|| malformed("enqueue"))?;
        let path = self.record(&own)?;
        let children = self.children_of(&enqueue.parent, &queue);
        let ahead = self.predecessor(
            &enqueue.parent,
            path.name(),
            children,
            enqueue.blockers,
            enqueue.count,
        );
        Ok(Reply::Enqueued {
            czxid: Zxid(own.create_revision),
            ahead: ahead.await?,
            path,
        })
    }

    async fn get_predecessor(
        self: &Arc<Self>,
        connection: &Connection,
        look: GetPredecessor,
    ) -> Result<Reply> {
        let parent = look.entry.parent().unwrap_or_else(ZnodePath::root);
        let children = self.children(connection, &parent).await?;
        let (entry, blockers) = (look.entry.name(), look.blockers);
        let ahead = self.predecessor(&parent, entry, children, blockers, look.count);
        Ok(Reply::Predecessor(ahead.await?))
    }

    async fn predecessor(
        self: &Arc<Self>,
        parent: &ZnodePath,
        entry: &str,
        children: Children,
        blockers: Blockers,
        count: bool,
    ) -> Result<Predecessor> {
        if children.queue().is_none() {
            return Ok(Predecessor::Listed(children.names.into_iter().collect()));
        }
        let mut entries = children.entries.iter();
        let Some(position) = entries.position(|(name, kv)| name == entry && kv.lease == self.lease)
        else {
            return Ok(Predecessor::Gone);
        };
        let Some((name, kv)) = children.blocker(position, blockers) else {
            return Ok(Predecessor::Clear);
        };
        let by = parent.join(name)?;
        let waiter = Waiter {
            shared: self.clone(),
            parent: parent.clone(),
            entry: entry.to_owned(),
            blockers,
        };
        let watcher = self.watches.departure(waiter, by.clone(), kv);
        Ok(Predecessor::Blocked {
            by,
            watcher,
            count: count.then_some(position),
        })
    }

    async fn multi_read(&self, connection: &Connection, ops: &[ReadOp]) -> Result<Reply> {
        let mut success = Vec::new();
        let candidates: Vec<_> = ops
            .iter()
            .map(|op| self.keys.candidates(op.path()))
            .collect();
        for (op, candidates) in ops.iter().zip(&candidates) {
            match op {
                ReadOp::GetChildren(path) => {
                    success.push(operation(Operation::Range(self.keys_below(path))));
                }
                ReadOp::GetEntry(_) => success.extend(reads(candidates)),
                ReadOp::GetData(path) => {
                    success.extend(reads(candidates));
                    success.push(operation(Operation::Range(self.count_below(path))));
                }
            }
        }
        check_size(success.len())?;
        let read = Txn {
            success,
            ..Txn::default()
        };
        let answer = self.txn(connection, read, "multiRead").await?;
        let mut ranges = ranges(answer).into_iter();
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
                    let names = self.children_of(path, &range).names;
                    match names.is_empty() {
                        true => missing(),
                        false => ReadReply::Children(names.into_iter().collect()),
                    }
                }
                ReadOp::GetData(path) => {
                    let kv = found(candidates, &mut ranges);
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
                    found(candidates, &mut ranges).map_or_else(missing, |kv| ReadReply::Entry {
                        stat: stat(&kv),
                        data: kv.value,
                        granted_at_ms: None,
                    })
                }
            });
        }
        Ok(Reply::MultiRead(replies))
    }

    /// Executes a multi as a transaction. A transaction of etcd may change each key only once. If the multi sets the
    /// data of a znode that it has created, we therefore put the new data into the create.
    async fn multi(&self, connection: &Connection, ops: Vec<Op>) -> Result<Reply> {
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
        let leaves =
            |op: &Op| matches!(op, Op::Delete { path, .. } if self.made.lock().contains_key(path));
        if ops.iter().any(leaves) {
            txn.success.push(self.record_departure(RELEASED));
        }
        check_size(
            txn.success
                .len()
                .max(txn.compare.len())
                .max(txn.failure.len()),
        )?;
        let answer = self.txn(connection, txn, "multi").await?;
        let succeeded = answer.succeeded;
        let mut ranges = ranges(answer).into_iter();
        let mut replies = Vec::with_capacity(ops.len());
        for (index, (op, created)) in ops.iter().zip(nodes).enumerate() {
            let range = ranges.next().ok_or_else(|| malformed("multi"))?;
            if succeeded {
                replies.push(self.op_reply(op, range)?);
            } else if let Some(source) = failure(op, created, &range) {
                return Err(Error::MultiFailed {
                    index,
                    source: Box::new(source),
                });
            }
        }
        if succeeded {
            return Ok(Reply::Multi(replies));
        }
        // No other operation has failed, so a child was created after we counted the children.
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
                let lease = self.lease_of(create.mode)?;
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
        txn.success.push(read);
        Ok(created)
    }

    fn op_reply(&self, op: &Op, mut range: RangeResponse) -> Result<OpReply> {
        let kv = range.kvs.pop();
        Ok(match op {
            Op::Create(_) => {
                let kv = kv.ok_or_else(|| malformed("multi"))?;
                OpReply::Created {
                    path: self.record(&kv)?,
                    stat: Some(stat(&kv)),
                }
            }
            Op::Delete { path, .. } => {
                self.made.lock().remove(path);
                OpReply::Deleted
            }
            Op::SetData { .. } => OpReply::Set(stat(&kv.ok_or_else(|| malformed("multi"))?)),
            Op::Check { .. } | Op::Require(_) => OpReply::Checked,
        })
    }
}

/// If an earlier operation creates the znode whose data this operation sets, puts the new data into the create. Returns
/// false otherwise.
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

/// Returns the reason why an operation has failed, or `None` if it did not fail. `range` contains the operation's
/// znode.
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

fn path_of(op: &Op) -> &ZnodePath {
    match op {
        Op::Create(create) => &create.path,
        Op::Delete { path, .. } | Op::SetData { path, .. } | Op::Check { path, .. } => path,
        Op::Require(condition) => condition.znode(),
    }
}

fn check_size(operations: usize) -> Result<()> {
    match operations > MAX_OPERATIONS {
        true => Err(Error::TooLarge {
            what: "operations of a transaction of etcd",
            actual: operations,
            limit: MAX_OPERATIONS,
        }),
        false => Ok(()),
    }
}

fn unimplemented<T>(what: &'static str) -> Result<T> {
    Err(Error::Unimplemented { what })
}

/// Returns the state of a znode from its key and the number of keys below it. A znode without a key exists while any
/// key is below it.
fn state(path: &ZnodePath, kv: Option<&KeyValue>, below: i64) -> Option<Stat> {
    let exists = kv.is_some() || below > 0 || path.is_root();
    exists.then(|| Stat {
        num_children: i32::try_from(below).unwrap_or(i32::MAX),
        ..kv.map(stat).unwrap_or_default()
    })
}

/// Returns the reads of a znode's possible keys.
fn reads(candidates: &Candidates) -> Vec<RequestOp> {
    let numbered = candidates.numbered.as_ref().map(|(key, _)| key.clone());
    let keys = numbered.into_iter().chain([candidates.exact.clone()]);
    keys.map(|key| operation(Operation::Range(range(key))))
        .collect()
}

/// Takes the answers to [`reads`], and returns the znode's key.
fn found(
    candidates: &Candidates,
    answers: &mut impl Iterator<Item = RangeResponse>,
) -> Option<KeyValue> {
    let numbered = candidates.numbered.as_ref().and_then(|(_, number)| {
        let kv = answers.next()?.kvs.pop();
        kv.filter(|kv| kv.create_revision == *number)
    });
    let exact = answers.next().and_then(|mut range| range.kvs.pop());
    numbered.or(exact)
}

/// Values that a session's key has after the session has deleted an entry.
const RELEASED: &[u8] = b"released";
const WITHDRAWN: &[u8] = b"withdrawn";

/// An entry that waits for another entry to leave.
pub(super) struct Waiter {
    pub(super) shared: Arc<Shared>,
    parent: ZnodePath,
    entry: String,
    blockers: Blockers,
}

impl Waiter {
    /// Returns whether this entry is next, and why the entry ahead has left. The entry ahead had this lease, and was
    /// deleted at revision `at`.
    pub(super) async fn consequence(&self, lease: i64, at: i64) -> Result<PredecessorGone> {
        let shared = &self.shared;
        let connection = shared.connected().await?;
        let queue = shared.keys_below(&self.parent);
        let queue = shared
            .range(&connection, queue, self.parent.as_str())
            .await?;
        let children = shared.children_of(&self.parent, &queue);
        let is_own =
            |(name, kv): &(String, KeyValue)| *name == self.entry && kv.lease == shared.lease;
        let position = children.entries.iter().position(is_own);
        let clear = position.is_some_and(|at| children.blocker(at, self.blockers).is_none());
        // Read the session key of the entry's owner at the revision of the deletion. The key is missing if the owner's
        // session has ended. A release puts the key in the transaction that deletes the entry.
        let session = Range {
            revision: at,
            ..range(shared.keys.session(lease))
        };
        let session = shared
            .range(&connection, session, self.parent.as_str())
            .await;
        let reason = match session.map(|mut answer| answer.kvs.pop()) {
            Ok(None) => DeleteReason::Died,
            Ok(Some(kv)) if kv.mod_revision != at => DeleteReason::Removed,
            Ok(Some(kv)) if kv.value == RELEASED => DeleteReason::Released,
            // Withdrawn, or the revision is compacted.
            _ => DeleteReason::Unknown,
        };
        Ok(PredecessorGone::new(clear, reason))
    }
}

/// Children of a znode at a revision.
#[derive(Default)]
struct Children {
    names: BTreeSet<String>,
    /// Entries of a queue, in order.
    entries: Vec<(String, KeyValue)>,
    at: i64,
}

impl Children {
    /// Returns the nearest entry that blocks the entry at a position of the queue.
    fn blocker(&self, position: usize, blockers: Blockers) -> Option<&(String, KeyValue)> {
        let blocks = |name: &str| match blockers {
            Blockers::All => true,
            Blockers::Exclusive => !name.contains(SHARED_MARKER),
        };
        let mut ahead = self.entries[..position].iter().rev();
        ahead.find(|(name, _)| blocks(name))
    }

    /// Returns the names of the queue's entries. `None` if this is not a queue.
    fn queue(&self) -> Option<Vec<String>> {
        let is_semaphore = SEMAPHORE_CHILDREN
            .iter()
            .any(|name| self.names.contains(*name));
        let names = || self.entries.iter().map(|(name, _)| name.clone()).collect();
        (!is_semaphore).then(names)
    }
}
