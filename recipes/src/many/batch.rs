//! [`Batch`]: joins several queues.

use futures_util::future::try_join_all;
use lockkeeper_store::{
    Create, CreateMode, Error, GetPredecessor, Op, OpReply, Predecessor, ReadOp, ReadReply,
    Session, ZnodePath, Zxid,
};

use super::multi_lock::Keys;
use crate::error::{LockError, Result};
use crate::events::EventSink;
use crate::guard::Guard;
use crate::metadata::EntryData;
use crate::names::{EntryId, Kind};
use crate::queue::{Claim, Creation, Grant, Names, Queue, WaitOptions, Waiter, create_queue};
use crate::retry::retry;

const KIND: Kind = Kind::Mutex;

/// One entry in each of several queues. One multi creates all entries, so any two batches have the same order in all
/// queues. Dropping a batch removes its entries.
pub(super) struct Batch<'a> {
    session: &'a Session,
    keys: &'a Keys,
    /// All names contain this id, so that we can find all entries after a lost reply.
    id: EntryId,
    claim: Claim<'a, Vec<OpReply>>,
}

impl<'a> Batch<'a> {
    pub(super) async fn enter(
        session: &'a Session,
        keys: &'a Keys,
        wait_options: &'a WaitOptions,
        events: Option<&EventSink>,
    ) -> Result<Vec<Waiter<'a>>> {
        let id = EntryId::fresh();
        let names = Names::Numbered {
            queues: keys.queues(),
            kind: KIND,
            id,
        };
        let mut batch = Self {
            session,
            keys,
            id,
            claim: Claim::new(session, names),
        };
        let czxid = batch.join(wait_options).await?;
        let nodes = batch.claim.nodes();
        let (czxid, ahead) = match czxid {
            Some(czxid) => (
                czxid,
                get_predecessors(session, nodes, wait_options.count).await?,
            ),
            // The zxid is unknown, because the reply was lost or is from a ZooKeeper before 3.9.
            None => list(session, keys, &nodes[0]).await?,
        };
        Ok(batch.into_waiters(wait_options, czxid, ahead, events))
    }

    async fn join(&mut self, wait_options: &WaitOptions) -> Result<Option<Zxid>> {
        let mut creates = Vec::with_capacity(self.keys.len());
        for queue in self.keys.queues() {
            creates.push(Op::Create(Create {
                path: queue.join(&KIND.name(self.id))?,
                data: wait_options.data.to_bytes(),
                mode: CreateMode::EphemeralSequential,
                acl: self.session.acl().clone(),
            }));
        }
        let session = self.session;
        loop {
            let send = || session.multi(creates.clone());
            let error = match self.claim.create(send).await {
                Ok(Creation::Replied(replies)) => return Ok(czxid_of(&replies)),
                Ok(Creation::Found(found)) => match found.iter().position(Option::is_none) {
                    None => return Ok(None),
                    // A multi creates all entries or none, so this entry was created and has been removed since.
                    Some(gone) => return Err(self.removed(gone)),
                },
                Err(Error::MultiFailed { source, .. }) => *source,
                Err(error) => return Err(error.into()),
            };
            match error {
                // The queue was never used, or the server reaped its empty container.
                Error::NoNode { .. } => create_missing(self.session, self.keys).await?,
                error => return Err(error.into()),
            }
        }
    }

    fn removed(&self, index: usize) -> LockError {
        let queue = self.keys.path(index);
        LockError::EntryDeleted {
            entry: queue
                .join(&KIND.name(self.id))
                .unwrap_or_else(|_| queue.clone()),
        }
    }

    fn into_waiters(
        mut self,
        wait_options: &'a WaitOptions,
        czxid: Zxid,
        ahead: Vec<Predecessor>,
        events: Option<&EventSink>,
    ) -> Vec<Waiter<'a>> {
        let (session, id) = (self.session, self.id);
        let entries = self.claim.take().into_iter().zip(ahead);
        let entries = self.keys.queues().iter().zip(entries);
        entries
            .map(|(path, (node, ahead))| {
                let queue = Queue {
                    session,
                    path,
                    kind: KIND,
                };
                let entry = (node, czxid, ahead);
                Waiter::joined(queue, wait_options, events.cloned(), id, entry)
            })
            .collect()
    }
}

async fn create_missing(session: &Session, keys: &Keys) -> Result<()> {
    let reads: Vec<_> = keys.queues().iter().cloned().map(ReadOp::GetData).collect();
    let found = retry(|| session.multi_read(reads.clone())).await?;
    let missing = keys.queues().iter().zip(found).filter_map(|(path, found)| {
        matches!(found, ReadReply::Failed(Error::NoNode { .. })).then_some(path)
    });
    try_join_all(missing.map(|path| create_queue(session, path, KIND))).await?;
    Ok(())
}

async fn get_predecessors(
    session: &Session,
    nodes: &[ZnodePath],
    count: bool,
) -> Result<Vec<Predecessor>> {
    let looks = nodes.iter().map(|node| {
        session.get_predecessor(GetPredecessor {
            entry: node.clone(),
            blockers: KIND.blockers(),
            conditions: Vec::new(),
            count,
        })
    });
    // Send all requests before the first reply is awaited.
    let looks: Vec<_> = looks.collect();
    let mut ahead = Vec::with_capacity(looks.len());
    for look in looks {
        ahead.push(match look.await {
            Err(Error::ConnectionLoss) => Predecessor::Unknown,
            Err(Error::NoNode { .. }) => Predecessor::Gone,
            answer => answer?,
        });
    }
    Ok(ahead)
}

/// Lists all queues and reads the multi's zxid from one of our znodes, in one request.
async fn list(
    session: &Session,
    keys: &Keys,
    node: &ZnodePath,
) -> Result<(Zxid, Vec<Predecessor>)> {
    let mut reads = vec![ReadOp::GetData(node.clone())];
    reads.extend(keys.queues().iter().cloned().map(ReadOp::GetChildren));
    loop {
        let answers = retry(|| session.multi_read(reads.clone())).await?;
        let mut answers = answers.into_iter();
        let own = answers.next();
        if let Some(ReadReply::Data { stat, .. }) = own
            && stat.ephemeral_owner == session.id()
        {
            return Ok((stat.czxid, answers.map(listed).collect::<Result<_>>()?));
        }
        // Either the server lags behind the multi, or the znode was removed. The check is committed like a write, so
        // its result shows which of the two happened, and the server has caught up before the next read.
        match retry(|| session.check(node, None)).await {
            Ok(()) => {}
            Err(Error::MultiFailed { .. }) => {
                return Err(LockError::EntryDeleted {
                    entry: node.clone(),
                });
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn czxid_of(replies: &[OpReply]) -> Option<Zxid> {
    match replies.last() {
        Some(OpReply::Created { stat, .. }) => stat.map(|stat| stat.czxid),
        _ => None,
    }
}

fn listed(reply: ReadReply) -> Result<Predecessor> {
    match reply {
        ReadReply::Children(names) => Ok(Predecessor::Listed(names)),
        ReadReply::Failed(Error::NoNode { .. }) => Ok(Predecessor::Unknown),
        ReadReply::Failed(error) => Err(error.into()),
        _ => Err(Error::Protocol("a list was answered with data".to_owned()).into()),
    }
}

pub(super) async fn grant(
    session: &Session,
    mut waiters: Vec<Waiter<'_>>,
    wait_options: &WaitOptions,
    events: Option<&EventSink>,
) -> Result<Vec<Guard>> {
    confirm(session, &mut waiters).await?;
    let grants = waiters.into_iter().map(|mut waiter| waiter.grant());
    let guards = grants.map(|grant| guard(session, grant, &wait_options.data, events));
    Ok(guards.collect())
}

/// Confirms that all locks are held at the same moment. During the wait, an entry that reached the head early may have
/// been removed, or the lease may have lapsed.
async fn confirm(session: &Session, granted: &mut [Waiter<'_>]) -> Result<()> {
    // Without a wait, the reply to the create has just confirmed all entries.
    let mut is_certain = !granted.iter().any(Waiter::has_waited);
    while !is_certain || !granted.iter().all(Waiter::may_grant) {
        // Renew the lease first, so that the check confirms the entries under the new lease.
        let lease = session.fresh_lease().await?;
        let checks = granted.iter().map(|waiter| Op::Check {
            path: waiter.path().clone(),
            version: None,
        });
        let checks: Vec<_> = checks.collect();
        match retry(|| session.multi(checks.clone())).await {
            Ok(_) => {
                is_certain = true;
                granted
                    .iter_mut()
                    .for_each(|waiter| waiter.proved(lease.clone()));
            }
            Err(Error::MultiFailed { index, .. }) => return Err(granted[index].removed()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(super) fn guard(
    session: &Session,
    grant: Grant,
    data: &EntryData,
    events: Option<&EventSink>,
) -> Guard {
    Guard::new(session.clone(), grant, KIND, data.clone(), events.cloned())
}
