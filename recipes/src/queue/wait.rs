//! [`Waiter`]: how a lock is taken. The one loop of all recipes, on every store.
//!
//! 1. **Enter.** One request creates the entry, an ephemeral sequential znode, and asks for its predecessor. A
//!    [`Claim`] sees to it that nothing is left of it, whatever reply is lost and wherever the wait is dropped.
//! 2. **Find the blocker.** The embedded store's index names the nearest entry that blocks, and watches it in the same
//!    step. A store without an index lists all names, which [`ListedQueue`] orders. Either comes down to a [`Step`].
//! 3. **Sleep** until that entry goes. No other is watched: a departure wakes at most one waiter (invariant 4).
//! 4. **Confirm.** The event may state that the own entry exists and no other ahead blocks. If it does not, the store is
//!    asked; so it is after every reconnection (invariant 8).
//! 5. **Grant**, if enough is left of the session's lease that the lock is not lost at once (invariant 6). Else a proof
//!    that the session lives is waited for, and the store asked again.

use std::mem::take;
use std::pin::pin;
use std::slice;
use std::time::Duration;

use lockkeeper_store::{
    BootInstant, Error, GetPredecessor, Heartbeat, Lease, Op, Predecessor, WatchedEvent, ZnodePath,
    Zxid,
};

use super::claim::{Claim, Creation, Enqueued, Names, Submitted, create_queue, enqueue};
use super::contenders::check_name;
use super::grant::Grant;
use super::list::ListedQueue;
use super::self_deadlock;
use super::sleep::{WakeReason, sleep};
use super::{Blocker, Queue, Source, Step};
use crate::deadline::Progress;
use crate::error::{LockError, Result};
use crate::events::{EventSink, LockEvent, PreviousHolder};
use crate::metadata::EntryData;
use crate::names::{EntryId, contender_number};
use crate::retry::retry;
use crate::token::FencingToken;

/// Terms of a wait.
pub(crate) struct WaitOptions {
    /// Data of the entry's znode.
    pub(crate) data: EntryData,
    /// Ask how many are ahead.
    pub(crate) count: bool,
    pub(crate) queue_limit: Option<usize>,
    /// Give up at once if an entry ahead blocks.
    pub(crate) only_if_free: bool,
    pub(crate) progress: Option<Progress>,
}

/// A contender for a lock, from the create of its entry to the grant. Dropping it leaves the queue.
pub(crate) struct Waiter<'a> {
    pub(crate) queue: Queue<'a>,
    options: &'a WaitOptions,
    id: EntryId,
    claim: Claim<'a, Enqueued>,
    /// The transaction that created the entry; its number is the fencing token.
    czxid: Zxid,
    /// The session's lease under which the lock will be held.
    lease: Lease,
    /// The queue by its names, once the store has answered with a list.
    list: Option<Box<ListedQueue>>,
    /// True until anything beyond the reply to the create is needed to know whose turn it is.
    is_first_answer: bool,
    events: Option<EventSink>,
    /// Moment at which it first had to wait, for its events.
    since: Option<BootInstant>,
    /// The last position that was told.
    position: Option<usize>,
    /// The way in which the one before left, as far as that is known.
    previous: PreviousHolder,
    /// Keeps the proof of life fresh while this waits, so that its turn costs no other round trip.
    _heartbeat: Heartbeat,
}

impl<'a> Waiter<'a> {
    /// A contender that has not entered the queue.
    pub(crate) fn new(
        queue: Queue<'a>,
        options: &'a WaitOptions,
        events: Option<EventSink>,
    ) -> Self {
        let (id, lease) = (EntryId::fresh(), queue.session.lease());
        let claim = Claim::new(queue.session, names(queue, id));
        Self::with(queue, options, events, id, claim, lease)
    }

    /// A contender whose entry has been [submitted](enqueue), under this lease.
    #[inline]
    pub(crate) fn submitted(
        queue: Queue<'a>,
        options: &'a WaitOptions,
        events: Option<EventSink>,
        lease: Lease,
        (id, create): (EntryId, Submitted<Enqueued>),
    ) -> Self {
        let claim = Claim::submitted(queue.session, names(queue, id), create);
        Self::with(queue, options, events, id, claim, lease)
    }

    #[inline]
    fn with(
        queue: Queue<'a>,
        options: &'a WaitOptions,
        events: Option<EventSink>,
        id: EntryId,
        claim: Claim<'a, Enqueued>,
        lease: Lease,
    ) -> Self {
        Self {
            queue,
            options,
            id,
            claim,
            czxid: Zxid::default(),
            lease,
            list: None,
            is_first_answer: true,
            events,
            since: None,
            position: None,
            previous: PreviousHolder::Free,
            _heartbeat: queue.session.heartbeat(),
        }
    }

    /// Enters the queue, waits for the turn, and takes the lock. `None` if the lock is not free, and the terms ask for
    /// one that is.
    ///
    /// By reference, as all that it calls: what a future takes by value it keeps twice.
    pub(crate) async fn acquire(&mut self) -> Result<Option<Grant>> {
        Ok(self.wait().await?.then(|| self.grant()))
    }

    /// Enters the queue and waits for the turn, but takes nothing: dropping the waiter still leaves the queue.
    pub(crate) async fn take_turn(mut self) -> Result<Option<Self>> {
        Ok(self.wait().await?.then_some(self))
    }

    async fn wait(&mut self) -> Result<bool> {
        // A reply that is there already is not passed through a future, which copies it.
        let mut step = match self.claim.replied() {
            Some(reply) => self.entered(reply)?,
            None => self.enter(|_| ()).await?,
        };
        self.wait_from(&mut step).await
    }

    /// Joins the queue, creating it where it is missing. Calls `sent` each time that the create has been submitted,
    /// with true if it is under way: so the caller can send another request right behind it.
    pub(crate) async fn enter(&mut self, mut sent: impl FnMut(bool)) -> Result<Step> {
        let Queue {
            session,
            path,
            kind,
        } = self.queue;
        let (id, options) = (self.id, self.options);
        let mut send = || {
            let create = enqueue(session, path, kind, id, &options.data, options.count);
            sent(matches!(create, Submitted::UnderWay(_)));
            create
        };
        loop {
            self.claim.submit(&mut send);
            if let Some(reply) = self.claim.replied() {
                return self.entered(reply);
            }
            match self.claim.create(&mut send).await {
                Ok(Creation::Replied(reply)) => return self.entered(reply),
                Ok(Creation::Found(found)) => {
                    if let Some((_, czxid)) = found.into_iter().flatten().next() {
                        self.czxid = czxid;
                    }
                    return Ok(Step::Recheck);
                }
                // Never created, or reaped since: containers go when they are empty.
                Err(Error::NoNode { .. }) => Box::pin(create_queue(session, path, kind)).await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    #[inline]
    fn entered(&mut self, (_, czxid, ahead): Enqueued) -> Result<Step> {
        self.czxid = czxid;
        self.step(ahead)
    }

    /// Waits until no entry ahead blocks, beginning with what is known. Returns false if one does, and the terms ask
    /// for a free lock.
    pub(crate) async fn wait_from(&mut self, step: &mut Step) -> Result<bool> {
        loop {
            // Boxed, all that only a remote store asks for: a waiter in process stays small.
            *step = match step {
                Step::Clear if self.may_grant() => return Ok(true),
                // The turn has come, but the proof that the session lives is old; or a list does not show the own
                // entry. A committed write tells in both cases.
                Step::Clear | Step::Unlisted => {
                    Box::pin(self.prove()).await?;
                    Step::Recheck
                }
                Step::Recheck => self.recheck().await?,
                Step::ListAll => Box::pin(self.list_all()).await?,
                Step::Listed(names) => Box::pin(self.order(take(names))).await?,
                Step::Gone => return Err(self.removed()),
                Step::Behind(_) if self.options.only_if_free => return Ok(false),
                Step::Behind(blocker) => {
                    self.tell_blocked(&blocker.by, blocker.count)?;
                    self.wait_behind(blocker).await?
                }
            };
        }
    }

    /// Waits until one entry ahead has gone, or has changed.
    async fn wait_behind(&mut self, blocker: &mut Blocker) -> Result<Step> {
        let wake = match &mut blocker.watcher {
            Some(watcher) => {
                let sleep = pin!(sleep(self.queue.session, self.events.as_ref(), watcher));
                self_deadlock::or_warn(self.queue, &blocker.by, &self.options.data, sleep).await?
            }
            None => WakeReason::Gone,
        };
        match (wake, blocker.source) {
            // The store has confirmed this entry and its place in the transaction that took the other out.
            (WakeReason::Clear(reason), Source::Index) => {
                self.previous = PreviousHolder::of(reason);
                Ok(Step::Clear)
            }
            (WakeReason::Changed, Source::List { .. }) => Box::pin(self.watch_again()).await,
            (WakeReason::Gone | WakeReason::Clear(_), Source::List { is_traceable: true }) => {
                Box::pin(self.pass(&blocker.by)).await
            }
            _ => Ok(Step::Recheck),
        }
    }

    /// Asks the store for the predecessor as it is now.
    async fn recheck(&mut self) -> Result<Step> {
        self.is_first_answer = false;
        let look = GetPredecessor {
            entry: self.path().clone(),
            blockers: self.queue.kind.blockers(),
            count: self.options.count,
        };
        let session = self.queue.session;
        match Box::pin(retry(|| session.get_predecessor(look.clone()))).await {
            Ok(ahead) => self.step(ahead),
            Err(Error::NoNode { .. }) => Ok(Step::Gone),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a step of the store's answer, whatever the store can tell.
    #[inline]
    fn step(&self, ahead: Predecessor) -> Result<Step> {
        Ok(match ahead {
            Predecessor::Clear => Step::Clear,
            // The index has every numbered ephemeral znode, contender or not: only names tell.
            Predecessor::Blocked { by, .. } if !self.is_contender(&by)? => Step::ListAll,
            Predecessor::Blocked { by, watcher, count } => Step::Behind(Blocker {
                by,
                watcher: Some(watcher),
                count,
                source: Source::Index,
            }),
            Predecessor::Listed(names) => Step::Listed(names),
            Predecessor::Gone => Step::Gone,
            _ => Step::Recheck,
        })
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

    /// Lists all children, as a store without an index does.
    async fn list_all(&mut self) -> Result<Step> {
        let Queue { session, path, .. } = self.queue;
        match retry(|| session.get_children(path)).await {
            Ok((names, _)) => Ok(Step::Listed(names)),
            Err(Error::NoNode { .. }) => Ok(Step::Gone),
            Err(error) => Err(error.into()),
        }
    }

    /// Finds the blocker by a list of all names.
    async fn order(&mut self, names: Vec<String>) -> Result<Step> {
        let entry = &self.claim.nodes()[0];
        let list = self.list.get_or_insert_default();
        list.order(self.queue, entry, names).await
    }

    /// Watches the blocker of the list again: its data has changed.
    async fn watch_again(&mut self) -> Result<Step> {
        self.list.get_or_insert_default().watch(self.queue).await
    }

    /// Finds the next blocker of the list, after `gone` has gone.
    async fn pass(&mut self, gone: &ZnodePath) -> Result<Step> {
        let entry = &self.claim.nodes()[0];
        let list = self.list.get_or_insert_default();
        let step = list.pass(self.queue, entry).await?;
        if list.has_released(gone) {
            self.previous = PreviousHolder::Released;
        }
        Ok(step)
    }

    /// Waits for a fresh lease, and has the store commit that this entry exists.
    async fn prove(&mut self) -> Result<()> {
        self.renew_lease().await?;
        let (session, entry) = (self.queue.session, self.path().clone());
        match retry(|| session.check(&entry, None)).await {
            Ok(()) => Ok(()),
            Err(Error::MultiFailed { .. }) => Err(self.removed()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for a lease that is fresh: what is granted from then on is held for as long as the lease is valid.
    pub(crate) async fn renew_lease(&mut self) -> Result<()> {
        self.lease = self.queue.session.fresh_lease().await?;
        Ok(())
    }

    /// Returns true if what this entry is granted now is not lost at once (invariant 6).
    pub(crate) fn may_grant(&self) -> bool {
        self.lease.may_grant()
    }

    /// Notes that the store has committed, under this lease, that the entry exists.
    pub(crate) fn proved(&mut self, lease: Lease) {
        self.lease = lease;
    }

    /// Returns true if it has stood behind another entry.
    pub(crate) fn has_waited(&self) -> bool {
        self.previous != PreviousHolder::Free
    }

    /// Returns true if the reply to the create alone has told that its turn has come.
    pub(crate) fn is_first_answer(&self) -> bool {
        self.is_first_answer
    }

    /// Returns the entry's znode. Only for a contender that has entered.
    pub(crate) fn path(&self) -> &ZnodePath {
        &self.claim.nodes()[0]
    }

    /// Returns the error of a contender whose entry is gone.
    pub(crate) fn removed(&self) -> LockError {
        match self.queue.session.status().end() {
            Some(end) => end.into(),
            None => LockError::EntryDeleted {
                entry: self.path().clone(),
            },
        }
    }

    /// Sleeps until this watcher fires, the session is connected again, or it ends.
    pub(crate) async fn sleep(
        &mut self,
        watcher: &mut (impl Future<Output = Result<WatchedEvent, Error>> + Send + Unpin),
    ) -> Result<()> {
        let woken = sleep(self.queue.session, self.events.as_ref(), watcher).await;
        woken.map(drop)
    }

    /// Returns the operation that moves the queue's release marker on to this entry, for the multi that deletes it.
    /// `None` where this contender has read no marker.
    pub(crate) fn move_marker(&self) -> Option<Op> {
        let marker = self.list.as_ref()?.marker?;
        marker.release(self.queue.session.store_id(), self.queue.kind, self.path())
    }

    /// Forgets the release marker, which this contender may not write.
    pub(crate) fn forget_marker(&mut self) {
        if let Some(list) = &mut self.list {
            list.marker = None;
        }
    }

    /// Tells that an entry ahead blocks: by the queue's limit, the events, and the progress of the wait.
    pub(crate) fn tell_blocked(&mut self, by: &ZnodePath, count: Option<usize>) -> Result<()> {
        self.is_first_answer = false;
        if let (None, Some(limit), Some(ahead)) = (self.since, self.options.queue_limit, count)
            && ahead > limit
        {
            let path = self.queue.path.clone();
            return Err(LockError::QueueFull { path, ahead, limit });
        }
        if let Some(progress) = &self.options.progress {
            // Without a number there is one at least: the entry that blocks.
            progress.note(self.queue.path, count.unwrap_or(1));
        }
        self.previous = PreviousHolder::Unknown;
        if let Some(events) = &self.events {
            let position = count.unwrap_or(1);
            if self.since.is_none() {
                events.put(LockEvent::Queued {
                    position,
                    ahead: by.clone(),
                });
            } else if self.position != Some(position) {
                events.put(LockEvent::Advanced { position });
            }
            self.position = Some(position);
            let clock = self.queue.session.clock();
            self.since.get_or_insert_with(|| clock.now());
        }
        Ok(())
    }

    /// Takes the lock. Only for a contender whose turn it is.
    pub(crate) fn grant(&mut self) -> Grant {
        let token = FencingToken::new(self.czxid);
        self.tell_acquired(token, self.previous);
        let [path] = self.claim.take();
        let marker = self.list.as_ref().and_then(|list| list.marker);
        Grant {
            marker,
            ..Grant::new(path, token, self.lease.clone())
        }
    }

    /// Ends the wait with something that is held instead of the entry, which was deleted by the transaction that
    /// created it. Returns the lease under which it is held.
    pub(crate) fn granted_instead(mut self, token: FencingToken) -> Lease {
        // The waiter before has left the queue with permits: that does not tell how others came back.
        let previous = match self.previous {
            PreviousHolder::Free => PreviousHolder::Free,
            _ => PreviousHolder::Unknown,
        };
        self.tell_acquired(token, previous);
        self.claim.take();
        self.lease.clone()
    }

    fn tell_acquired(&mut self, token: FencingToken, previous: PreviousHolder) {
        let Some(events) = self.events.take() else {
            return;
        };
        let now = self.queue.session.clock().now();
        let waited = self.since.map_or(Duration::ZERO, |since| now.since(since));
        events.put(LockEvent::Acquired {
            fencing_token: token,
            waited,
            previous,
        });
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.claim.abandon();
        if let Some(events) = &self.events {
            events.put(LockEvent::Abandoned);
        }
    }
}

fn names(queue: Queue<'_>, id: EntryId) -> Names<'_> {
    Names::Numbered {
        queues: slice::from_ref(queue.path),
        kind: queue.kind,
        id,
    }
}
