//! [`Claim`]: the protected create.
//!
//! The create may have been executed even if its reply was lost. As in Curator's protected create
//! (`CreateBuilder.withProtection`), the znode's name contains an id that is unique to this create, so that the claim
//! can find the znode. A claim never creates its znode twice, and never leaves it behind when dropped (invariant 7).

use std::future::poll_fn;
use std::pin::Pin;

use futures_util::future::try_join_all;
use lockkeeper_store::{
    Call, Cleanup, Condition, CreateMode, Enqueue, Error, OpReply, Predecessor, Session, ZnodePath,
    Zxid, spawn_detached,
};

use super::cleanup::{remove, remove_all};
use super::order::ReleaseMarker;
use crate::metadata::EntryData;
use crate::names::{EntryId, Kind};
use crate::retry::retry;

/// The znodes that one request creates. The claim owns them until it hands them over to guards.
pub(crate) struct Claim<'a, R: Created> {
    session: &'a Session,
    names: Names<'a>,
    state: ClaimState<R>,
}

pub(crate) enum Names<'a> {
    /// One entry per queue. The store appends a number to the name.
    Numbered {
        queues: &'a [ZnodePath],
        kind: Kind,
        id: EntryId,
    },
    /// Full names that are known before the create, for a semaphore's leases and for a converted entry.
    Exact(Vec<ZnodePath>),
}

enum ClaimState<R: Created> {
    Unsent,
    Sent(Box<Call<R>>),
    /// The reply was lost or could not be decoded, so the znodes may exist.
    Unknown,
    Owned(R::Nodes),
}

pub(crate) trait Created: Send + 'static {
    /// Paths of the created znodes. A single entry uses an array, so that waiting for one lock allocates no list.
    type Nodes: AsRef<[ZnodePath]> + TryFrom<Vec<ZnodePath>> + Send;

    fn nodes(&self) -> Self::Nodes;
}

pub(crate) type Enqueued = (ZnodePath, Zxid, Predecessor);

impl Created for Enqueued {
    type Nodes = [ZnodePath; 1];

    fn nodes(&self) -> Self::Nodes {
        [self.0.clone()]
    }
}

impl Created for Vec<OpReply> {
    type Nodes = Vec<ZnodePath>;

    fn nodes(&self) -> Self::Nodes {
        let created = self.iter().filter_map(|reply| match reply {
            OpReply::Created { path, .. } => Some(path.clone()),
            _ => None,
        });
        created.collect()
    }
}

pub(crate) enum Creation<R> {
    Replied(R),
    /// The reply was lost. Contains each queue's entry and its czxid, or `None` if the entry has been deleted since.
    Found(Vec<Option<(ZnodePath, Zxid)>>),
}

impl<R: Created> ClaimState<R> {
    fn owned(nodes: Vec<ZnodePath>) -> Self {
        match nodes.try_into() {
            Ok(nodes) => Self::Owned(nodes),
            Err(_) => unreachable!("a claim of one znode owns one"),
        }
    }
}

impl<'a, R: Created> Claim<'a, R> {
    pub(crate) fn new(session: &'a Session, names: Names<'a>) -> Self {
        Self {
            session,
            names,
            state: ClaimState::Unsent,
        }
    }

    pub(crate) fn owned(session: &'a Session, names: Names<'a>, nodes: R::Nodes) -> Self {
        Self {
            session,
            names,
            state: ClaimState::Owned(nodes),
        }
    }

    pub(crate) fn nodes(&self) -> &[ZnodePath] {
        match &self.state {
            ClaimState::Owned(nodes) => nodes.as_ref(),
            _ => &[],
        }
    }

    pub(crate) fn exact_names(&self) -> &[ZnodePath] {
        match &self.names {
            Names::Exact(names) => names,
            Names::Numbered { .. } => &[],
        }
    }

    /// Hands the znodes over to the caller, which must delete them from then on.
    pub(crate) fn take(&mut self) -> R::Nodes {
        match std::mem::replace(&mut self.state, ClaimState::Unsent) {
            ClaimState::Owned(nodes) => nodes,
            _ => unreachable!("only what exists is handed over"),
        }
    }

    /// Creates the znodes. Sends the request again only if it is certain that the previous one was not executed.
    pub(crate) async fn create(
        &mut self,
        mut send: impl FnMut() -> Call<R>,
    ) -> Result<Creation<R>, Error> {
        loop {
            let lost = match self.request(&mut send).await {
                Ok(reply) => return Ok(Creation::Replied(reply)),
                Err(error) if error.is_ambiguous() => error,
                Err(error) => return Err(error),
            };
            // Search for the entries before the request is sent again. If both creates were executed, the entry that we
            // do not know would block the queue until the session ends.
            let found = Box::pin(self.find()).await?;
            if found.iter().any(Option::is_some) {
                return Ok(Creation::Found(found));
            }
            // The server answered with an error code that we cannot decode. Our znode is missing, so the server refused
            // the create. A retry would return the same code.
            if lost != Error::ConnectionLoss {
                return Err(lost);
            }
        }
    }

    /// Sends the create. After an [ambiguous](Error::is_ambiguous) error the caller must find out whether the create
    /// was executed, and call [`resolve`](Self::resolve).
    pub(crate) async fn request(&mut self, send: impl FnOnce() -> Call<R>) -> Result<R, Error> {
        self.state = ClaimState::Sent(Box::new(send()));
        // Poll the call in place. If this future is dropped, the claim must still own the call.
        let reply = poll_fn(|context| match &mut self.state {
            ClaimState::Sent(call) => Pin::new(call).poll(context),
            _ => unreachable!("nothing else moves the state while the reply is awaited"),
        });
        match reply.await.and_then(|reply| self.checked(reply)) {
            Ok((reply, nodes)) => {
                self.state = ClaimState::Owned(nodes);
                Ok(reply)
            }
            Err(error) => {
                // An unambiguous error is a refusal by the store, so nothing was created.
                self.state = match error.is_ambiguous() {
                    true => ClaimState::Unknown,
                    false => ClaimState::Unsent,
                };
                Err(error)
            }
        }
    }

    /// Treats a reply with a wrong number of znodes like a lost reply, because it does not show what was created.
    #[inline]
    fn checked(&self, reply: R) -> Result<(R, R::Nodes), Error> {
        let expected = match &self.names {
            Names::Numbered { queues, .. } => queues.len(),
            Names::Exact(names) => names.len(),
        };
        let nodes = reply.nodes();
        match nodes.as_ref() {
            created if created.len() == expected => Ok((reply, nodes)),
            created => Err(Error::Protocol(format!(
                "a create of {expected} znodes was answered with {}",
                created.len()
            ))),
        }
    }

    /// Records whether an unanswered create with exact names was executed. The caller may pass `false` only if the
    /// create can no longer be executed.
    pub(crate) fn resolve(&mut self, created: bool) {
        self.state = match created {
            true => ClaimState::owned(self.exact_names().to_vec()),
            false => ClaimState::Unsent,
        };
    }

    async fn find(&mut self) -> Result<Vec<Option<(ZnodePath, Zxid)>>, Error> {
        let Names::Numbered { queues, kind, id } = self.names else {
            unreachable!("znodes with exact names are looked for by the caller");
        };
        let found = find_all(self.session, queues, &kind.name(id)).await?;
        let nodes: Vec<_> = found
            .iter()
            .flatten()
            .map(|(node, _)| node.clone())
            .collect();
        self.state = match nodes.is_empty() {
            true => ClaimState::Unsent,
            false => ClaimState::owned(nodes),
        };
        Ok(found)
    }

    pub(crate) fn abandon(&mut self) {
        let state = std::mem::replace(&mut self.state, ClaimState::Unsent);
        match (state, &self.names) {
            (ClaimState::Unsent, _) => {}
            (ClaimState::Owned(nodes), _) => remove_all(self.session, nodes.as_ref()),
            // A session's requests are executed in the order in which they were sent. So this delete also removes a
            // znode whose create is still in flight.
            (_, Names::Exact(names)) => remove_all(self.session, names),
            (state, Names::Numbered { queues, kind, id }) => {
                let (session, queues) = (self.session.clone(), queues.to_vec());
                clean_up(session, queues, kind.name(*id), state);
            }
        }
    }
}

impl<R: Created> Drop for Claim<'_, R> {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.state, ClaimState::Unsent) {
            self.abandon();
        }
    }
}

/// Removes the entries of a create. If the create's reply has not arrived, waits for it in the background, because only
/// the reply contains the full names.
fn clean_up<R: Created>(
    session: Session,
    queues: Vec<ZnodePath>,
    name: String,
    state: ClaimState<R>,
) {
    let reply = match state {
        ClaimState::Sent(call) => call.now_or_never(),
        _ => Ok(Err(Error::ConnectionLoss)),
    };
    if let Ok(Ok(reply)) = &reply {
        return remove_all(&session, reply.nodes().as_ref());
    }
    // Register the clean-up before the reply arrives, because a program may wait until no clean-up is pending.
    let pending = Cleanup::new(&session, &queues[0]);
    spawn_detached(async move {
        let (_pending, session) = (pending, session);
        let reply = match reply {
            Ok(reply) => reply,
            Err(call) => call.await,
        };
        match reply {
            Ok(reply) => {
                let nodes = reply.nodes();
                nodes
                    .as_ref()
                    .iter()
                    .for_each(|node| remove(&session, node));
            }
            Err(error) if error.is_ambiguous() => sweep(session, queues, name).await,
            Err(_) => {}
        }
    });
}

async fn sweep(session: Session, queues: Vec<ZnodePath>, name: String) {
    let mut cleanup = Cleanup::new(&session, &queues[0]);
    let mut session = session;
    loop {
        let error = match find_all(&session, &queues, &name).await {
            Ok(found) => {
                let nodes = found.iter().flatten();
                return nodes.for_each(|(node, _)| remove(&session, node));
            }
            Err(error) => error,
        };
        match cleanup.retry_after(session, error).await {
            Ok(again) => session = again,
            Err(_) => return,
        }
    }
}

async fn find_all(
    session: &Session,
    queues: &[ZnodePath],
    name: &str,
) -> Result<Vec<Option<(ZnodePath, Zxid)>>, Error> {
    let searches = queues.iter().map(|queue| find(session, queue, name));
    try_join_all(searches).await
}

/// Finds one entry by its unique name and its owner. A list without the entry proves its absence only after a committed
/// write on the same connection. Otherwise the create may still be on its way over the broken connection (invariant 8).
async fn find(
    session: &Session,
    queue: &ZnodePath,
    name: &str,
) -> Result<Option<(ZnodePath, Zxid)>, Error> {
    let unnumbered = queue.join(name)?;
    let children = retry(|| list_behind_a_write(session, queue, &unnumbered)).await?;
    for child in children.iter().filter(|child| child.starts_with(name)) {
        let node = queue.join(child)?;
        if let Some(czxid) = created_at(session, &node).await? {
            return Ok(Some((node, czxid)));
        }
    }
    Ok(None)
}

const NO_VERSION: i32 = i32::MAX;

/// Lists a queue after a committed write on the same connection. The write is a delete of `missing`, a znode that never
/// exists. The servers refuse this delete, but order it like any other write. A sync is not enough, because it is not a
/// transaction.
async fn list_behind_a_write(
    session: &Session,
    queue: &ZnodePath,
    missing: &ZnodePath,
) -> Result<Vec<String>, Error> {
    // Send both requests before awaiting either, to save a round trip.
    let barrier = session.delete(missing, Some(NO_VERSION));
    let list = session.get_children(queue);
    match (barrier.await, list.await) {
        (Err(Error::ConnectionLoss), _) => Err(Error::ConnectionLoss),
        (Err(Error::NoNode { .. } | Error::BadVersion { .. }), Ok((names, _))) => Ok(names),
        (_, Err(Error::NoNode { .. })) => Ok(Vec::new()),
        (_, Err(error)) | (Err(error), _) => Err(error),
        (Ok(()), Ok(_)) => Err(Error::Protocol(format!("{missing} should never exist"))),
    }
}

/// Returns the czxid of a znode if this session owns it. The name is no proof, because another client can copy it.
pub(crate) async fn created_at(session: &Session, node: &ZnodePath) -> Result<Option<Zxid>, Error> {
    let stat = retry(|| session.exists(node)).await?;
    Ok(stat
        .filter(|stat| stat.ephemeral_owner == session.id())
        .map(|stat| stat.czxid))
}

#[inline]
pub(crate) fn enqueue(
    session: &Session,
    queue: &ZnodePath,
    kind: Kind,
    id: EntryId,
    data: &EntryData,
    conditions: Vec<Condition>,
    count: bool,
) -> Call<Enqueued> {
    let enqueue = Enqueue {
        parent: queue.clone(),
        name: kind.name(id),
        data: data.to_bytes(),
        acl: session.acl().clone(),
        blockers: kind.blockers(),
        conditions,
        count,
        queue_data: Some(ReleaseMarker::fresh_bytes(kind).clone()),
    };
    session.enqueue(enqueue)
}

pub(crate) async fn create_queue(
    session: &Session,
    queue: &ZnodePath,
    kind: Kind,
) -> Result<(), Error> {
    let mut mode = CreateMode::Container;
    loop {
        let marker = ReleaseMarker::fresh_bytes(kind);
        match retry(|| session.create(queue, marker.clone(), mode)).await {
            Ok(_) | Err(Error::NodeExists { .. }) => return Ok(()),
            // The server does not support containers.
            Err(Error::Unimplemented { .. }) if mode == CreateMode::Container => {
                mode = CreateMode::Persistent;
            }
            Err(Error::NoNode { .. }) => {
                let Some(above) = queue.parent().filter(|above| !above.is_root()) else {
                    return Err(Error::NoNode {
                        path: queue.to_string(),
                    });
                };
                create_above(session, &above, mode).await?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Uses containers if possible, because persistent znodes would accumulate in a program that keeps using new paths.
pub(crate) async fn create_above(
    session: &Session,
    above: &ZnodePath,
    mode: CreateMode,
) -> Result<(), Error> {
    match retry(|| session.create_all(above, mode)).await {
        Err(Error::Unimplemented { .. }) if mode == CreateMode::Container => {
            retry(|| session.create_all(above, CreateMode::Persistent)).await
        }
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_store::{Client, Create, Op, Watcher, connect};

    use super::*;

    const KIND: Kind = Kind::Mutex;

    async fn connected(test: &str) -> (Client, Session, [ZnodePath; 3]) {
        let client = connect("memory:").await.unwrap();
        let session = client.session().await.unwrap();
        let queues = [1, 2, 3].map(|queue| format!("/{test}-{queue}").parse().unwrap());
        for queue in &queues {
            let made = session.create(queue, "", CreateMode::Persistent);
            made.await.unwrap();
        }
        (client, session, queues)
    }

    async fn create(
        session: &Session,
        queues: &[ZnodePath],
        id: EntryId,
    ) -> (Call<Vec<OpReply>>, Vec<ZnodePath>, Vec<Watcher>) {
        let entry = |queue: &ZnodePath| {
            Op::Create(Create {
                path: queue.join(&KIND.name(id)).unwrap(),
                data: Default::default(),
                mode: CreateMode::EphemeralSequential,
                acl: session.acl().clone(),
            })
        };
        let call = session.multi(queues.iter().map(entry).collect::<Vec<_>>());
        let (mut nodes, mut watches) = (Vec::new(), Vec::new());
        for queue in queues {
            let (children, _) = session.get_children(queue).await.unwrap();
            let node = queue.join(&children[0]).unwrap();
            let (stat, watch) = session.watch_exists(&node).await.unwrap();
            assert!(stat.is_some());
            nodes.push(node);
            watches.push(watch);
        }
        (call, nodes, watches)
    }

    #[test]
    fn a_dropped_claim_leaves_no_entry_behind() {
        pollster::block_on(async {
            let (_client, session, queues) = connected("dropped").await;
            type Answer = fn(Call<Vec<OpReply>>) -> ClaimState<Vec<OpReply>>;
            let sent: Answer = |call| ClaimState::Sent(Box::new(call));
            let lost: Answer = |_| ClaimState::Unknown;
            for (answer, created) in [(sent, 3), (lost, 3), (sent, 2), (lost, 2)] {
                let id = EntryId::fresh();
                let names = Names::Numbered {
                    queues: &queues,
                    kind: KIND,
                    id,
                };
                let (call, _, watches) = create(&session, &queues[..created], id).await;
                let mut claim = Claim::new(&session, names);
                claim.state = answer(call);
                drop(claim);
                for watch in watches {
                    watch.await.unwrap();
                }
            }
        });
    }

    #[test]
    fn an_answer_with_fewer_entries_is_resolved_by_a_search() {
        pollster::block_on(async {
            let (_client, session, queues) = connected("fewer").await;
            let id = EntryId::fresh();
            let names = Names::Numbered {
                queues: &queues,
                kind: KIND,
                id,
            };
            let (call, nodes, watches) = create(&session, &queues[..2], id).await;
            let mut calls = Some(call);
            let mut claim = Claim::new(&session, names);
            let created = claim.create(|| calls.take().expect("it has been sent"));
            let Ok(Creation::Found(found)) = created.await else {
                panic!("the entries are there")
            };
            let found: Vec<_> = found.into_iter().flatten().map(|(node, _)| node).collect();
            assert_eq!(found, nodes);
            assert_eq!(claim.nodes(), nodes);
            drop(claim);
            for watch in watches {
                watch.await.unwrap();
            }
        });
    }
}
