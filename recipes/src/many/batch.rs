//! [`Batch`]: one place in each of several queues, taken by one multi.

use std::future::poll_fn;
use std::pin::Pin;

use lockkeeper_store::{
    Call, Cleanup, Create, CreateMode, Error, GetPredecessor, Op, OpReply, Predecessor, ReadOp,
    ReadReply, Session, ZnodePath, Zxid, spawn_detached,
};

use super::keys::Keys;
use super::unanswered::{find_all, sweep_all};
use crate::error::{LockError, Result};
use crate::events::EventSink;
use crate::guard::Guard;
use crate::metadata::EntryData;
use crate::names::{EntryId, Kind};
use crate::queue::{Entry, Form, Held, make_queue, remove, remove_all};
use crate::retry::retry;
use crate::together::Together;
use crate::token::FencingToken;

const KIND: Kind = Kind::Mutex;

/// One place in each of several queues. All are taken by one multi, so that every two batches stand
/// in the same order wherever they meet. Dropping it leaves nothing in any of them.
pub(super) struct Batch<'a> {
    session: &'a Session,
    keys: &'a Keys,
    /// The same in all queues, and in no other batch.
    name: String,
    stage: Stage,
}

enum Stage {
    /// Nothing of it is at the store.
    Out,
    /// The multi is under way.
    Sent(Box<Call<Vec<OpReply>>>),
    /// The multi's answer was lost, or cannot be read.
    Unknown,
    /// These are the nodes, in the order of the keys, and the zxid of them all where it is known.
    In(Vec<ZnodePath>, Option<Zxid>),
}

impl Stage {
    /// The nodes that are known to stand in the queues.
    fn nodes(&self) -> &[ZnodePath] {
        match self {
            Self::In(nodes, _) => nodes,
            _ => &[],
        }
    }
}

impl<'a> Batch<'a> {
    /// Joins all queues at once; answers the token of all, and of each queue the place in it.
    pub(super) async fn enter(
        session: &'a Session,
        keys: &'a Keys,
        form: &Form,
        events: Option<&EventSink>,
    ) -> Result<(FencingToken, Vec<Entry<'a>>)> {
        let mut batch = Self {
            session,
            keys,
            name: KIND.name(EntryId::fresh()),
            stage: Stage::Out,
        };
        batch.join(form).await?;
        let (czxid, ahead) = match &batch.stage {
            Stage::In(nodes, Some(czxid)) => {
                (*czxid, get_predecessor(session, nodes, form.count).await?)
            }
            Stage::In(nodes, None) => list(session, keys, &nodes[0]).await?,
            _ => unreachable!("it has joined"),
        };
        let entries = batch.into_entries(czxid, ahead, events);
        Ok((FencingToken::new(czxid), entries))
    }

    async fn join(&mut self, form: &Form) -> Result<()> {
        loop {
            match self.send(form).await.and_then(made) {
                Ok(stage) => {
                    self.stage = stage;
                    return Ok(());
                }
                Err(error) if error.is_ambiguous() => {
                    self.stage = Stage::Unknown;
                    if self.find().await? {
                        return Ok(());
                    }
                    self.stage = Stage::Out;
                    // As for a single entry.
                    if error != Error::ConnectionLoss {
                        return Err(error.into());
                    }
                }
                Err(Error::MultiFailed { source, .. }) => {
                    self.stage = Stage::Out;
                    match *source {
                        // Never made, or reaped since: containers go when they are empty.
                        Error::NoNode { .. } => make_missing(self.session, self.keys).await?,
                        error => return Err(error.into()),
                    }
                }
                Err(error) => {
                    self.stage = Stage::Out;
                    return Err(error.into());
                }
            }
        }
    }

    async fn send(&mut self, form: &Form) -> Result<Vec<OpReply>, Error> {
        let mut creates = Vec::with_capacity(self.keys.len());
        for parent in self.keys.paths() {
            creates.push(Op::Create(Create {
                path: parent.join(&self.name)?,
                data: form.data.to_bytes(),
                mode: CreateMode::EphemeralSequential,
                acl: self.session.acl().clone(),
            }));
        }
        match self.session.multi(creates).now_or_never() {
            Ok(answer) => answer,
            Err(call) => {
                // Kept here while it is awaited, so that a drop finds it.
                self.stage = Stage::Sent(Box::new(call));
                poll_fn(|context| match &mut self.stage {
                    Stage::Sent(call) => Pin::new(call).poll(context),
                    _ => unreachable!("nothing else moves the stage while the answer is awaited"),
                })
                .await
            }
        }
    }

    /// Looks for the nodes of a multi whose answer was lost; whether it was carried out.
    async fn find(&mut self) -> Result<bool> {
        let found = find_all(self.session, self.keys, &self.name).await?;
        let nodes: Vec<_> = found.iter().flatten().cloned().collect();
        if nodes.is_empty() {
            return Ok(false);
        }
        // From here on a drop removes them.
        self.stage = Stage::In(nodes, None);
        match found.iter().position(Option::is_none) {
            None => Ok(true),
            // All were there, and somebody has taken this one away since.
            Some(gone) => Err(self.removed(gone)),
        }
    }

    fn removed(&self, index: usize) -> LockError {
        let parent = self.keys.path(index);
        LockError::EntryDeleted {
            entry: parent.join(&self.name).unwrap_or_else(|_| parent.clone()),
        }
    }

    fn into_entries(
        mut self,
        czxid: Zxid,
        ahead: Vec<Predecessor>,
        events: Option<&EventSink>,
    ) -> Vec<Entry<'a>> {
        let Stage::In(nodes, _) = std::mem::replace(&mut self.stage, Stage::Out) else {
            unreachable!("it has joined");
        };
        let answers = nodes.into_iter().zip(ahead);
        let answers = self.keys.paths().zip(answers);
        let (session, events) = (self.session, events.cloned());
        answers
            .map(|(parent, (node, ahead))| {
                let answer = (node, czxid, ahead);
                Entry::standing(session, parent, KIND, events.clone(), answer)
            })
            .collect()
    }
}

/// Makes the queues that are missing, all at the same time.
async fn make_missing(session: &Session, keys: &Keys) -> Result<()> {
    let reads: Vec<_> = keys.paths().cloned().map(ReadOp::GetData).collect();
    let found = retry(|| session.multi_read(reads.clone())).await?;
    let missing = keys.paths().zip(found).filter_map(|(path, found)| {
        matches!(found, ReadReply::Failed(Error::NoNode { .. })).then_some(path)
    });
    let mut making = Together::new(missing.map(|path| make_queue(session, path, KIND)));
    while let Some((_, made)) = making.next().await {
        made?;
    }
    Ok(())
}

/// Asks of each queue who is ahead, all at the same time.
async fn get_predecessor(
    session: &Session,
    nodes: &[ZnodePath],
    count: bool,
) -> Result<Vec<Predecessor>> {
    let looks = nodes.iter().map(|node| {
        session.get_predecessor(GetPredecessor {
            entry: node.clone(),
            skip: KIND.skip(),
            count,
        })
    });
    // All are sent before the first is awaited.
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

/// Lists all queues, and reads the zxid of the multi on one of its nodes, in one request.
///
/// ZooKeeper before 3.9 does not answer it with a create in a multi.
async fn list(
    session: &Session,
    keys: &Keys,
    node: &ZnodePath,
) -> Result<(Zxid, Vec<Predecessor>)> {
    let mut reads = vec![ReadOp::GetData(node.clone())];
    reads.extend(keys.paths().cloned().map(ReadOp::GetChildren));
    loop {
        let answers = retry(|| session.multi_read(reads.clone())).await?;
        let mut answers = answers.into_iter();
        let own = answers.next();
        if let Some(ReadReply::Data { stat, .. }) = own
            && stat.ephemeral_owner == session.id()
        {
            return Ok((stat.czxid, answers.map(listed).collect::<Result<_>>()?));
        }
        // A server that lags behind the multi, or the node was removed: a write tells.
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

/// What a multi of creates has made.
fn made(replies: Vec<OpReply>) -> Result<Stage, Error> {
    let mut nodes = Vec::with_capacity(replies.len());
    let mut czxid = None;
    for reply in replies {
        let OpReply::Created { path, stat } = reply else {
            return Err(Error::Protocol(format!("a create was answered {reply:?}")));
        };
        nodes.push(path);
        czxid = stat.map(|stat| stat.czxid);
    }
    Ok(Stage::In(nodes, czxid))
}

fn listed(reply: ReadReply) -> Result<Predecessor> {
    match reply {
        ReadReply::Children(names) => Ok(Predecessor::Listed(names)),
        // Removed with all that stood in it; the entry finds out.
        ReadReply::Failed(Error::NoNode { .. }) => Ok(Predecessor::Unknown),
        ReadReply::Failed(error) => Err(error.into()),
        reply => Err(Error::Protocol(format!("a list was answered {reply:?}")).into()),
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Out) {
            Stage::Out => {}
            Stage::In(nodes, _) => remove_all(self.session, &nodes),
            Stage::Sent(call) => {
                let (session, keys, name) = self.identity();
                let pending = Cleanup::new(&session, keys.path(0));
                spawn_detached(async move {
                    let (_pending, session) = (pending, session);
                    match call.await.and_then(made) {
                        Ok(stage) => stage.nodes().iter().for_each(|node| remove(&session, node)),
                        Err(error) if error.is_ambiguous() => sweep_all(session, keys, name).await,
                        Err(_) => {}
                    }
                });
            }
            Stage::Unknown => {
                let (session, keys, name) = self.identity();
                spawn_detached(sweep_all(session, keys, name));
            }
        }
    }
}

impl Batch<'_> {
    fn identity(&self) -> (Session, Keys, String) {
        (self.session.clone(), self.keys.clone(), self.name.clone())
    }
}

/// The guard of one lock of a batch.
pub(super) fn guard(
    session: &Session,
    held: Held,
    data: &EntryData,
    events: Option<&EventSink>,
) -> Guard {
    Guard::new(session.clone(), held, KIND, data.clone(), events.cloned())
}
