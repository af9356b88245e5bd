//! [`Outbox`]: what goes out over one connection, in one order.

#![cfg_attr(
    not(feature = "server"),
    allow(dead_code, reason = "what only served sessions need")
)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use atomic_waker::AtomicWaker;
use parking_lot::Mutex;

use crate::backend::{OpReply, ReadReply, Reply};
use crate::error::Error;
use crate::types::{WatchedEvent, Zxid};
use crate::wake::wake;

/// What a served session is told next: events and answers, put in under the store's lock, so that
/// each stands where it happened. Its connection takes them out, writes them down and sends them.
pub(crate) struct Outbox {
    inner: Mutex<Inner>,
    waker: AtomicWaker,
    /// Whether the connection must say if nothing is left to read.
    is_asked: AtomicBool,
}

struct Inner {
    items: VecDeque<Item>,
    /// About what the items take.
    bytes: usize,
    /// Beyond this the client reads too slowly.
    limit: usize,
    end: Option<Ending>,
    /// Whether the connection knows that there is something.
    is_told: bool,
}

/// One thing that goes out, once the log has `bound`.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) bound: Zxid,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Event(WatchedEvent),
    /// The answer to the oldest request that has none yet; the zxid is the last one applied.
    Answer {
        zxid: Zxid,
        answer: Result<Reply, Error>,
    },
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The session was closed: what is in the outbox still goes out.
    Closed,
    Expired,
    /// The session has gone to another connection.
    Moved,
    /// The client reads too slowly.
    Overflow,
    /// The store has stopped.
    Stopped,
}

/// What a znode's name, a path or a record takes beside its text.
const OVERHEAD_BYTES: usize = 64;

impl Outbox {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                items: VecDeque::new(),
                bytes: 0,
                limit,
                end: None,
                is_told: false,
            }),
            waker: AtomicWaker::new(),
            is_asked: AtomicBool::new(false),
        }
    }

    /// Has the connection read what its client has sent, before the session is taken for dead. It must be woken.
    pub(super) fn ask_for_signs(&self) {
        self.is_asked.store(true, Ordering::Release);
    }

    /// Returns true if the session ends as soon as the connection has nothing to read.
    pub(crate) fn is_asked_for_signs(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// Returns the same, for the last time.
    pub(super) fn take_question(&self) -> bool {
        self.is_asked.swap(false, Ordering::AcqRel)
    }

    /// Adds an event; whether the connection must be woken.
    pub(super) fn put_event(&self, bound: Zxid, event: WatchedEvent) -> bool {
        let mut inner = self.inner.lock();
        if inner.end.is_some() {
            return false;
        }
        let bytes = OVERHEAD_BYTES + event.path.as_str().len();
        if inner.bytes + bytes > inner.limit {
            inner.end = Some(Ending::Overflow);
            inner.items = VecDeque::new();
            return true;
        }
        inner.bytes += bytes;
        let what = What::Event(event);
        inner.items.push_back(Item { bound, what });
        !std::mem::replace(&mut inner.is_told, true)
    }

    /// Adds an answer; about how many bytes wait now. The connection asks for answers only as long as there
    /// is room for them.
    pub(super) fn put_answer(
        &self,
        bound: Zxid,
        zxid: Zxid,
        answer: Result<Reply, Error>,
    ) -> usize {
        let mut inner = self.inner.lock();
        inner.bytes += bytes_of(&answer);
        let what = What::Answer { zxid, answer };
        inner.items.push_back(Item { bound, what });
        inner.bytes
    }

    /// About how many bytes wait.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.inner.lock().bytes
    }

    /// Says that nothing will follow; whether the connection must be woken. It must, even if it has been told
    /// of something before: as long as its client does not read, it takes nothing out.
    pub(super) fn end(&self, ending: Ending) -> bool {
        let mut inner = self.inner.lock();
        let is_new = inner.end.is_none();
        inner.end.get_or_insert(ending);
        is_new
    }

    /// Wakes the connection, without the store's lock.
    pub(super) fn wake(&self) {
        self.waker.take().into_iter().for_each(wake);
    }

    /// The connection's task, to be woken when there is something to take.
    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Moves what may go out, by `may_leave`, to `to`: as much as makes about `room` bytes, and at least one
    /// item. The bound of the first item that may not, if there is one.
    pub(crate) fn take(
        &self,
        room: usize,
        may_leave: impl Fn(Zxid) -> bool,
        to: &mut VecDeque<What>,
    ) -> Taken {
        let mut inner = self.inner.lock();
        inner.is_told = false;
        let mut taken = 0;
        while taken < room {
            let Some(item) = inner.items.front() else {
                break;
            };
            if !may_leave(item.bound) {
                return Taken::Held(item.bound);
            }
            let Some(item) = inner.items.pop_front() else {
                break;
            };
            let bytes = match &item.what {
                What::Event(event) => OVERHEAD_BYTES + event.path.as_str().len(),
                What::Answer { answer, .. } => bytes_of(answer),
            };
            taken += bytes;
            inner.bytes -= bytes;
            to.push_back(item.what);
        }
        match inner.end {
            _ if taken > 0 => Taken::Some,
            _ if !inner.items.is_empty() => Taken::Some,
            Some(ending) => Taken::End(ending),
            None => {
                inner.items.shrink_to(KEPT_ITEMS);
                Taken::Nothing
            }
        }
    }

    /// Whether the connection must be closed at once, with what is in the outbox.
    pub(crate) fn is_cut(&self) -> Option<Ending> {
        self.inner.lock().end.filter(|end| *end != Ending::Closed)
    }
}

/// An idle connection keeps room for so many items.
const KEPT_ITEMS: usize = 4;

/// What came of a [`take`](Outbox::take).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Some,
    Nothing,
    /// The next item waits until the log has this.
    Held(Zxid),
    /// Nothing is left, and nothing will follow.
    End(Ending),
}

/// About what an answer takes until it is sent.
fn bytes_of(answer: &Result<Reply, Error>) -> usize {
    let names = |names: &[String]| names.iter().map(|name| name.len() + 24).sum();
    let body: usize = match answer {
        Ok(Reply::Data { data, .. }) => data.len(),
        Ok(Reply::Children { names: list, .. }) => names(list),
        Ok(Reply::Paths(paths)) => paths.iter().map(|path| path.as_str().len() + 24).sum(),
        Ok(Reply::Multi(parts)) => parts.len() * size_of::<OpReply>(),
        Ok(Reply::MultiRead(parts)) => parts
            .iter()
            .map(|part| match part {
                ReadReply::Data { data, .. } => data.len() + OVERHEAD_BYTES,
                ReadReply::Children(list) => names(list),
                ReadReply::Failed(_) => OVERHEAD_BYTES,
            })
            .sum(),
        _ => 0,
    };
    OVERHEAD_BYTES + size_of::<Item>() + body
}
