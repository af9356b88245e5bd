//! [`Waiter`]: one contender, from the create of its entry to the grant. All recipes and stores share this loop.
//!
//! 1. **Enter.** One request creates the entry, an ephemeral sequential znode, and asks for its predecessor. If the
//!    wait is dropped or fails at any point, even after a lost reply, a [`Claim`] removes the entry.
//! 2. **Find the blocker.** The embedded store's index returns the nearest blocking entry and watches it in the same
//!    step. A store without an index lists all names, and [`ListedQueue`] orders them.
//! 3. **Sleep** until the blocking entry has left. A waiter watches only this entry, so a departure wakes at most one
//!    waiter (invariant 4).
//! 4. **Confirm.** Ask the store whether our entry exists and nothing blocks it (invariant 8), unless the deletion
//!    event has already said so. Always ask after a reconnection.
//! 5. **Grant**, if the session's lease is valid for long enough (invariant 6). Otherwise wait for a proof that the
//!    session is alive, and ask the store again.

use std::mem::take;
use std::pin::pin;
use std::slice;
use std::time::Duration;

use lockkeeper_store::{
    BootInstant, Condition, Error, GetPredecessor, Heartbeat, Lease, Op, Predecessor, WatchedEvent,
    ZnodePath, Zxid,
};

use super::claim::{Claim, Creation, Enqueued, Names, create_queue, enqueue};
use super::contenders::check_name;
use super::grant::{Grant, GrantNode};
use super::list::{ListedQueue, Own};
use super::local::LocalEntry;
use super::self_deadlock;
use super::sleep::{WakeReason, sleep};
use super::untaken::{Contender, attended};
use super::{Blocker, BlockerSource, Queue, QueuePosition};
use crate::deadline::Progress;
use crate::error::{LockError, Result};
use crate::events::{EventSink, LockEvent, PreviousHolder};
use crate::metadata::EntryData;
use crate::meter::Outcome;
use crate::names::{EntryId, contender_number};
use crate::reporter::Reporter;
use crate::retry::retry;
use crate::token::FencingToken;

pub(crate) struct WaitOptions {
    pub(crate) data: EntryData,
    /// Requests the number of entries ahead. A store with an index needs extra time for the count.
    pub(crate) count: bool,
    pub(crate) queue_limit: Option<usize>,
    pub(crate) only_if_free: bool,
    pub(crate) progress: Option<Progress>,
}

pub(crate) struct Waiter<'a> {
    pub(crate) queue: Queue<'a>,
    options: &'a WaitOptions,
    /// Conditions that the entry also waits for. A store may ignore them.
    conditions: Vec<Condition>,
    id: EntryId,
    entry: Entry<'a>,
    /// Zxid of the create, which is the fencing token.
    czxid: Zxid,
    lease: Lease,
    /// Boxed because a store with an index never returns a list.
    list: Option<Box<ListedQueue>>,
    /// True as long as the reply to the create is the only reply that we have needed.
    is_first_answer: bool,
    reporter: Reporter,
    has_failed: bool,
    since: Option<BootInstant>,
    position: Option<usize>,
    previous: PreviousHolder,
    /// Keeps proving that the session is alive, so that the grant needs no extra round trip.
    _heartbeat: Heartbeat,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(
        queue: Queue<'a>,
        options: &'a WaitOptions,
        events: Option<EventSink>,
    ) -> Self {
        let (id, lease) = (EntryId::fresh(), queue.session.lease());
        let claim = Claim::new(queue.session, names(queue, id));
        Self::with(
            queue,
            options,
            events,
            id,
            Entry::Claimed(claim, None),
            lease,
        )
    }

    pub(crate) fn joined(
        queue: Queue<'a>,
        options: &'a WaitOptions,
        events: Option<EventSink>,
        id: EntryId,
        (node, czxid, ahead): Enqueued,
    ) -> Self {
        let claim = Claim::owned(queue.session, names(queue, id), [node]);
        let (entry, lease) = (Entry::Claimed(claim, Some(ahead)), queue.session.lease());
        let mut waiter = Self::with(queue, options, events, id, entry, lease);
        waiter.czxid = czxid;
        waiter
    }

    pub(crate) fn local(
        queue: Queue<'a>,
        options: &'a WaitOptions,
        events: Option<EventSink>,
        entry: LocalEntry,
    ) -> Self {
        let (id, lease, czxid) = (entry.id(), entry.lease().clone(), entry.key().czxid());
        let mut waiter = Self::with(queue, options, events, id, Entry::Local(entry), lease);
        waiter.czxid = czxid;
        waiter
    }

    #[inline]
    fn with(
        queue: Queue<'a>,
        options: &'a WaitOptions,
        events: Option<EventSink>,
        id: EntryId,
        entry: Entry<'a>,
        lease: Lease,
    ) -> Self {
        Self {
            queue,
            options,
            conditions: Vec::new(),
            id,
            entry,
            czxid: Zxid::default(),
            lease,
            list: None,
            is_first_answer: true,
            reporter: Reporter::of_wait(queue, &options.data, events),
            has_failed: false,
            since: None,
            position: None,
            previous: PreviousHolder::Free,
            _heartbeat: queue.session.heartbeat(),
        }
    }

    /// Returns `None` if the lock is not free and the options forbid waiting.
    ///
    /// Takes `self` by reference, because a future stores each by-value argument twice.
    pub(crate) async fn acquire(&mut self) -> Result<Option<Grant>> {
        Ok(self.wait().await?.then(|| self.grant()))
    }

    /// Waits like [`acquire`](Self::acquire), but stops before the grant, so that dropping the waiter still removes its
    /// entry. A batch must not hold one lock before it can hold all of them.
    pub(crate) async fn take_turn(mut self) -> Result<Option<Self>> {
        Ok(self.wait().await?.then_some(self))
    }

    pub(crate) fn contender(&self) -> impl FnOnce() -> Contender + use<'a> {
        contender(self.queue, self.id, &self.options.data)
    }

    async fn wait(&mut self) -> Result<bool> {
        let contender = self.contender();
        let turn = attended(pin!(self.turn()), contender).await;
        self.has_failed = turn.is_err();
        turn
    }

    async fn turn(&mut self) -> Result<bool> {
        let mut step = match &mut self.entry {
            Entry::Local(entry) => match entry.forget_turn() {
                true => QueuePosition::Recheck,
                false => QueuePosition::Clear,
            },
            Entry::Claimed(_, ahead) => match ahead.take() {
                Some(ahead) => self.step(ahead)?,
                None => self.enter(|| ()).await?,
            },
        };
        self.wait_from(&mut step).await
    }

    /// Joins the queue, and creates the queue if it is missing. Calls `sent` each time the create has been sent, so
    /// that the caller can send another request directly after it.
    pub(crate) async fn enter(&mut self, mut sent: impl FnMut()) -> Result<QueuePosition> {
        let Queue {
            session,
            path,
            kind,
        } = self.queue;
        let (id, options, conditions) = (self.id, self.options, &self.conditions);
        let Entry::Claimed(claim, _) = &mut self.entry else {
            unreachable!("it has joined the queue");
        };
        let mut send = || {
            let (data, conditions) = (&options.data, conditions.clone());
            let create = enqueue(session, path, kind, id, data, conditions, options.count);
            sent();
            create
        };
        loop {
            match claim.create(&mut send).await {
                Ok(Creation::Replied((_, czxid, ahead))) => {
                    self.czxid = czxid;
                    return self.step(ahead);
                }
                Ok(Creation::Found(found)) => {
                    if let Some((_, czxid)) = found.into_iter().flatten().next() {
                        self.czxid = czxid;
                    }
                    return Ok(QueuePosition::Recheck);
                }
                // The queue was never used, or the store reaped the empty container. The store may reap it again, so
                // this is a loop.
                Err(Error::NoNode { .. }) => Box::pin(create_queue(session, path, kind)).await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) async fn wait_from(&mut self, step: &mut QueuePosition) -> Result<bool> {
        loop {
            // Futures that only remote stores need are boxed, to keep the future of a local wait small.
            *step = match step {
                QueuePosition::Clear if self.may_grant() => return Ok(true),
                // Either the last proof of life is too old (invariant 6), or a list lacks our entry. A committed check
                // of our entry settles both cases. The queue may change in the meantime, so read it again afterwards.
                QueuePosition::Clear | QueuePosition::Unlisted => {
                    Box::pin(self.prove()).await?;
                    QueuePosition::Recheck
                }
                QueuePosition::Recheck => self.recheck().await?,
                QueuePosition::ListAll => Box::pin(self.list_all()).await?,
                QueuePosition::Listed(names) => Box::pin(self.order(take(names))).await?,
                QueuePosition::Gone => return Err(self.removed()),
                QueuePosition::Behind(_) if self.options.only_if_free => return Ok(false),
                QueuePosition::Behind(blocker) => {
                    self.tell_blocked(&blocker.by, blocker.count)?;
                    self.wait_behind(blocker).await?
                }
            };
        }
    }

    async fn wait_behind(&mut self, blocker: &mut Blocker) -> Result<QueuePosition> {
        let wake = match &mut blocker.watcher {
            Some(watcher) => {
                let sleep = pin!(sleep(self.queue.session, &self.reporter, watcher));
                self_deadlock::warn_if_slow(self.queue, &blocker.by, &self.options.data, sleep)
                    .await?
            }
            None => WakeReason::Gone,
        };
        match (wake, blocker.source) {
            // The event is from the transaction that deleted the entry ahead. It says that our entry exists and is not
            // blocked, so we need no request (invariant 8).
            (WakeReason::Clear(reason), BlockerSource::Index) => {
                self.previous = PreviousHolder::of(reason);
                Ok(QueuePosition::Clear)
            }
            (WakeReason::Changed, BlockerSource::List { .. }) => Box::pin(self.watch_again()).await,
            (
                WakeReason::Gone | WakeReason::Clear(_),
                BlockerSource::List { is_traceable: true },
            ) => Box::pin(self.pass(&blocker.by)).await,
            // The connection changed, or the event does not say which entry is ahead now.
            _ => Ok(QueuePosition::Recheck),
        }
    }

    async fn recheck(&mut self) -> Result<QueuePosition> {
        self.is_first_answer = false;
        let look = GetPredecessor {
            entry: self.path().clone(),
            blockers: self.queue.kind.blockers(),
            conditions: self.conditions.clone(),
            count: self.options.count,
        };
        let session = self.queue.session;
        match Box::pin(retry(|| session.get_predecessor(look.clone()))).await {
            Ok(ahead) => self.step(ahead),
            Err(Error::NoNode { .. }) => Ok(QueuePosition::Gone),
            Err(error) => Err(error.into()),
        }
    }

    #[inline]
    fn step(&self, ahead: Predecessor) -> Result<QueuePosition> {
        Ok(match ahead {
            Predecessor::Clear => QueuePosition::Clear,
            Predecessor::Blocked { by, watcher, .. } if self.is_condition(&by) => {
                QueuePosition::Behind(Blocker {
                    by,
                    watcher: Some(watcher),
                    count: Some(0),
                    source: BlockerSource::Index,
                })
            }
            // The index contains every numbered ephemeral znode, even if it is not a contender. So check the name.
            Predecessor::Blocked { by, .. } if !self.is_contender(&by)? => QueuePosition::ListAll,
            Predecessor::Blocked { by, watcher, count } => QueuePosition::Behind(Blocker {
                by,
                watcher: Some(watcher),
                count,
                source: BlockerSource::Index,
            }),
            Predecessor::Listed(names) => QueuePosition::Listed(names),
            Predecessor::Gone => QueuePosition::Gone,
            _ => QueuePosition::Recheck,
        })
    }

    fn is_condition(&self, by: &ZnodePath) -> bool {
        self.conditions
            .iter()
            .any(|condition| condition.znode() == by)
    }

    pub(crate) fn has_conditions(&self) -> bool {
        !self.conditions.is_empty()
    }

    pub(crate) fn set_conditions(&mut self, conditions: Vec<Condition>) {
        self.conditions = conditions;
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.options.count || self.reporter.sink().is_some()
    }

    #[inline]
    fn is_contender(&self, by: &ZnodePath) -> Result<bool> {
        let Queue {
            session,
            path,
            kind,
        } = self.queue;
        if kind.is_own(by.as_str()) {
            return Ok(true);
        }
        check_name(path, kind, by.name())?;
        Ok(contender_number(session, by.name()).is_some())
    }

    async fn list_all(&mut self) -> Result<QueuePosition> {
        self.is_first_answer = false;
        let Queue { session, path, .. } = self.queue;
        match retry(|| session.get_children(path)).await {
            Ok((names, _)) => Ok(QueuePosition::Listed(names)),
            Err(Error::NoNode { .. }) => Ok(QueuePosition::Gone),
            Err(error) => Err(error.into()),
        }
    }

    async fn order(&mut self, names: Vec<String>) -> Result<QueuePosition> {
        let entry = self.entry.path();
        let list = self.list.get_or_insert_default();
        let own = match self.is_first_answer {
            true => Own::Seen,
            false => Own::Unknown,
        };
        list.order(self.queue, entry, names, own).await
    }

    async fn watch_again(&mut self) -> Result<QueuePosition> {
        let entry = self.entry.path();
        let list = self.list.get_or_insert_default();
        list.watch_again(self.queue, entry).await
    }

    async fn pass(&mut self, gone: &ZnodePath) -> Result<QueuePosition> {
        let entry = self.entry.path();
        let list = self.list.get_or_insert_default();
        let step = list.pass(self.queue, entry).await?;
        if list.has_released(gone) {
            self.previous = PreviousHolder::Released;
        }
        Ok(step)
    }

    /// Waits for a fresh lease, and then makes the store commit a check that our entry exists.
    async fn prove(&mut self) -> Result<()> {
        // Renew the lease first. A check that was committed under the old lease proves nothing for the new one.
        self.renew_lease().await?;
        let (session, entry) = (self.queue.session, self.path().clone());
        // A multi that only contains a check is still a transaction, so a follower that lags behind cannot answer it.
        match retry(|| session.check(&entry, None)).await {
            Ok(()) => Ok(()),
            Err(Error::MultiFailed { .. }) => Err(self.removed()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn renew_lease(&mut self) -> Result<()> {
        self.lease = self.queue.session.fresh_lease().await?;
        Ok(())
    }

    pub(crate) fn may_grant(&self) -> bool {
        self.lease.may_grant()
    }

    pub(crate) fn proved(&mut self, lease: Lease) {
        self.lease = lease;
    }

    pub(crate) fn has_waited(&self) -> bool {
        self.previous != PreviousHolder::Free
    }

    pub(crate) fn is_first_answer(&self) -> bool {
        self.is_first_answer
    }

    /// Returns the entry's znode. The contender must have joined the queue.
    pub(crate) fn path(&self) -> &ZnodePath {
        self.entry.path()
    }

    pub(crate) fn has_entered(&self) -> bool {
        match &self.entry {
            Entry::Claimed(claim, _) => !claim.nodes().is_empty(),
            Entry::Local(_) => true,
        }
    }

    pub(crate) fn removed(&self) -> LockError {
        self.gone(self.path())
    }

    pub(crate) fn gone(&self, entry: &ZnodePath) -> LockError {
        // The end of the session also deletes its znodes. If the session has ended, report that instead.
        match self.queue.session.status().end() {
            Some(end) => end.into(),
            None => LockError::EntryDeleted {
                entry: entry.clone(),
            },
        }
    }

    pub(crate) async fn sleep(
        &mut self,
        watcher: &mut (impl Future<Output = Result<WatchedEvent, Error>> + Send + Unpin),
    ) -> Result<()> {
        let woken = sleep(self.queue.session, &self.reporter, watcher).await;
        woken.map(drop)
    }

    pub(crate) fn move_marker(&self) -> Option<Op> {
        let marker = self.list.as_ref()?.marker?;
        marker.release(self.queue.session.store_id(), self.queue.kind, self.path())
    }

    pub(crate) fn forget_marker(&mut self) {
        if let Some(list) = &mut self.list {
            list.marker = None;
        }
    }

    pub(crate) fn tell_blocked(&mut self, by: &ZnodePath, count: Option<usize>) -> Result<()> {
        self.is_first_answer = false;
        // Checking the limit when the wait starts is enough, because the number of entries ahead only decreases.
        if let (None, Some(limit), Some(ahead)) = (self.since, self.options.queue_limit, count)
            && ahead > limit
        {
            let path = self.queue.path.clone();
            return Err(LockError::QueueFull { path, ahead, limit });
        }
        if let Some(progress) = &self.options.progress {
            // If the store did not count the entries, report 1, because at least the blocking entry is ahead.
            progress.note(self.queue.path, count.unwrap_or(1));
        }
        self.previous = PreviousHolder::Unknown;
        if self.reporter.is_wanted() {
            let position = count.unwrap_or(1);
            if self.since.is_none() {
                self.reporter.report(LockEvent::Queued {
                    position,
                    ahead: by.clone(),
                });
            } else if self.position != Some(position) {
                self.reporter.report(LockEvent::Advanced { position });
            }
            self.position = Some(position);
            let clock = self.queue.session.clock();
            self.since.get_or_insert_with(|| clock.now());
        }
        Ok(())
    }

    /// The caller must know that nothing blocks our entry.
    pub(crate) fn grant(&mut self) -> Grant {
        let token = FencingToken::new(self.czxid);
        self.tell_acquired(token, self.previous);
        let node = self.entry.take();
        let marker = self.list.as_ref().and_then(|list| list.marker);
        Grant {
            marker,
            ..Grant::new(node, token, self.lease.clone())
        }
    }

    /// Ends a wait that is granted something other than its entry, for example a semaphore's permits. The grant's
    /// transaction has already deleted the entry. Returns the waiter's lease.
    pub(crate) fn granted_instead(mut self, token: FencingToken) -> Lease {
        // Our predecessor left the queue when it got its permits, so we do not know how the permits' previous holders
        // left.
        let previous = match self.previous {
            PreviousHolder::Free => PreviousHolder::Free,
            _ => PreviousHolder::Unknown,
        };
        self.tell_acquired(token, previous);
        if self.has_entered() {
            self.entry.take();
        }
        self.lease.clone()
    }

    fn outcome(&self) -> Outcome {
        let progress = self.options.progress.as_ref();
        match self.has_failed {
            true => Outcome::Failed,
            false if progress.is_some_and(Progress::is_over) => Outcome::Timeout,
            false if self.options.only_if_free => Outcome::Taken,
            false => Outcome::Cancelled,
        }
    }

    fn tell_acquired(&mut self, token: FencingToken, previous: PreviousHolder) {
        if !self.reporter.is_wanted() {
            return;
        }
        let now = self.queue.session.clock().now();
        let waited = self.since.map_or(Duration::ZERO, |since| now.since(since));
        self.reporter.report(LockEvent::Acquired {
            fencing_token: token,
            waited,
            previous,
        });
        self.reporter.end();
    }
}

enum Entry<'a> {
    /// An entry that a request created, and its first predecessor if that was read before the wait.
    Claimed(Claim<'a, Enqueued>, Option<Predecessor>),
    Local(LocalEntry),
}

impl Entry<'_> {
    fn path(&self) -> &ZnodePath {
        match self {
            Self::Claimed(claim, _) => &claim.nodes()[0],
            Self::Local(entry) => entry.path(),
        }
    }

    fn take(&mut self) -> GrantNode {
        match self {
            Self::Claimed(claim, _) => {
                let [path] = claim.take();
                path.into()
            }
            Self::Local(entry) => entry.take(),
        }
    }

    fn abandon(&mut self) {
        match self {
            Self::Claimed(claim, _) => claim.abandon(),
            Self::Local(entry) => entry.abandon(),
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // Keep this order, so that clean-up has already started when the user receives the event.
        self.entry.abandon();
        self.reporter.abandoned(self.outcome());
    }
}

fn contender<'a>(
    queue: Queue<'a>,
    id: EntryId,
    data: &'a EntryData,
) -> impl FnOnce() -> Contender + use<'a> {
    move || Contender {
        session: queue.session.clone(),
        queue: queue.path.clone(),
        name: queue.kind.entry_name(id),
        data: data.clone(),
        permits: None,
    }
}

fn names(queue: Queue<'_>, id: EntryId) -> Names<'_> {
    Names::Numbered {
        queues: slice::from_ref(queue.path),
        kind: queue.kind,
        id,
    }
}
