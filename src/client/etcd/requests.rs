//! Maps the recipes' requests to etcd calls. Requests that no recipe needs fail with `Unimplemented`.

mod multi;
mod queue;

use std::sync::Arc;

use bytes::Bytes;
use tonic::Code;

use super::NO_LISTS;
use super::channel::{Connection, Failure};
use super::keys::{stat, takes_number};
use super::messages::{
    KeyValue, LEASE_GRANT, LeaseGrant, LeaseGrantResponse, MODIFY, Operand, Operation,
    OperationResponse, Range, RangeResponse, RequestOp, TXN, Txn, TxnResponse, compare, operation,
    put, range, ranges, revision,
};
use super::session::Shared;
use super::watches::{Armed, Target};
use crate::model::acl::Acl;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::model::protocol::{Create, Op, OpReply, Reply, Request};
use crate::model::types::{CreateMode, Stat};
use crate::model::watch::{PersistentWatcher, Watcher};

/// etcd's default limit of operations in a transaction (`--max-txn-ops`).
const MAX_OPERATIONS: usize = 128;

fn check_count(operations: usize) -> Result<()> {
    match operations > MAX_OPERATIONS {
        true => Err(Error::LimitReached {
            what: "operations of a transaction of etcd",
            limit: MAX_OPERATIONS,
        }),
        false => Ok(()),
    }
}

fn check_list(acl: &Acl) -> Result<()> {
    match *acl == Acl::open() {
        true => Ok(()),
        false => unimplemented(NO_LISTS),
    }
}

fn malformed(what: &str) -> Error {
    Error::Protocol(format!("etcd's answer to {what} lacks a part"))
}

pub(super) use self::multi::path_of;
pub(super) use self::queue::Waiter;
use self::queue::{RELEASED, WITHDRAWN};

/// A znode's key, and its create revision.
type Node = (Vec<u8>, i64);

impl Shared {
    /// Executes a transaction, which also checks the session's [fence](Connection::fence). So, as in ZooKeeper, a write
    /// that arrives late from an earlier connection has no effect, and a session that has ended gets its end as the
    /// error, and not an answer that lacks its own znodes.
    async fn txn(&self, connection: &Connection, mut txn: Txn, about: &str) -> Result<TxnResponse> {
        let is_read = |op: &RequestOp| matches!(op.operation, Some(Operation::Range(_)));
        if !txn.success.iter().all(is_read) {
            let fence = Operand::ModifyRevision(connection.fence);
            txn.compare.push(compare(MODIFY, &self.fence_key, fence));
        }
        let fence = operation(Operation::Range(range(self.fence_key.clone())));
        txn.success.push(fence.clone());
        txn.failure.push(fence);
        let operations = txn.success.len().max(txn.failure.len());
        check_count(operations.max(txn.compare.len()))?;
        let answer = self.call_kv(connection, TXN, txn);
        let mut answer: TxnResponse = match answer.await {
            // The lease of a put has ended, which may be the session's or that of a znode with a time to live.
            Err(Failure::Refused {
                code: Code::NotFound,
                ..
            }) => {
                self.check_alive(connection).await?;
                return Err(Error::ConnectionLoss);
            }
            answer => answer.map_err(|failure| self.error(failure, about))?,
        };
        let fence = match answer.responses.pop().and_then(|fence| fence.response) {
            Some(OperationResponse::Range(mut fence)) => fence.kvs.pop(),
            _ => None,
        };
        match fence {
            Some(fence) if fence.mod_revision == connection.fence => Ok(answer),
            Some(_) => Err(Error::ConnectionLoss),
            None => {
                self.check_alive(connection).await?;
                Err(Error::ConnectionLoss)
            }
        }
    }

    /// Reads ranges at one revision, and returns this revision.
    async fn read(
        &self,
        connection: &Connection,
        mut reads: Vec<Range>,
        about: &str,
    ) -> Result<(Vec<RangeResponse>, i64)> {
        let mut at = 0;
        let mut answers = Vec::with_capacity(reads.len());
        for reads in reads.chunks_mut(MAX_OPERATIONS - 1) {
            reads
                .iter_mut()
                .for_each(|read| read.revision = at.max(read.revision));
            let reads = reads.iter().cloned().map(Operation::Range);
            let read = Txn {
                success: reads.map(operation).collect(),
                ..Txn::default()
            };
            let answer = self.txn(connection, read, about).await?;
            if at == 0 {
                at = revision(answer.header.clone());
            }
            answers.extend(ranges(answer));
        }
        Ok((answers, at))
    }

    /// Reads ranges as the member has applied them, without a round trip to the leader.
    ///
    /// # Errors
    /// Fails if the member has not yet applied the revision `since`.
    async fn read_local(
        &self,
        connection: &Connection,
        reads: Vec<Range>,
        since: i64,
    ) -> Result<Vec<RangeResponse>> {
        let local = |read| Range {
            serializable: true,
            ..read
        };
        let reads = reads.into_iter().map(local).map(Operation::Range);
        let read = Txn {
            success: reads.map(operation).collect(),
            ..Txn::default()
        };
        let answer = connection.call(TXN, read, self.patience()).await;
        let answer: TxnResponse = answer.map_err(|failure| self.error(failure, "a local read"))?;
        match revision(answer.header.clone()) < since {
            true => Err(Error::ConnectionLoss),
            false => Ok(ranges(answer)),
        }
    }

    fn error(&self, failure: Failure, about: &str) -> Error {
        match failure {
            Failure::Lost(reason) => {
                tracing::debug!(session = %self.status.id(), reason, "an answer of etcd was lost");
                Error::ConnectionLoss
            }
            Failure::Replaced { .. } => self.end(),
            // A revision was compacted between two parts of a read.
            Failure::Refused {
                code: Code::OutOfRange,
                ..
            } => Error::ConnectionLoss,
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
            Failure::Refused {
                code: Code::ResourceExhausted,
                ..
            } => Error::DiskFull {
                path: "etcd".into(),
            },
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
            // Create nothing, because every parent exists while it has children, like a container.
            Request::Create(create) if create.mode == CreateMode::Container => Ok(Reply::Created {
                path: create.path,
                stat: Stat::default(),
            }),
            Request::Create(create) => {
                match self.one(connection, Op::Create(create), RELEASED).await? {
                    OpReply::Created { path, stat } => Ok(Reply::Created {
                        path,
                        stat: stat.unwrap_or_default(),
                    }),
                    _ => Err(malformed("create")),
                }
            }
            Request::Delete { path, version } => {
                let op = Op::Delete { path, version };
                self.one(connection, op, RELEASED)
                    .await
                    .map(|_| Reply::Done)
            }
            Request::Withdraw { entry } => {
                let op = Op::Delete {
                    path: entry,
                    version: None,
                };
                self.one(connection, op, WITHDRAWN)
                    .await
                    .map(|_| Reply::Done)
            }
            Request::Exists { path, watch } => {
                let (_, stat, watcher) = self.look_and_watch(connection, path, watch).await?;
                Ok(Reply::Exists { stat, watcher })
            }
            Request::GetData { path, watch } => {
                let missing = Error::NoNode {
                    path: path.as_str().to_owned(),
                };
                let (data, stat, watcher) = self.look_and_watch(connection, path, watch).await?;
                Ok(Reply::Data {
                    data,
                    stat: stat.ok_or(missing)?,
                    watcher,
                })
            }
            Request::SetData {
                path,
                data,
                version,
            } => {
                let op = Op::SetData {
                    path,
                    data,
                    version,
                };
                match self.one(connection, op, RELEASED).await? {
                    OpReply::Set(stat) => Ok(Reply::Stat(stat)),
                    _ => Err(malformed("setData")),
                }
            }
            Request::GetChildren { path, watch } => {
                self.get_children(connection, path, watch).await
            }
            Request::Multi(ops) => {
                let replies = self.multi(connection, ops, RELEASED).await?;
                Ok(Reply::Multi(replies))
            }
            Request::MultiRead(ops) => self.multi_read(connection, &ops).await,
            Request::Sync { path } => {
                let read = vec![range(self.keys.exact(&path))];
                self.read(connection, read, path.as_str()).await?;
                Ok(Reply::Done)
            }
            Request::GetAllChildrenNumber { path } => {
                let below = vec![self.keys_below(&path)];
                let (below, _) = self.read(connection, below, path.as_str()).await?;
                let keys = below.iter().flat_map(|range| &range.kvs);
                Ok(Reply::Count(self.keys.count_below(&path, keys)))
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
            Request::GetAcl { .. } | Request::SetAcl { .. } => unimplemented(NO_LISTS),
            Request::AddAuth { .. } => unimplemented("addAuth"),
            Request::Close => unreachable!("the session closes itself"),
        }
    }

    /// Finds a znode by its path. If the name ends with a number, either etcd has numbered the znode, or the key itself
    /// ends with this number.
    async fn find(&self, connection: &Connection, path: &ZnodePath) -> Result<Option<KeyValue>> {
        let candidates = self.keys.candidates(path);
        let (answers, _) = self
            .read(connection, candidates.reads(), path.as_str())
            .await?;
        Ok(candidates.found(&mut answers.into_iter()))
    }

    async fn node(&self, connection: &Connection, path: &ZnodePath) -> Result<Option<Node>> {
        if let Some(node) = self.made.lock().get(path) {
            return Ok(Some(node.clone()));
        }
        let kv = self.find(connection, path).await?;
        Ok(kv.map(|kv| (kv.key.to_vec(), kv.create_revision)))
    }

    /// Returns the key of a new znode, and the lease that the key is attached to.
    async fn key_and_lease(
        &self,
        connection: &Connection,
        create: &Create,
    ) -> Result<(Vec<u8>, i64)> {
        check_list(&create.acl)?;
        let key = self.keys.exact(&create.path);
        let lease = match create.mode {
            CreateMode::Persistent => 0,
            CreateMode::Ephemeral if !takes_number(&key) => self.lease,
            CreateMode::EphemeralSequential if takes_number(&key) => self.lease,
            // The znode gets its own lease, which is never renewed.
            CreateMode::PersistentTtl(ttl) if !takes_number(&key) => {
                let grant = LeaseGrant::rounded_up(ttl);
                let granted = connection.call(LEASE_GRANT, grant, self.patience()).await;
                let granted = granted.map_err(|failure| self.error(failure, "a lease"))?;
                let LeaseGrantResponse { id, .. } = granted;
                id
            }
            _ => return unimplemented("this mode of a create"),
        };
        Ok((key, lease))
    }

    /// Returns the state of a key that this session has created at a revision.
    fn own(&self, key: Vec<u8>, value: Bytes, at: i64) -> KeyValue {
        KeyValue {
            key: key.into(),
            value,
            lease: self.lease,
            create_revision: at,
            mod_revision: at,
            version: 1,
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

    /// Returns the put that records in the session's key why an entry leaves. The waiter behind the entry reads this
    /// reason in [`Waiter::consequence`].
    fn record_departure(&self, reason: &'static [u8]) -> RequestOp {
        put(self.own_key.clone(), Bytes::from_static(reason), self.lease)
    }

    /// Executes one operation. If it fails, returns its own error and not [`Error::MultiFailed`].
    async fn one(
        &self,
        connection: &Connection,
        op: Op,
        departure: &'static [u8],
    ) -> Result<OpReply> {
        match self.multi(connection, vec![op], departure).await {
            Ok(mut replies) => replies.pop().ok_or_else(|| malformed("a transaction")),
            Err(Error::MultiFailed { source, .. }) => Err(*source),
            Err(error) => Err(error),
        }
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

    async fn look_and_watch(
        self: &Arc<Self>,
        connection: &Connection,
        path: ZnodePath,
        watch: bool,
    ) -> Result<(Bytes, Option<Stat>, Option<Watcher>)> {
        let armed = self.armed(watch, Target::node(&self.keys, &path)).await?;
        let (kv, stat, at) = self.look(connection, &path).await?;
        let data = kv.as_ref().map_or_else(Bytes::new, |kv| kv.value.clone());
        let watcher = armed.map(|armed| armed.watcher(self.clone(), path, kv, at));
        Ok((data, stat, watcher))
    }

    /// Returns a znode's key and state, and the revision at which they were read.
    async fn look(
        &self,
        connection: &Connection,
        path: &ZnodePath,
    ) -> Result<(Option<KeyValue>, Option<Stat>, i64)> {
        let candidates = self.keys.candidates(path);
        let mut reads = candidates.reads();
        reads.push(self.count_below(path));
        let (ranges, at) = self.read(connection, reads, path.as_str()).await?;
        let mut ranges = ranges.into_iter();
        let kv = candidates.found(&mut ranges);
        let below = ranges.next().map_or(0, |range| range.count);
        let stat = state(path, kv.as_ref(), below);
        Ok((kv, stat, at))
    }

    /// Lists and watches the children of a znode. A missing znode has no children, so its watch fires when the first
    /// child is created.
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

    async fn armed(&self, watch: bool, target: Target) -> Result<Option<Armed>> {
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
