//! [`DurabilityBarrier`]: holds back every event and reply until the log has the transaction that the message shows
//! (invariant 2).
//!
//! Held events are released in the order of their arrival and before replies, so a client receives the event of a
//! change before any newer reply. After the log has failed, the barrier stays closed and nothing more is acknowledged
//! (invariant 12).

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::model::error::{Error, Result};
use crate::model::types::Zxid;
use crate::model::watch::{WatchCell, WatchUpdate};
use crate::runtime::future::wake_all;

pub(crate) struct DurabilityBarrier {
    /// Transactions up to this zxid are as durable as the durability class requires. [`CLOSED`] once the log has
    /// failed. Changed only under the lock of `inner`, and read without this lock.
    open_to: AtomicI64,
    /// True if replies and events may pass before the log has their transactions (durability class `None`), unless the
    /// log has failed.
    is_relaxed: AtomicBool,
    inner: Mutex<Inner>,
    on_failure: OnceLock<OnFailure>,
    failed: Notify,
}

type OnFailure = Box<dyn Fn(&Error) + Send + Sync>;

#[derive(Default)]
struct Inner {
    events: VecDeque<HeldEvents>,
    /// Sorted by zxid, then by arrival, so that [`open`](DurabilityBarrier::open) drains a prefix.
    replies: VecDeque<WaitingReply>,
    next_reply: u64,
    failure: Option<Error>,
}

struct HeldEvents {
    zxid: Zxid,
    cell: Arc<WatchCell>,
    news: WatchUpdate,
}

struct WaitingReply {
    key: Key,
    waker: Waker,
}

/// The zxid of the transaction that a reply shows, and the reply's ticket.
type Key = (Zxid, u64);

impl Inner {
    fn find(&self, key: Key) -> Result<usize, usize> {
        self.replies
            .binary_search_by_key(&key, |waiting| waiting.key)
    }
}

const CLOSED: i64 = i64::MIN;

impl DurabilityBarrier {
    pub(crate) fn new(open_to: Zxid) -> Self {
        Self {
            open_to: AtomicI64::new(open_to.0),
            is_relaxed: AtomicBool::new(false),
            inner: Mutex::default(),
            on_failure: OnceLock::new(),
            failed: Notify::new(),
        }
    }

    /// Registers the only listener for a failure of the log. Calls it immediately if the log has already failed.
    pub(crate) fn on_failure(&self, tell: impl Fn(&Error) + Send + Sync + 'static) {
        // Check for a failure after setting the listener, because `fail` stores the failure before it looks for a
        // listener. So either this check finds the failure, or `fail` finds the listener.
        if self.on_failure.set(Box::new(tell)).is_ok()
            && let Some(failure) = self.failure()
            && let Some(tell) = self.on_failure.get()
        {
            tell(&failure);
        }
    }

    pub(crate) fn is_open_to(&self, zxid: Zxid) -> bool {
        let open_to = self.open_to.load(Ordering::Acquire);
        zxid.0 <= open_to || (open_to != CLOSED && self.is_relaxed.load(Ordering::Acquire))
    }

    pub(crate) fn set_relaxed(&self, set_relaxed: bool) {
        self.is_relaxed.store(set_relaxed, Ordering::Release);
    }

    /// Holds an event back until the barrier is open to `zxid` and has released all events that are held already.
    /// Returns the zxid that the event waits for. Returns `None` if the event was put in its cell without waiting, or
    /// if the log has failed and the cell was ended.
    pub(crate) fn hold(
        &self,
        zxid: Zxid,
        cell: &Arc<WatchCell>,
        news: WatchUpdate,
    ) -> Option<Zxid> {
        let mut inner = self.inner.lock();
        // Do not overtake an event that is held already, because a watcher's events must keep their order (invariant
        // 3).
        let zxid = inner.events.back().map_or(zxid, |last| zxid.max(last.zxid));
        // Check again under the lock. If `open` has run since the caller's check, it will not release an event that we
        // queue now.
        if self.is_open_to(zxid) {
            cell.put(news);
            return None;
        }
        let cell = cell.clone();
        match inner.failure.clone() {
            None => inner.events.push_back(HeldEvents { zxid, cell, news }),
            Some(failure) => {
                cell.end(failure);
                return None;
            }
        }
        Some(zxid)
    }

    pub(crate) fn open(&self, zxid: Zxid) {
        let mut woken = Vec::new();
        let mut inner = self.inner.lock();
        // Stay closed, because a successful sync after a failed sync proves nothing (invariant 12).
        if inner.failure.is_some() {
            return;
        }
        while let Some(held) = inner.events.pop_front_if(|held| held.zxid <= zxid) {
            held.cell.put(held.news);
            woken.push(held.cell);
        }
        // Raise `open_to` only after the events are in their cells. Otherwise a reply that reads the new value without
        // the lock could overtake them. Use the maximum, because the barrier starts at the first zxid of the new epoch,
        // and the log reaches this zxid only later.
        self.open_to.fetch_max(zxid.0, Ordering::AcqRel);
        let count = inner
            .replies
            .partition_point(|waiting| waiting.key.0 <= zxid);
        let replies: Vec<_> = inner.replies.drain(..count).collect();
        drop(inner);
        // Wake without the lock, because wakers are user code and may poll or drop another reply.
        woken.iter().for_each(|cell| cell.wake());
        wake_all(replies.into_iter().map(|waiting| waiting.waker));
    }

    pub(crate) fn fail(&self, error: Error) {
        let mut inner = self.inner.lock();
        inner.failure.get_or_insert_with(|| error.clone());
        self.open_to.store(CLOSED, Ordering::Release);
        let events = std::mem::take(&mut inner.events);
        let replies = std::mem::take(&mut inner.replies);
        drop(inner);
        for held in events {
            held.cell.end(error.clone());
            held.cell.wake();
        }
        wake_all(replies.into_iter().map(|waiting| waiting.waker));
        if let Some(tell) = self.on_failure.get() {
            tell(&error);
        }
        self.failed.notify_waiters();
    }

    pub(crate) async fn failed(&self) -> Error {
        loop {
            // Create the future before the check. `notify_waiters` reaches every future that exists when it is called,
            // so we miss no failure.
            let told = self.failed.notified();
            if let Some(failure) = self.failure() {
                return failure;
            }
            told.await;
        }
    }

    #[cfg(any(test, feature = "server"))]
    pub(crate) fn waits(&self) -> u64 {
        self.inner.lock().next_reply
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.inner.lock().failure.clone()
    }

    pub(crate) fn passage(self: &Arc<Self>, zxid: Zxid) -> DurabilityWait {
        DurabilityWait {
            barrier: self.clone(),
            zxid,
            may_run_ahead: true,
            ticket: None,
        }
    }

    /// Waits until the log has everything up to `zxid`, even in the durability class `None`.
    pub(crate) fn written(self: &Arc<Self>, zxid: Zxid) -> DurabilityWait {
        let mut passage = self.passage(zxid);
        passage.may_run_ahead = false;
        passage
    }

    pub(crate) fn has_written(&self, zxid: Zxid) -> bool {
        zxid.0 <= self.open_to.load(Ordering::Acquire)
    }
}

pub(crate) struct DurabilityWait {
    barrier: Arc<DurabilityBarrier>,
    zxid: Zxid,
    may_run_ahead: bool,
    /// Number of this future among the waiting replies. `None` while the future does not wait.
    ticket: Option<u64>,
}

impl DurabilityWait {
    fn may_leave(&self) -> bool {
        match self.may_run_ahead {
            true => self.barrier.is_open_to(self.zxid),
            false => self.barrier.has_written(self.zxid),
        }
    }
}

impl Future for DurabilityWait {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        if this.may_leave() {
            // Leave our entry in `replies`, because `open` drains it together with all others. This saves a lock per
            // reply.
            this.ticket = None;
            return Poll::Ready(Ok(()));
        }
        // Do not clone or drop wakers under the lock. A waker may be the last reference to a task, and dropping the
        // task's other replies takes the same lock.
        let waker = context.waker().clone();
        let mut inner = this.barrier.inner.lock();
        if let Some(failure) = &inner.failure {
            return Poll::Ready(Err(failure.clone()));
        }
        // Check again under the lock. If `open` has drained the replies since the check above, it will not wake a reply
        // that we insert now.
        if this.may_leave() {
            this.ticket = None;
            return Poll::Ready(Ok(()));
        }
        let ticket = *this.ticket.get_or_insert_with(|| {
            inner.next_reply += 1;
            inner.next_reply
        });
        let key = (this.zxid, ticket);
        let former = match inner.find(key) {
            Ok(at) => Some(std::mem::replace(&mut inner.replies[at].waker, waker)),
            Err(at) => {
                inner.replies.insert(at, WaitingReply { key, waker });
                None
            }
        };
        drop(inner);
        drop(former);
        Poll::Pending
    }
}

impl Drop for DurabilityWait {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut inner = self.barrier.inner.lock();
            let found = inner.find((self.zxid, ticket));
            let removed = found.map(|at| inner.replies.remove(at));
            drop(inner);
            drop(removed);
        }
    }
}
