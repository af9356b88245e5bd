//! The conversion of what is held: a writer's node into a reader's, or the other way round.
//!
//! One multi deletes the one and makes the other, with the same identity and number: the place in
//! the queue is kept, and at no moment is nobody there. Those behind see a deletion, and look again.
//!
//! A downgrade is that alone. An upgrade must be refused when anybody else is there, and nothing in
//! a store says "only if nobody is". So it first looks; then converts; then looks again. Who is there
//! and came before the conversion may read (it saw a reader ahead), so the conversion is taken back.
//! Who came after it has seen a writer ahead, and waits. No two upgrades meet: one of the two
//! readers came later, and sees the other at its first look.

use bytes::Bytes;
use lockkeeper_store::{Create, CreateMode, Error, Op, Session, ZnodePath, Zxid, spawn_detached};
use tokio::sync::oneshot;

use crate::error::{LockError, LostReason, Result};
use crate::events::LockEvent;
use crate::guard::{Guard, Parts};
use crate::metadata::{EntryData, LockMetadata};
use crate::names::{Kind, contender_number, converted};
use crate::queue::{any_contends, made_at, remove_all};
use crate::token::FencingToken;

/// Whether a reader has become the writer.
pub(super) enum Upgraded {
    Yes(Guard),
    No(Guard),
}

/// Starts work that goes on when the answer is dropped; what it comes to is dropped then, too.
pub(super) fn in_background<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> impl Future<Output = Result<T>> + Send + 'static {
    let (send, outcome) = oneshot::channel();
    spawn_detached(async move {
        // Nobody may be waiting for it: a guard in it is dropped here, and released.
        let _ = send.send(work.await);
    });
    async move {
        let ended = |_| LockError::from(LostReason::SessionClosed);
        outcome.await.map_err(ended)?
    }
}

/// Makes a reader of the writer.
pub(super) async fn downgrade(guard: Guard) -> Result<Guard> {
    let mut conversion = Conversion::of(guard)?;
    conversion.turn().await?;
    conversion.put(LockEvent::Downgraded);
    conversion.finish()
}

/// Makes the writer of a reader, if nobody else is there.
pub(super) async fn upgrade(guard: Guard) -> Result<Upgraded> {
    // Here the server is asked to catch up, to spare a conversion that would be taken back.
    let seen = others(guard.session(), guard.path(), 2, true).await?;
    let seen: Vec<_> = seen.iter().map(String::as_str).collect();
    let queue = parent_of(guard.path());
    let is_contended = any_contends(guard.session(), &queue, &seen).await;
    if is_contended.map_err(ended)? {
        return Ok(Upgraded::No(guard));
    }
    let mut conversion = Conversion::of(guard)?;
    conversion.turn().await?;
    match conversion.alone_since().await? {
        Some(czxid) => {
            let token = FencingToken::new(czxid);
            conversion.parts().held.token = token;
            conversion.put(LockEvent::Upgraded {
                fencing_token: token,
            });
            conversion.finish().map(Upgraded::Yes)
        }
        None => {
            conversion.turn().await?;
            conversion.finish().map(Upgraded::No)
        }
    }
}

/// A held node on its way from one side to the other. Dropping it leaves nothing behind.
struct Conversion {
    /// `None` at the end.
    parts: Option<Parts>,
    /// The node of the other side while it is not known whether it has replaced the held one.
    replacing: Option<ZnodePath>,
}

impl Conversion {
    fn of(guard: Guard) -> Result<Self> {
        Ok(Self {
            parts: Some(guard.take_apart()?),
            replacing: None,
        })
    }

    fn parts(&mut self) -> &mut Parts {
        self.parts.as_mut().expect("only the end takes them")
    }

    fn put(&mut self, event: LockEvent) {
        if let Some(events) = &self.parts().events {
            events.put(event);
        }
    }

    /// Replaces the node by that of the other side.
    async fn turn(&mut self) -> Result<()> {
        let from = self.parts().held.path.clone();
        let to = other_side(&from)?;
        self.replacing = Some(to.clone());
        let parts = self.parts();
        // Not what another library's request has been written over.
        if let Some(data) = replace(&parts.session, &from, &to).await?
            && LockMetadata::parse(&data).is_some()
        {
            parts.data = EntryData::Written(data);
        }
        parts.held.path = to;
        parts.kind = match parts.kind {
            Kind::Read => Kind::Write,
            _ => Kind::Read,
        };
        self.replacing = None;
        Ok(())
    }

    /// When the node was made, if nobody is there who came before that.
    async fn alone_since(&mut self) -> Result<Option<Zxid>> {
        let Parts { session, held, .. } = self.parts();
        let others = others(session, &held.path, 0, false).await?;
        let Some(mine) = made_at(session, &held.path).await.map_err(ended)? else {
            return Err(LostReason::Revoked.into());
        };
        let parent = parent_of(&held.path);
        for names in others.chunks(ASKED_AT_ONCE) {
            if any_before(session, &parent, names, mine).await? {
                return Ok(None);
            }
        }
        Ok(Some(mine))
    }

    fn finish(mut self) -> Result<Guard> {
        let parts = self.parts.take().expect("only the end takes them");
        Ok(parts.into_guard()?)
    }
}

impl Drop for Conversion {
    fn drop(&mut self) {
        if let Some(Parts { session, held, .. }) = &self.parts {
            // One of the two is there.
            let nodes = std::iter::once(&held.path).chain(&self.replacing);
            remove_all(session, nodes);
        }
    }
}

/// How many nodes are asked about before the answers are awaited.
const ASKED_AT_ONCE: usize = 256;

fn parent_of(node: &ZnodePath) -> ZnodePath {
    node.parent().expect("an entry has a parent")
}

fn other_side(node: &ZnodePath) -> Result<ZnodePath> {
    let name = converted(node.name()).expect("an entry of a read-write lock has two sides");
    Ok(parent_of(node).join(&name)?)
}

/// Deletes one node and makes the other, in one step, with the data that is there: somebody else may
/// have written to it. Answers that data, if it is known.
async fn replace(session: &Session, from: &ZnodePath, to: &ZnodePath) -> Result<Option<Bytes>> {
    let mut written = None;
    let mut unanswered = None;
    loop {
        let version = match session.get_data(from).await {
            Ok((data, stat)) => {
                // It was not done. A refusal that cannot be read would come again.
                if let Some(error) = unanswered {
                    return Err(ended(error));
                }
                written = Some(data);
                stat.version
            }
            // An earlier round may have done it, its answer lost; or it was removed.
            Err(Error::NoNode { .. }) => {
                let made = made_at(session, to).await.map_err(ended)?;
                let written = made.map(|_| written).ok_or(LostReason::Revoked);
                return Ok(written?);
            }
            Err(Error::ConnectionLoss) => continue,
            Err(error) => return Err(ended(error)),
        };
        let multi = session.multi([
            Op::Delete {
                path: from.clone(),
                version: Some(version),
            },
            Op::Create(Create {
                path: to.clone(),
                data: written.clone().unwrap_or_default(),
                mode: CreateMode::Ephemeral,
                acl: session.acl().clone(),
            }),
        ]);
        match multi.await {
            Ok(_) => return Ok(written),
            Err(Error::ConnectionLoss) => {}
            Err(error) if error.is_ambiguous() => unanswered = Some(error),
            Err(Error::MultiFailed { source, .. }) => match *source {
                Error::NoNode { .. } | Error::BadVersion { .. } => {}
                refusal => return Err(refusal.into()),
            },
            Err(error) => return Err(ended(error)),
        }
    }
}

/// The names of the contenders beside this one: all (0), or as many as there are among so many.
async fn others(
    session: &Session,
    node: &ZnodePath,
    among: usize,
    synced: bool,
) -> Result<Vec<String>> {
    let parent = parent_of(node);
    loop {
        let barrier = synced.then(|| session.sync(&parent));
        let queue = session.get_queue(&parent, among);
        let caught_up = match barrier {
            Some(barrier) => barrier.await,
            None => Ok(()),
        };
        match (caught_up, queue.await) {
            (Err(Error::ConnectionLoss), _) | (_, Err(Error::ConnectionLoss)) => {}
            (Ok(()), Ok((mut names, _))) => {
                names.retain(|name| {
                    name != node.name() && contender_number(session, name).is_some()
                });
                return Ok(names);
            }
            // The whole queue is gone, this node with it.
            (Err(Error::NoNode { .. }), _) | (_, Err(Error::NoNode { .. })) => {
                return Err(LostReason::Revoked.into());
            }
            (Err(error), _) | (_, Err(error)) => return Err(ended(error)),
        }
    }
}

/// Whether one of these was made before a moment. One that is gone has left: it cannot have been
/// converted, since an upgrade of its own would have been refused at its first look.
async fn any_before(
    session: &Session,
    parent: &ZnodePath,
    names: &[String],
    moment: Zxid,
) -> Result<bool> {
    'again: loop {
        let mut asked = Vec::with_capacity(names.len());
        for name in names {
            asked.push(session.exists(&parent.join(name)?));
        }
        let mut found = false;
        for answer in asked {
            match answer.await {
                Ok(stat) => {
                    found |= stat.is_some_and(|stat| stat.is_ephemeral() && stat.czxid < moment)
                }
                Err(Error::ConnectionLoss) => continue 'again,
                Err(error) => return Err(ended(error)),
            }
        }
        return Ok(found);
    }
}

/// The session's end is the loss of what it held.
fn ended(error: Error) -> LockError {
    match error {
        Error::SessionExpired { .. } => LostReason::SessionExpired.into(),
        Error::SessionClosed { .. } => LostReason::SessionClosed.into(),
        error => error.into(),
    }
}
