//! Conversion of a held lock: of a writer's znode into a reader's, or of a reader's into a writer's.
//!
//! One multi deletes the one znode and creates the other, with the same id and number: the position in the queue is
//! kept, and at no moment is the holder missing from the queue. Waiters behind it see a deletion, and look again.
//!
//! A downgrade is that alone. An upgrade must be refused if another contender exists, a condition that no operation of
//! a store can state. So it looks, converts, and looks again. The order matters: a contender that came before the
//! conversion saw a reader ahead and may be reading, so the conversion is taken back; one that came after it saw a
//! writer ahead, and waits. Without the second look a reader that came between look and conversion would read beside
//! the writer. Two upgrades cannot both succeed: the later of the two readers sees the other one at its first look.

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

/// Outcome of an upgrade. The lock is held in both cases.
pub(super) enum Upgraded {
    Yes(Guard),
    No(Guard),
}

/// Starts work that continues when the returned future is dropped; its outcome is dropped then, too.
///
/// So a conversion is sent by the call itself, as a release is, and the caller cannot stop it between two of its steps.
pub(super) fn in_background<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> impl Future<Output = Result<T>> + Send + 'static {
    let (send, outcome) = oneshot::channel();
    spawn_detached(async move {
        // The receiver may be gone: a guard in the outcome is dropped here, which releases the lock.
        let _ = send.send(work.await);
    });
    async move {
        // The work is dropped unfinished only together with the store or connection that would have woken it.
        let ended = |_| LockError::from(LostReason::SessionClosed);
        outcome.await.map_err(ended)?
    }
}

/// Converts a writer into a reader. It needs no look: readers may come in beside it, and writers wait behind it as
/// before. The token stays, since no other writer held in between.
pub(super) async fn downgrade(guard: Guard) -> Result<Guard> {
    let mut conversion = Conversion::of(guard)?;
    conversion.convert().await?;
    conversion.put(LockEvent::Downgraded);
    conversion.finish()
}

/// Converts a reader into the writer, if there is no other contender.
pub(super) async fn upgrade(guard: Guard) -> Result<Upgraded> {
    // Two names suffice to see that another contender exists. Behind a barrier, to spare waiters a conversion that is
    // taken back; correctness rests on the second look alone.
    let seen = others(guard.session(), guard.path(), 2, true).await?;
    let seen: Vec<_> = seen.iter().map(String::as_str).collect();
    let queue = parent_of(guard.path());
    let is_contended = any_contends(guard.session(), &queue, &seen).await;
    if is_contended.map_err(ended)? {
        return Ok(Upgraded::No(guard));
    }
    let mut conversion = Conversion::of(guard)?;
    conversion.convert().await?;
    match conversion.alone_since().await? {
        // A new token: writes under the reader's shared one must be refused from now on.
        Some(czxid) => {
            let token = FencingToken::new(czxid);
            conversion.parts().held.token = token;
            conversion.put(LockEvent::Upgraded {
                fencing_token: token,
            });
            conversion.finish().map(Upgraded::Yes)
        }
        None => {
            conversion.convert().await?;
            conversion.finish().map(Upgraded::No)
        }
    }
}

/// A held znode while it is converted. Dropping it releases the lock: after an error it is not known under which of the
/// two names the holder stands, so no guard could be given back.
struct Conversion {
    /// `None` at the end.
    parts: Option<GuardParts>,
}

impl Conversion {
    /// Takes the guard apart first: its monitor would take the deletion for a forced removal.
    fn of(guard: Guard) -> Result<Self> {
        Ok(Self {
            parts: Some(guard.take_apart()?),
        })
    }

    fn parts(&mut self) -> &mut GuardParts {
        self.parts.as_mut().expect("only the end takes them")
    }

    fn put(&mut self, event: LockEvent) {
        self.parts().reporter.report(event);
    }

    /// Replaces the znode by that of the other side.
    async fn convert(&mut self) -> Result<()> {
        let from = self.parts().held.node.path().clone();
        let to = other_side(&from)?;
        let parts = self.parts();
        // Not if Curator's revocation request has replaced the data: the metadata that the holder knows is kept.
        if let Some(data) = replace(&parts.session, &from, &to).await?
            && LockMetadata::parse(&data).is_some()
        {
            parts.data = EntryData::Written(data);
        }
        parts.held.node = to.into();
        parts.kind = match parts.kind {
            Kind::Read => Kind::Write,
            _ => Kind::Read,
        };
        Ok(())
    }

    /// Returns the transaction that created the znode, or `None` if another contender came before that transaction.
    async fn alone_since(&mut self) -> Result<Option<Zxid>> {
        let GuardParts { session, held, .. } = self.parts();
        // All names: behind this znode any contender may be the one that came before the conversion. No barrier: this
        // session has seen its own conversion, and so everything committed before it.
        let others = others(session, held.node.path(), 0, false).await?;
        let Some(mine) = created_at(session, held.node.path()).await.map_err(ended)? else {
            return Err(LostReason::Revoked.into());
        };
        // By transaction, not by number: the number was drawn with the first create of this holder. A contender that is
        // gone by now has left: it cannot have been converted, since its own upgrade would have been refused at the
        // first look.
        let came_before = |stat: &Stat| stat.is_ephemeral() && stat.czxid < mine;
        let before = first_such(session, &parent_of(held.node.path()), &others, came_before).await;
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
            // The name that the last successful step left. After a failed step its claim removes the other one.
            remove_all(session, [held.node.path()]);
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

/// Deletes one znode and creates the other in one multi, with the data of the first: other clients may have written a
/// request there. Returns that data, if it is known. After an error the claim removes the other znode, should it exist.
async fn replace(session: &Session, from: &ZnodePath, to: &ZnodePath) -> Result<Option<Bytes>> {
    let mut claim = Claim::<Vec<OpReply>>::new(session, Names::Exact(vec![to.clone()]));
    let mut written = None;
    let mut unanswered = None;
    loop {
        let version = match retry(|| session.get_data(from)).await {
            Ok((data, stat)) => {
                // `from` exists, so the multi before was not carried out. A reply that cannot be decoded would be the
                // same the next time.
                if let Some(error) = unanswered {
                    return Err(ended(error));
                }
                written = Some(data);
                stat.version
            }
            // An earlier multi was carried out and its reply lost, or the holder was removed by force. Only the other
            // znode tells, by its owner: its name can be computed by anyone.
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
                // The version that was read: a request written since must not be lost with the old znode.
                version: Some(version),
            },
            Op::Create(Create {
                path: to.clone(),
                data: written.clone().unwrap_or_default(),
                mode: CreateMode::Ephemeral,
                acl: session.acl().clone(),
            }),
        ];
        match claim.request(|| session.multi(ops)).await {
            Ok(_) => {
                claim.take();
                return Ok(written);
            }
            // The reply was lost. Not sent again blindly: if the multi was carried out, `from` is missing, and a second
            // one would be refused as if the holder had been removed. The next round looks which of the two exists.
            Err(Error::ConnectionLoss) => {}
            Err(error) if error.is_ambiguous() => unanswered = Some(error),
            Err(Error::MultiFailed { source, .. }) => match *source {
                // Removed, or written since it was read. The next read tells.
                Error::NoNode { .. } | Error::BadVersion { .. } => {}
                refusal => return Err(refusal.into()),
            },
            Err(error) => return Err(ended(error)),
        }
    }
}

/// Lists the names of the other contenders: all if `among` is 0, otherwise those among the first so many of the queue.
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
        // The whole queue was deleted, this znode with it.
        Err(Error::NoNode { .. }) => Err(LostReason::Revoked.into()),
        Err(error) => Err(ended(error)),
    }
}

/// Converts the end of the session into the loss of the lock that it held.
fn ended(error: Error) -> LockError {
    match error {
        Error::SessionExpired { .. } => LostReason::SessionExpired.into(),
        Error::SessionClosed { .. } => LostReason::SessionClosed.into(),
        error => error.into(),
    }
}
