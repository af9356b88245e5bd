//! [`QueueLock`]: acquiring the lock of one queue by waiting, under a deadline, or by trying. Shared by all recipes with
//! one entry for each holder.

use std::sync::Arc;

use lockkeeper_store::{Client, Error, Lease, Place, Predecessor, Session, ZnodeHandle, ZnodePath};
use tokio::task::coop;

use crate::error::Result;
use crate::guard::Guard;
use crate::metadata::EntryData;
use crate::names::{EntryId, Kind};
use crate::options::LockOptions;
use crate::queue::{
    Grant, HeldEntry, LocalEntry, Queue, Submitted, WaitOptions, Waiter, any_contends, blocks,
    check_kind, contenders, enqueue, enter_locally, list_queue,
};
use crate::reporter::is_always_reported;
use crate::token::FencingToken;

/// The lock of one queue, as one kind of contender of a client takes it.
#[derive(Clone, Copy)]
pub(crate) struct QueueLock<'a> {
    pub(crate) client: &'a Client,
    pub(crate) queue: &'a Arc<ZnodeHandle>,
    pub(crate) kind: Kind,
}

/// Beginning of a wait, as far as it needs no request.
enum Start {
    Held(Guard),
    /// Boxed: it would be moved with each lock, and most wait for nobody.
    Entered(Box<Entered>),
    /// Nothing was done.
    Unsent,
}

/// A contender that waits in a store of this process.
struct Entered {
    entry: LocalEntry,
    lease: Lease,
    data: EntryData,
    id: EntryId,
}

impl QueueLock<'_> {
    /// Acquires the lock with default options.
    pub(crate) async fn acquire(self) -> Result<Guard> {
        // A free lock is granted without waiting. A loop that takes it again and again yields, as with tokio's locks.
        coop::consume_budget().await;
        match self.enter()? {
            Start::Held(guard) => Ok(guard),
            Start::Entered(entered) => self.wait(entered).await,
            Start::Unsent => Box::pin(self.acquire_by_requests()).await,
        }
    }

    /// Joins the queue of a store in this process, and takes a free lock. A function of its own, with nothing awaited
    /// between the entry and the guard: so no drop can come in between (invariant 7), and little is moved.
    #[inline(never)]
    fn enter(self) -> Result<Start> {
        let session = match self.client.live_session()? {
            Some(session) if !is_always_reported() => session,
            _ => return Ok(Start::Unsent),
        };
        let queued_at_ms = session.clock().unix_ms();
        // The lease is read before the entry is created: a lapse meanwhile then shows.
        let (id, lease) = (EntryId::fresh(), session.lease());
        let (queue, place) = (self.queue, Place::InTurn(self.kind.blockers()));
        let Some(entered) = enter_locally(&session, queue, self.kind, place, id, queued_at_ms)
        else {
            return Ok(Start::Unsent);
        };
        let data = EntryData::Default { queued_at_ms };
        let entry = HeldEntry {
            queue: self.queue.clone(),
            name: self.kind.entry_name(id),
            key: entered.entry,
        };
        if entered.turn.is_none() && lease.may_grant() {
            return Ok(Start::Held(self.guard(session, entry, lease, data)));
        }
        let entry = LocalEntry::new(session, entry, entered.turn, self.kind);
        Ok(Start::Entered(Box::new(Entered {
            entry,
            lease,
            data,
            id,
        })))
    }

    /// Waits for the turn of an entry in a store of this process.
    async fn wait(self, mut entered: Box<Entered>) -> Result<Guard> {
        if entered.entry.wait().await && entered.lease.may_grant() {
            let Entered {
                entry, lease, data, ..
            } = *entered;
            let (session, entry) = entry.hold();
            return Ok(self.guard(session, entry, lease, data));
        }
        let Entered {
            entry, data, id, ..
        } = *entered;
        Box::pin(self.acquire_entered(entry, data, id)).await
    }

    fn guard(self, session: Session, entry: HeldEntry, lease: Lease, data: EntryData) -> Guard {
        Guard::new(
            session,
            Grant::of_entry(entry, lease),
            self.kind,
            data,
            None,
        )
    }

    /// Acquires the lock by requests, as every store takes them.
    async fn acquire_by_requests(self) -> Result<Guard> {
        let session = self.client.session().await?;
        let queued_at_ms = session.clock().unix_ms();
        let data = EntryData::Default { queued_at_ms };
        // A free lock of a store in this process takes no more than this request. Nothing is awaited between it and the
        // guard, so no drop can come in between, and no claim is needed (invariant 7). The lease is read before: a lapse
        // during the request then shows.
        let (id, lease) = (EntryId::fresh(), session.lease());
        let create = match enqueue(
            &session,
            self.path(),
            (self.kind, self.kind.blockers()),
            id,
            &data,
            false,
        ) {
            Submitted::Replied(Ok((path, czxid, Predecessor::Clear)))
                if lease.may_grant() && !is_always_reported() =>
            {
                let grant = Grant::new(path.into(), FencingToken::new(czxid), lease);
                return Ok(Guard::new(session, grant, self.kind, data, None));
            }
            create => create,
        };
        let wait_options = WaitOptions::new(data);
        let queue = self.queue_of(&session);
        let waiter = Waiter::submitted(queue, &wait_options, None, lease, (id, create));
        let grant = waiter.granted().await?;
        let data = wait_options.data;
        Ok(Guard::new(session, grant, self.kind, data, None))
    }

    /// Acquires the lock for an entry that waits in the queue.
    async fn acquire_entered(
        self,
        entry: LocalEntry,
        data: EntryData,
        id: EntryId,
    ) -> Result<Guard> {
        let czxid = entry.key().czxid();
        let (session, path) = entry.into_path();
        let wait_options = WaitOptions::new(data);
        let queue = self.queue_of(&session);
        let waiter = Waiter::entered_before(queue, &wait_options, id, (czxid, path));
        let grant = waiter.granted().await?;
        let data = wait_options.data;
        Ok(Guard::new(session, grant, self.kind, data, None))
    }

    fn path(&self) -> &ZnodePath {
        self.queue.path()
    }

    /// Acquires the lock with the caller's options, under one deadline.
    pub(crate) async fn acquire_with(self, mut options: LockOptions) -> Result<Guard> {
        let deadline = options.start(self.client)?;
        let wait = self.contend(options, false);
        let guard = deadline.run(self.path(), self.path(), wait).await?;
        Ok(guard.expect("only a try comes back without the lock"))
    }

    /// Acquires the lock if it is free now. A read comes first, so that trying a held lock costs one read and no write.
    pub(crate) async fn try_acquire(self, mut options: LockOptions) -> Result<Option<Guard>> {
        let deadline = options.start(self.client)?;
        let attempt = async {
            // "Held" is believed, "free" is not: the entry itself confirms it.
            if self.looks_taken(options.synced).await? {
                return Ok(None);
            }
            self.contend(options, true).await
        };
        deadline.run(self.path(), self.path(), attempt).await
    }

    async fn contend(self, options: LockOptions, only_if_free: bool) -> Result<Option<Guard>> {
        let session = self.client.session().await?;
        let data = options.data(session.clock().unix_ms());
        let events = options.events.clone();
        let wait_options = options.wait_options(data, only_if_free);
        let mut waiter = Waiter::new(self.queue_of(&session), &wait_options, events.clone());
        let grant = waiter.acquire().await?;
        drop(waiter);
        Ok(grant.map(|grant| Guard::new(session, grant, self.kind, wait_options.data, events)))
    }

    fn queue_of<'a>(&'a self, session: &'a Session) -> Queue<'a> {
        Queue {
            session,
            path: self.queue.path(),
            kind: self.kind,
        }
    }

    /// Returns true if one of these children of the queue would block. `is_index`: they are from the store's index, which
    /// has ephemeral znodes only.
    async fn is_taken(self, session: &Session, names: Vec<String>, is_index: bool) -> Result<bool> {
        check_kind(session, self.path(), self.kind, &names).await?;
        let contenders = contenders(session, &names).into_iter();
        let blocking: Vec<_> = contenders
            .map(|(_, name)| name)
            .filter(|name| blocks(name, self.kind.blockers()))
            .collect();
        if is_index {
            return Ok(!blocking.is_empty());
        }
        Ok(any_contends(session, self.path(), &blocking).await?)
    }

    /// Returns true if a list of the queue shows a contender that would block.
    async fn looks_taken(self, synced: bool) -> Result<bool> {
        let session = self.client.session().await?;
        // For an exclusive contender the head alone tells; ahead of the first writer may be any number of readers. 0: all.
        let limit = usize::from(self.kind.is_exclusive());
        match list_queue(&session, self.path(), limit, synced).await {
            Ok((names, is_index)) => self.is_taken(&session, names, is_index).await,
            // Never used, or reaped.
            Err(Error::NoNode { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
