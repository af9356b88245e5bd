//! [`Outbox`]: the queue of events and answers for one connection, in the order in which they occurred (invariant 13).
//!
//! The store adds messages under its lock. The connection's task takes them out without this lock, up to the last
//! transaction that the log has. The bytes of the messages count towards a limit of the connection and a limit of all
//! clients together (invariant 10).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use atomic_waker::AtomicWaker;
use parking_lot::Mutex;

use super::unread::{Account, Unread};
use crate::core::{CoreReply, WatchKey, bytes_of_acl};
use crate::model::error::Error;
use crate::model::protocol::{OpReply, Predecessor, ReadReply, Reply};
use crate::model::types::Zxid;
use crate::model::watch::WatchUpdate;
use crate::runtime::future::wake;

pub(crate) struct Outbox {
    inner: Mutex<Inner>,
    waker: AtomicWaker,
    /// True while the store asks the connection for signs of life that the client has sent but the connection has not
    /// read.
    is_asked: AtomicBool,
    unread: Arc<Unread>,
}

struct Inner {
    items: VecDeque<Item>,
    bytes: usize,
    /// Bytes that the connection's task holds outside the outbox, in unsent messages and in requests.
    beside: usize,
    account: Account,
    /// Limit of `bytes` when an event is added. If an event would exceed this limit, the connection is closed, because
    /// its client reads too slowly.
    limit: usize,
    end: Option<Ending>,
    /// True if the connection was woken for an event and has taken nothing out since. The next event then needs no
    /// wake-up.
    is_told: bool,
}

/// A message that may leave once the log has the transaction `bound`.
#[derive(Debug)]
pub(crate) struct Item {
    bound: Zxid,
    what: Message,
    bytes: usize,
}

#[derive(Debug)]
pub(crate) enum Message {
    WatchUpdate {
        /// Meaningless if the event results from a setWatches request.
        watch: WatchKey,
        news: WatchUpdate,
    },
    /// The answer to the oldest unanswered request. `zxid` is the last zxid that the store had applied at that time.
    Answer {
        zxid: Zxid,
        answer: Result<CoreReply, Error>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Ending {
    /// The client has closed the session. The messages in the outbox are still sent, including the reply to the close.
    #[error("the session was closed")]
    Closed,
    #[error("the session has expired")]
    Expired,
    #[error("the session has moved to another connection")]
    Moved,
    #[error("the client reads too slowly")]
    Overflow,
    #[error("the store has stopped")]
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

    /// Asks the connection whether the client has sent unread signs of life. The caller must then wake the connection.
    pub(super) fn ask_for_signs(&self) {
        self.is_asked.store(true, Ordering::Release);
    }

    /// Returns true if the store has asked for signs of life. The session then ends as soon as the connection has
    /// nothing left to read.
    pub(crate) fn is_asked_for_signs(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// Cancels a pending [request for signs of life](Self::ask_for_signs). Returns true if one was pending.
    #[cfg(any(test, feature = "server"))]
    pub(super) fn take_question(&self) -> bool {
        self.is_asked.swap(false, Ordering::AcqRel)
    }

    /// Adds an update of a watch. Returns true if the caller must wake the connection.
    pub(super) fn put_news(&self, bound: Zxid, watch: WatchKey, news: WatchUpdate) -> bool {
        let mut inner = self.inner.lock();
        if inner.end.is_some() {
            return false;
        }
        let item = Item::new(bound, Message::WatchUpdate { watch, news });
        // A client cannot limit its events by sending fewer requests, so we can bound them only by closing the
        // connection. After reconnecting, the client asks which of its watches have missed something (`setWatches`).
        if inner.bytes + item.bytes > inner.limit {
            return inner.end(Ending::Overflow, &self.unread);
        }
        inner.put(item, &self.unread);
        !std::mem::replace(&mut inner.is_told, true)
    }

    /// Adds an answer. Returns the approximate number of unsent bytes, or `usize::MAX` if the connection is cut off, so
    /// that the caller carries out no further requests. The caller is the connection's own task, so no wake-up is
    /// needed.
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

    pub(super) fn waiting_bytes(&self) -> usize {
        self.inner.lock().bytes
    }

    /// Ends the outbox. Returns true if the caller must wake the connection. A connection whose client does not read
    /// takes no messages out, so it must be woken even if an earlier message has woken it.
    pub(super) fn end(&self, ending: Ending) -> bool {
        self.inner.lock().end(ending, &self.unread)
    }

    /// Sets the number of bytes that the connection's task holds in unsent messages and waiting requests. Call this
    /// after each [`take`](Self::take). Until then, all messages that were taken out still count towards the limit of
    /// all clients.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn set_beside(&self, bytes: usize) {
        let mut inner = self.inner.lock();
        inner.beside = bytes;
        inner.count(&self.unread);
    }

    pub(super) fn account(&self) -> Option<(usize, u64)> {
        let inner = self.inner.lock();
        let Account { bytes, .. } = inner.account;
        (bytes > 0).then(|| (bytes, inner.account.since()))
    }

    pub(super) fn wake(&self) {
        self.waker.take().into_iter().for_each(wake);
    }

    pub(crate) fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Moves messages to `to`, about `room` bytes and at least one message. Stops at the first message that may not
    /// leave yet, because later messages must not overtake it.
    pub(crate) fn take(
        &self,
        room: usize,
        may_leave: impl Fn(Zxid) -> bool,
        to: &mut VecDeque<Message>,
    ) -> Taken {
        let mut inner = self.inner.lock();
        // An event that is added after this lock is released must wake the connection again.
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
            // The item still counts towards the limit of all clients, until the connection reports its unsent bytes
            // (`set_beside`).
            inner.bytes -= item.bytes;
            to.push_back(item.what);
        }
        match inner.end {
            _ if taken > 0 => Taken::Some,
            _ if !inner.items.is_empty() => Taken::Some,
            // Report the ending only when the outbox is empty, because the messages of a closed session are sent before
            // its connection is closed.
            Some(ending) => Taken::End(ending),
            None => {
                inner.items.shrink_to(MAX_KEPT_ITEMS);
                Taken::Nothing
            }
        }
    }

    /// Returns the reason why the connection must be closed immediately and its messages dropped, or `None` if it may
    /// stay open or still send its messages.
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

    /// Returns true if the caller must act on this ending. A closed session's messages are still sent. If its client
    /// does not read them, they overflow, and the caller must act on this second ending as well.
    fn end(&mut self, ending: Ending, unread: &Unread) -> bool {
        let is_new = match self.end {
            None => true,
            Some(Ending::Closed) => ending == Ending::Overflow,
            Some(_) => false,
        };
        if is_new {
            self.end = Some(ending);
        }
        // Release the messages' memory here, because the connection's task may not run for a long time.
        if self.is_cut().is_some() {
            self.items = VecDeque::new();
            self.bytes = 0;
        }
        self.count(unread);
        is_new
    }

    /// Updates the number of bytes in `unread`. A connection that is cut off counts as 0 bytes.
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
        // Subtract the connection's bytes, because the sum over all clients outlives the connection.
        self.unread.set(&mut self.inner.get_mut().account, 0);
    }
}

const MAX_KEPT_ITEMS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Some,
    Nothing,
    /// The next message must wait until the log has this transaction.
    Held(Zxid),
    End(Ending),
}

impl Item {
    fn new(bound: Zxid, what: Message) -> Self {
        let more = match &what {
            Message::WatchUpdate { news, .. } => match news {
                WatchUpdate::Event(event) => event.path.as_str().len(),
                WatchUpdate::Departure { .. } => 0,
            },
            Message::Answer { answer, .. } => match answer {
                Ok(reply) => bytes_of(reply),
                Err(error) => bytes_of_error(error),
            },
        };
        let bytes = size_of::<Self>() + more;
        Self { bound, what, bytes }
    }
}

const ALLOCATION_BYTES: usize = 16;

/// Returns the approximate number of heap bytes of a reply. The match names each variant, so that a new variant is not
/// counted as 0 bytes by oversight.
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
                ReadReply::Data { data, .. } | ReadReply::Entry { data, .. } => data.len(),
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

/// Returns the bytes of the error's text, which may contain a path of a megabyte.
fn bytes_of_error(error: &Error) -> usize {
    error.to_string().len()
}
