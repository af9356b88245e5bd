//! Conversion of a held lock between reader and writer.
//!
//! One multi deletes the old znode and creates the new znode with the same id and number. So the holder keeps its
//! position and is never missing from the queue.
//!
//! A downgrade needs no other step. An upgrade must be refused if there is another contender, but no store operation
//! can express this condition. So we look for other contenders, convert, and look again. A contender that joined
//! between the first look and the conversion saw a reader ahead and may be reading, so we undo the conversion. A
//! contender that joined later saw a writer ahead, and waits. Two upgrades cannot both succeed, because the later
//! reader sees the other reader at its first look.

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

pub(super) enum Upgraded {
    Yes(Guard),
    No(Guard),
}

/// Starts `work`, which continues even if the returned future is dropped, so that a conversion cannot stop between two
/// steps.
pub(super) fn in_background<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> impl Future<Output = Result<T>> + Send + 'static {
    let (send, outcome) = oneshot::channel();
    spawn_detached(async move {
        // If the future was dropped, the result is dropped here. A guard in it then releases the lock.
        let _ = send.send(work.await);
    });
    async move {
        // The work lives in the wakers of the store or the connection. If these are dropped, the work and its sender
        // are dropped too.
        let ended = |_| LockError::from(LostReason::SessionClosed);
        outcome.await.map_err(ended)?
    }
}

/// Converts a writer into a reader. The reader keeps the token, because no other writer has held the lock since.
pub(super) async fn downgrade(guard: Guard) -> Result<Guard> {
    let mut conversion = Conversion::of(guard)?;
    conversion.convert().await?;
    conversion.put(LockEvent::Downgraded);
    conversion.finish()
}

pub(super) async fn upgrade(guard: Guard) -> Result<Upgraded> {
    // Two names are enough to show another contender. The sync only makes it less likely that a conversion must be
    // undone. Correctness depends on the second look.
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
        // The writer needs a new token, because the resource must refuse the reader's shared token from now on.
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

/// A conversion under way. Dropping it releases the lock, because after an error we do not know which of the two names
/// the znode has.
struct Conversion {
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
        self.parts().reporter.report(event);
    }

    async fn convert(&mut self) -> Result<()> {
        let from = self.parts().held.node.path().clone();
        let to = other_side(&from)?;
        let parts = self.parts();
        // If Curator's revocation request has replaced the data, keep the known metadata.
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

    /// Returns the new znode's czxid, or `None` if another contender joined before the conversion.
    async fn alone_since(&mut self) -> Result<Option<Zxid>> {
        let GuardParts { session, held, .. } = self.parts();
        // List all names, because any contender behind this znode may have joined before the conversion. No sync is
        // needed, because this session has seen its own conversion.
        let others = others(session, held.node.path(), 0, false).await?;
        let Some(mine) = created_at(session, held.node.path()).await.map_err(ended)? else {
            return Err(LostReason::Revoked.into());
        };
        // Compare zxids instead of numbers, because a converted entry is a new znode with the number of the old one. A
        // contender missing in the list has left.
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
            // Remove the znode left by the last successful step. If a step failed, its claim removes the znode of that
            // step.
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

/// Replaces the znode `from` with `to` in one multi. Copies the data, which may contain a request by another client. If
/// the replacement fails, the claim on `to` removes `to`.
async fn replace(session: &Session, from: &ZnodePath, to: &ZnodePath) -> Result<Option<Bytes>> {
    let mut claim = Claim::<Vec<OpReply>>::new(session, Names::Exact(vec![to.clone()]));
    let mut written = None;
    let mut unanswered = None;
    loop {
        let version = match retry(|| session.get_data(from)).await {
            Ok((data, stat)) => {
                // `from` exists, so the previous multi was not executed. We could not decode its reply, and a second
                // reply would not decode either, so return the error.
                if let Some(error) = unanswered {
                    return Err(ended(error));
                }
                written = Some(data);
                stat.version
            }
            // An earlier multi was executed and its reply was lost, or the holder was removed by force. The owner of
            // `to` shows which of the two happened. A znode that another session owns does not prove that our multi was
            // executed, because any client can compute the name.
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
                // Delete only at this version, so that a request written since the read is not lost.
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
            // Do not repeat the multi yet. If it was executed, a second one would fail as if the holder had been
            // removed. The next round checks which znode exists.
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

/// Returns the other contenders among the first `among` entries of the queue, or among all entries if `among` is 0.
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
        Err(Error::NoNode { .. }) => Err(LostReason::Revoked.into()),
        Err(error) => Err(ended(error)),
    }
}

fn ended(error: Error) -> LockError {
    match error {
        Error::SessionExpired { .. } => LostReason::SessionExpired.into(),
        Error::SessionClosed { .. } => LostReason::SessionClosed.into(),
        error => error.into(),
    }
}
