//! [`QueueLock`]: acquires the lock of one queue, for all recipes with one entry per holder.

use std::pin::pin;
use std::sync::Arc;

use lockkeeper_store::{Client, EnqueueMode, Session, ZnodeHandle};
use tokio::task::coop;

use crate::deadline::CallDeadline;
use crate::error::Result;
use crate::guard::Guard;
use crate::metadata::EntryData;
use crate::names::Kind;
use crate::options::LockOptions;
use crate::queue::{Grant, LocalAttempt, LocalEntry, Queue, Waiter, looks_taken};

#[derive(Clone, Copy)]
pub(crate) struct QueueLock<'a> {
    pub(crate) client: &'a Client,
    pub(crate) queue: &'a Arc<ZnodeHandle>,
    pub(crate) kind: Kind,
}

impl QueueLock<'_> {
    pub(crate) async fn acquire(self, mut options: LockOptions) -> Result<Guard> {
        // Let other tasks run during a loop over free locks, as tokio's own locks do.
        coop::consume_budget().await;
        let mut entry = match self.attempt(&options, EnqueueMode::Queued(self.kind.blockers()))? {
            LocalAttempt::Granted(guard) => return Ok(guard),
            LocalAttempt::Queued(entry) => Some(entry),
            LocalAttempt::Unsupported => None,
        };
        let deadline = options.start(self.client);
        if let Some(local) = &mut entry
            && !options.is_reported()
            && options.queue_limit.is_none()
        {
            let is_clear = {
                let turn = pin!(local.wait(self.kind, &options.progress));
                deadline.race(turn).await
            };
            let Some(is_clear) = is_clear else {
                // Drop the entry before creating the error, because the drop counts the entries ahead for the error.
                drop(entry);
                let path = self.queue.path();
                return Err(deadline.error(path, path));
            };
            if is_clear && let Some(guard) = local.hold(self.guard()) {
                return Ok(guard);
            }
        }
        let guard = Box::pin(self.contend(options, deadline, entry, false)).await?;
        Ok(guard.expect("only a try comes back without the lock"))
    }

    pub(crate) async fn try_acquire(self, mut options: LockOptions) -> Result<Option<Guard>> {
        coop::consume_budget().await;
        let entry = match self.attempt(&options, EnqueueMode::IfFree(self.kind.blockers()))? {
            LocalAttempt::Granted(guard) => return Ok(Some(guard)),
            LocalAttempt::Queued(entry) => Some(entry),
            LocalAttempt::Unsupported => None,
        };
        let deadline = options.start(self.client);
        Box::pin(self.contend(options, deadline, entry, true)).await
    }

    #[inline(always)] // for the same reason as `LocalEntry::enter`
    fn guard(self) -> impl FnOnce(Session, Grant, EntryData) -> Guard {
        let kind = self.kind;
        move |session, grant, data| Guard::new(session, grant, kind, data, None)
    }

    /// Joins a queue in an embedded store, and takes the lock if it is free. There is no await between creating the
    /// entry and its guard, so a drop cannot leave an entry without an owner (invariant 7).
    #[inline(never)] // so that only a few bytes are moved
    fn attempt(self, options: &LockOptions, mode: EnqueueMode<'_>) -> Result<LocalAttempt<Guard>> {
        options.check()?;
        let Self {
            client,
            queue,
            kind,
        } = self;
        let (data, is_reported) = (|at| options.data(at), options.is_reported());
        let hold = self.guard();
        LocalEntry::enter(client, queue, kind, mode, data, is_reported, hold)
    }

    async fn contend(
        self,
        options: LockOptions,
        deadline: CallDeadline,
        entry: Option<Box<LocalEntry>>,
        only_if_free: bool,
    ) -> Result<Option<Guard>> {
        let path = self.queue.path();
        // Pin the future here, because each function that takes a future by value would store another copy.
        let wait = pin!(async {
            let session = match &entry {
                Some(entry) => entry.session().clone(),
                None => self.client.session().await?,
            };
            let queue = Queue {
                session: &session,
                path,
                kind: self.kind,
            };
            // Read the queue before joining it, so that trying a held lock costs one read and no write.
            let has_look = only_if_free && entry.is_none();
            if has_look && looks_taken(queue, options.synced).await? {
                return Ok(None);
            }
            let data = match &entry {
                Some(entry) => entry.data().clone(),
                None => options.data(session.clock().unix_ms()),
            };
            let wait_options = options.wait_options(data, only_if_free);
            let events = options.events;
            let mut waiter = match entry {
                Some(entry) => Waiter::local(queue, &wait_options, events.clone(), *entry),
                None => Waiter::new(queue, &wait_options, events.clone()),
            };
            let grant = waiter.acquire().await?;
            drop(waiter);
            Ok(grant.map(|grant| Guard::new(session, grant, self.kind, wait_options.data, events)))
        });
        deadline.run(path, path, wait).await
    }
}
