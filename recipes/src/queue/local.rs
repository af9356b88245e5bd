//! [`LocalEntry`]: an entry in an embedded store. It joins, waits in and leaves its queue without sending requests.

use std::pin::Pin;
use std::sync::Arc;

use lockkeeper_store::{
    Client, DeleteReason, EnqueueMode, Enqueued, EntryKey, Lease, NewEntry, PredecessorWatch,
    Session, ZnodeHandle, ZnodePath,
};

use super::cleanup::remove;
use super::grant::{Grant, GrantEntry, GrantNode};
use super::order::ReleaseMarker;
use super::untaken::{Contender, attended};
use crate::deadline::Progress;
use crate::error::Result;
use crate::metadata::EntryData;
use crate::names::{EntryId, Kind};
use crate::select::{Either, select};
use crate::token::FencingToken;

/// Kept small, because each waiter has one. Dropping it removes the entry from the queue.
pub(crate) struct LocalEntry(Option<Parts>);

struct Parts {
    session: Session,
    node: GrantNode,
    id: EntryId,
    data: EntryData,
    /// The session's lease from before the entry was created.
    lease: Lease,
    turn: Option<PredecessorWatch>,
    progress: Option<Progress>,
}

pub(crate) enum LocalAttempt<G> {
    Granted(G),
    Queued(Box<LocalEntry>),
    /// Nothing was done, and the caller must use requests instead.
    Unsupported,
}

const HANDED_OVER: &str = "it has been handed over";

impl LocalEntry {
    /// Adds an entry to a queue. If the lock is granted immediately and the grant need not be reported by an event,
    /// `hold` turns the entry into a guard. `data` receives the Unix time in milliseconds.
    #[inline(always)] // like `hold`, so that the parts are written directly into the guard
    pub(crate) fn enter<G>(
        client: &Client,
        queue: &Arc<ZnodeHandle>,
        kind: Kind,
        mode: EnqueueMode<'_>,
        data: impl FnOnce(i64) -> EntryData,
        is_reported: bool,
        hold: impl FnOnce(Session, Grant, EntryData) -> G,
    ) -> Result<LocalAttempt<G>> {
        let Some(session) = client.live_session()? else {
            return Ok(LocalAttempt::Unsupported);
        };
        let unix_ms = session.clock().unix_ms();
        let (id, lease) = (EntryId::fresh(), session.lease());
        let (name, data) = (kind.entry_name(id), data(unix_ms));
        let entered = session.enter(NewEntry {
            queue,
            name,
            mode,
            data: data.to_bytes(),
            queue_data: ReleaseMarker::fresh_bytes(kind),
            acl: session.acl(),
            unix_ms,
        });
        let Some(Enqueued { entry: key, turn }) = entered else {
            return Ok(LocalAttempt::Unsupported);
        };
        let queue = queue.clone();
        let node = GrantNode::entry(GrantEntry { queue, name, key });
        if turn.is_none() && lease.may_grant() && !is_reported {
            let grant = Grant::new(node, FencingToken::new(key.czxid()), lease);
            return Ok(LocalAttempt::Granted(hold(session, grant, data)));
        }
        Ok(LocalAttempt::Queued(Box::new(Self(Some(Parts {
            session,
            node,
            id,
            data,
            lease,
            turn,
            progress: None,
        })))))
    }

    /// Hands the entry over to the guard that `hold` creates. Returns `None` if the lease is too old. The caller must
    /// know that nothing blocks the entry.
    pub(crate) fn hold<G>(
        &mut self,
        hold: impl FnOnce(Session, Grant, EntryData) -> G,
    ) -> Option<G> {
        let token = FencingToken::new(self.key().czxid());
        let parts = self.0.take_if(|parts| parts.lease.may_grant())?;
        let Parts {
            session,
            node,
            data,
            lease,
            ..
        } = parts;
        Some(hold(session, Grant::new(node, token, lease), data))
    }

    pub(super) fn take(&mut self) -> GrantNode {
        self.0.take().expect(HANDED_OVER).node
    }

    fn parts(&self) -> &Parts {
        self.0.as_ref().expect(HANDED_OVER)
    }

    pub(crate) fn session(&self) -> &Session {
        &self.parts().session
    }

    pub(crate) fn data(&self) -> &EntryData {
        &self.parts().data
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.parts().lease
    }

    pub(super) fn id(&self) -> EntryId {
        self.parts().id
    }

    pub(super) fn path(&self) -> &ZnodePath {
        self.parts().node.path()
    }

    pub(super) fn key(&self) -> EntryKey {
        let key = self.parts().node.key();
        key.expect("it was created by reference")
    }

    /// Waits without requests until the entry ahead has left. Returns false if the wait must continue with requests,
    /// because something else blocks, the session has ended, or the task may be waiting for its own lock. Cancel safe.
    pub(crate) async fn wait(&mut self, kind: Kind, deadline: &Option<Progress>) -> bool {
        let Parts {
            session,
            node,
            data,
            turn,
            progress,
            ..
        } = self.0.as_mut().expect(HANDED_OVER);
        let (Some(ahead), Some(entry)) = (turn.as_mut(), node.held()) else {
            return true;
        };
        if !ahead.ahead().is_some_and(|role| kind.waits_for(role)) {
            return false;
        }
        progress.clone_from(deadline);
        if let Some(progress) = progress {
            progress.note_wait();
        }
        // If a task may be waiting for its own lock, continue with requests after a tick, because only the wait with
        // requests logs a warning. A reader's task may always be waiting for itself, because the task's writer may be
        // further ahead.
        let may_be_own = ahead.is_own() && kind != Kind::Candidate || kind == Kind::Read;
        let contender = || Contender {
            session: session.clone(),
            queue: entry.queue.path().clone(),
            name: entry.name,
            data: data.clone(),
            permits: None,
        };
        let gone = attended(Pin::new(ahead), contender);
        let gone = match may_be_own {
            false => gone.await,
            true => match select(gone, session.clock().next_tick()).await {
                Either::Left(gone) => gone,
                Either::Right(_) => return false,
            },
        };
        // The event says that our entry exists and is not blocked (invariant 8).
        let is_clear = gone.is_ok_and(|gone| gone.clear);
        if is_clear {
            *turn = None;
        }
        is_clear
    }

    pub(super) fn forget_turn(&mut self) -> bool {
        let Parts { session, turn, .. } = self.0.as_mut().expect(HANDED_OVER);
        let turn = turn.take();
        if let Some(turn) = &turn {
            session.cancel_watch(turn);
        }
        turn.is_some()
    }

    #[inline]
    pub(super) fn abandon(&mut self) {
        if self.0.is_some() {
            self.leave();
        }
    }

    fn leave(&mut self) {
        self.forget_turn();
        let Parts {
            session, progress, ..
        } = self.parts();
        // Only a timeout error needs this count.
        if let Some(progress) = progress.as_ref().filter(|it| it.is_over())
            && let Some(held) = self.parts().node.held()
            && let Some(ahead) = session.count_ahead(held.key)
        {
            progress.note(held.queue.path(), ahead);
        }
        // Do not report a release. Even if we were granted the lock, we did not notice it and did no work under it.
        if !self.session().leave(self.key(), DeleteReason::Unknown) {
            remove(self.session(), self.path());
        }
        self.0 = None;
    }
}

impl Drop for LocalEntry {
    #[inline]
    fn drop(&mut self) {
        self.abandon();
    }
}
