//! Conversion of a held lock: of a writer's znode into a reader's, or the other way round.
//!
//! One multi deletes the one and creates the other, with the same id and number: the place in the queue is kept, and
//! the queue is never without it. Those behind see a deletion, and look again.
//!
//! A downgrade is that alone. An upgrade must be refused when another contender exists, and no operation of a store
//! has that condition. So it looks first, converts, and looks again. A contender that came before the conversion may
//! read (it saw a reader ahead), so the conversion is taken back. One that came after it has seen a writer ahead, and
//! waits. No two upgrades meet: of the two readers one came later, and sees the other at its first look.

use bytes::Bytes;
use lockkeeper_store::{
    Create, CreateMode, Error, Op, OpReply, Session, Stat, ZnodePath, Zxid, spawn_detached,
};
use tokio::sync::oneshot;

use crate::error::{LockError, LostReason, Result};
use crate::events::LockEvent;
use crate::guard::{Guard, GuardParts};
use crate::metadata::{EntryData, LockMetadata};
use crate::names::{Kind, contender_number, converted};
use crate::queue::{Claim, Names, any_contends, created_at, first_such, list_queue, remove_all};
use crate::retry::retry;
use crate::token::FencingToken;

/// Outcome of an upgrade.
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

/// Converts a writer into a reader.
pub(super) async fn downgrade(guard: Guard) -> Result<Guard> {
    let mut conversion = Conversion::of(guard)?;
    conversion.turn().await?;
    conversion.put(LockEvent::Downgraded);
    conversion.finish()
}

/// Converts a reader into the writer, if there is no other contender.
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

/// A held znode on its way from one side to the other. Dropping it releases the lock.
struct Conversion {
    /// `None` at the end.
    parts: Option<GuardParts>,
}

impl Conversion {
    fn of(guard: Guard) -> Result<Self> {
        Ok(Self {
            parts: Some(guard.take_apart()?),
        })
    }

    fn parts(&mut self) -> &mut GuardParts {
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
        Ok(())
    }

    /// Returns the transaction that created the node, if no other contender came before that.
    async fn alone_since(&mut self) -> Result<Option<Zxid>> {
        let GuardParts { session, held, .. } = self.parts();
        let others = others(session, &held.path, 0, false).await?;
        let Some(mine) = created_at(session, &held.path).await.map_err(ended)? else {
            return Err(LostReason::Revoked.into());
        };
        // One that is gone has left: it cannot have been converted, since an upgrade of its own would
        // have been refused at its first look.
        let came_before = |stat: &Stat| stat.is_ephemeral() && stat.czxid < mine;
        let before = first_such(session, &parent_of(&held.path), &others, came_before).await;
        Ok(before.map_err(ended)?.is_none().then_some(mine))
    }

    fn finish(mut self) -> Result<Guard> {
        let parts = self.parts.take().expect("only the end takes them");
        Ok(parts.into_guard()?)
    }
}

impl Drop for Conversion {
    fn drop(&mut self) {
        if let Some(GuardParts { session, held, .. }) = &self.parts {
            remove_all(session, [&held.path]);
        }
    }
}

fn parent_of(node: &ZnodePath) -> ZnodePath {
    node.parent().expect("an entry has a parent")
}

fn other_side(node: &ZnodePath) -> Result<ZnodePath> {
    let name = converted(node.name()).expect("an entry of a read-write lock has two sides");
    Ok(parent_of(node).join(&name)?)
}

/// Deletes one node and creates the other, in one step, with the data that the first has: others may have written
/// to it. Returns that data, if it is known. After an error the other node is removed, should it exist.
async fn replace(session: &Session, from: &ZnodePath, to: &ZnodePath) -> Result<Option<Bytes>> {
    let mut claim = Claim::<Vec<OpReply>>::new(session, Names::Exact(vec![to.clone()]));
    let mut written = None;
    let mut unanswered = None;
    loop {
        let version = match retry(|| session.get_data(from)).await {
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
                let created = created_at(session, to).await.map_err(ended)?;
                claim.resolve(created.is_some());
                if created.is_none() {
                    return Err(LostReason::Revoked.into());
                }
                claim.take();
                return Ok(written);
            }
            Err(error) => return Err(ended(error)),
        };
        let ops = [
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
        ];
        match claim.request(|| session.multi(ops).into()).await {
            Ok(_) => {
                claim.take();
                return Ok(written);
            }
            // Not sent again unseen: if it was carried out, `from` is missing, and a second multi would
            // fail for that as if it had been removed. The next round looks which of the two exists.
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
    match list_queue(session, &parent, among, synced).await {
        Ok((mut names, _)) => {
            names.retain(|name| name != node.name() && contender_number(session, name).is_some());
            Ok(names)
        }
        // The whole queue is gone, this node with it.
        Err(Error::NoNode { .. }) => Err(LostReason::Revoked.into()),
        Err(error) => Err(ended(error)),
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
