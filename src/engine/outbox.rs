//! [`Outbox`]: what goes out over one connection, in one order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use atomic_waker::AtomicWaker;
use parking_lot::Mutex;

use super::unread::{Account, Unread};
use crate::core::{CoreReply, bytes_of_acl};
use crate::error::Error;
use crate::protocol::{OpReply, Predecessor, ReadReply, Reply};
use crate::types::Zxid;
use crate::wake::wake;
use crate::watch::WatchedEvent;

/// Queue of what a served session is told next: events and answers, put in under the store's lock, so that
/// each stands where it happened. Its connection takes them out, writes them down and sends them.
pub(crate) struct Outbox {
    inner: Mutex<Inner>,
    waker: AtomicWaker,
    /// True while the connection is asked for signs of life that its client has sent and that are not read yet.
    is_asked: AtomicBool,
    /// Of all clients together.
    unread: Arc<Unread>,
}

struct Inner {
    items: VecDeque<Item>,
    /// About what the items take.
    bytes: usize,
    /// The bytes that the connection holds of what it has taken out, and of requests.
    beside: usize,
    /// The sum, as it counts for all.
    account: Account,
    /// Beyond this the client reads too slowly.
    limit: usize,
    end: Option<Ending>,
    /// True if the connection has been woken for what is in the queue.
    is_told: bool,
}

/// One thing that goes out, once the log has `bound`.
#[derive(Debug)]
pub(crate) struct Item {
    bound: Zxid,
    what: Message,
    /// About what it takes until it is sent.
    bytes: usize,
}

#[derive(Debug)]
pub(crate) enum Message {
    Event(WatchedEvent),
    /// The answer to the oldest request that has none yet; the zxid is the last one applied.
    Answer {
        zxid: Zxid,
        answer: Result<CoreReply, Error>,
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

impl Outbox {
    pub(crate) fn new(limit: usize, unread: Arc<Unread>) -> Self {
        Self {
            inner: Mutex::new(Inner {
                items: VecDeque::new(),
                bytes: 0,
                beside: 0,
                account: Account::default(),
                limit,
                end: None,
                is_told: false,
            }),
            waker: AtomicWaker::new(),
            is_asked: AtomicBool::new(false),
            unread,
        }
    }

    /// Asks the connection for signs of life, before its session expires. It must be woken afterwards.
    pub(super) fn ask_for_signs(&self) {
        self.is_asked.store(true, Ordering::Release);
    }

    /// Returns true if the session ends as soon as the connection has nothing to read.
    pub(crate) fn is_asked_for_signs(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// Takes the question for signs of life back. Returns true if it was asked.
    #[cfg(any(test, feature = "server"))]
    pub(super) fn take_question(&self) -> bool {
        self.is_asked.swap(false, Ordering::AcqRel)
    }

    /// Adds an event. Returns true if the connection must be woken.
    pub(super) fn put_event(&self, bound: Zxid, event: WatchedEvent) -> bool {
        let mut inner = self.inner.lock();
        if inner.end.is_some() {
            return false;
        }
        let item = Item::new(bound, Message::Event(event));
        if inner.bytes + item.bytes > inner.limit {
            return inner.end(Ending::Overflow, &self.unread);
        }
        inner.put(item, &self.unread);
        !std::mem::replace(&mut inner.is_told, true)
    }

    /// Adds an answer. Returns about how many bytes wait now. The connection asks for answers only while there is room
    /// for them: one that is cut off has none.
    pub(super) fn put_answer(
        &self,
        bound: Zxid,
        zxid: Zxid,
        answer: Result<CoreReply, Error>,
    ) -> usize {
        let item = Item::new(bound, Message::Answer { zxid, answer });
        let mut inner = self.inner.lock();
        if inner.is_cut().is_some() {
            return usize::MAX;
        }
        inner.put(item, &self.unread);
        inner.bytes
    }

    /// Returns about how many bytes wait.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.inner.lock().bytes
    }

    /// Ends the outbox: nothing will follow. Returns true if the connection must be woken. It must, even if it has been
    /// woken for something before: as long as its client does not read, it takes nothing out.
    pub(super) fn end(&self, ending: Ending) -> bool {
        self.inner.lock().end(ending, &self.unread)
    }

    /// Sets the bytes that the connection holds of what it has taken out and not sent, and of requests that wait until
    /// the client has read. To be called after anything is taken out: those bytes count until then.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn set_beside(&self, bytes: usize) {
        let mut inner = self.inner.lock();
        inner.beside = bytes;
        inner.count(&self.unread);
    }

    /// Returns the bytes that wait for the client, and their age; `None` when none wait, or the client is cut off.
    pub(super) fn account(&self) -> Option<(usize, u64)> {
        let inner = self.inner.lock();
        let Account { bytes, .. } = inner.account;
        (bytes > 0).then(|| (bytes, inner.account.since()))
    }

    /// Wakes the connection, without the store's lock.
    pub(super) fn wake(&self) {
        self.waker.take().into_iter().for_each(wake);
    }

    /// Registers the connection's task, to be woken when there is something to take.
    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Moves what may go out, by `may_leave`, to `to`: about `room` bytes, and at least one item. Returns the bound of
    /// the first item that may not, if that is why it stops.
    pub(crate) fn take(
        &self,
        room: usize,
        may_leave: impl Fn(Zxid) -> bool,
        to: &mut VecDeque<Message>,
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
            taken += item.bytes;
            // It counts for all until the connection says how much of it is not sent.
            inner.bytes -= item.bytes;
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

    /// Returns the reason for which the connection must be closed at once, with what is in the outbox.
    pub(crate) fn is_cut(&self) -> Option<Ending> {
        self.inner.lock().is_cut()
    }
}

impl Inner {
    fn put(&mut self, item: Item, unread: &Unread) {
        self.bytes += item.bytes;
        self.items.push_back(item);
        self.count(unread);
    }

    /// Ends it, and returns true if it had not ended before. What is in one whose session was closed still goes out,
    /// unless its client does not read that either.
    fn end(&mut self, ending: Ending, unread: &Unread) -> bool {
        let is_new = match self.end {
            None => true,
            Some(Ending::Closed) => ending == Ending::Overflow,
            Some(_) => false,
        };
        if is_new {
            self.end = Some(ending);
        }
        if self.is_cut().is_some() {
            self.items = VecDeque::new();
            self.bytes = 0;
        }
        self.count(unread);
        is_new
    }

    /// Counts what waits. Of a connection that is cut off nothing counts: it is about to go.
    fn count(&mut self, unread: &Unread) {
        let bytes = match self.is_cut() {
            Some(_) => 0,
            None => self.bytes + self.beside,
        };
        unread.set(&mut self.account, bytes);
    }

    fn is_cut(&self) -> Option<Ending> {
        self.end.filter(|end| *end != Ending::Closed)
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.unread.set(&mut self.inner.get_mut().account, 0);
    }
}

/// An idle connection keeps room for so many items.
const KEPT_ITEMS: usize = 4;

/// Outcome of a [`take`](Outbox::take).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Some,
    Nothing,
    /// The next item waits until the log has this.
    Held(Zxid),
    /// Nothing is left, and nothing will follow.
    End(Ending),
}

impl Item {
    fn new(bound: Zxid, what: Message) -> Self {
        let more = match &what {
            Message::Event(event) => event.path.as_str().len(),
            Message::Answer { answer, .. } => match answer {
                Ok(reply) => bytes_of(reply),
                Err(error) => bytes_of_error(error),
            },
        };
        let bytes = size_of::<Self>() + more;
        Self { bound, what, bytes }
    }
}

/// Overhead of an allocation.
const ALLOCATION_BYTES: usize = 16;

/// Returns about what a reply takes beside itself. Each variant is named, so that none counts for nothing by oversight.
fn bytes_of<W, P>(reply: &Reply<W, P>) -> usize {
    match reply {
        Reply::Done
        | Reply::Exists { .. }
        | Reply::Stat(_)
        | Reply::Count(_)
        | Reply::Watching(_) => 0,
        Reply::Created { path, .. } => path.as_str().len(),
        Reply::Data { data, .. } => data.len(),
        Reply::Acl { acl, .. } => bytes_of_acl(acl),
        Reply::Children { names, .. } | Reply::Queue { names, .. } => bytes_of_names(names),
        Reply::Multi(parts) => {
            let parts = parts.iter().map(|part| match part {
                OpReply::Created { path, .. } => size_of::<OpReply>() + path.as_str().len(),
                OpReply::Deleted | OpReply::Set(_) | OpReply::Checked => size_of::<OpReply>(),
            });
            parts.sum()
        }
        Reply::MultiRead(parts) => {
            let parts = parts.iter().map(|part| match part {
                ReadReply::Data { data, .. } => data.len(),
                ReadReply::Children(names) => bytes_of_names(names),
                ReadReply::Failed(error) => bytes_of_error(error),
            });
            parts.map(|bytes| size_of::<ReadReply>() + bytes).sum()
        }
        Reply::Paths(paths) => {
            let paths = paths.iter().map(|path| path.as_str().len());
            paths.map(|bytes| size_of::<String>() + bytes).sum()
        }
        Reply::Enqueued { path, ahead, .. } => path.as_str().len() + bytes_of_ahead(ahead),
        Reply::Predecessor(ahead) => bytes_of_ahead(ahead),
    }
}

fn bytes_of_ahead<W>(ahead: &Predecessor<W>) -> usize {
    match ahead {
        Predecessor::Clear | Predecessor::Gone | Predecessor::Unknown => 0,
        Predecessor::Blocked { by, .. } => by.as_str().len(),
        Predecessor::Listed(names) => bytes_of_names(names),
    }
}

fn bytes_of_names(names: &[String]) -> usize {
    let each = size_of::<String>() + ALLOCATION_BYTES;
    names.iter().map(|name| each + name.len()).sum()
}

/// Returns the bytes of an error's text: it names what was asked for, which may be a path of a megabyte.
fn bytes_of_error(error: &Error) -> usize {
    error.to_string().len()
}
