//! [`Walk`]: reads the locks of a tree in few requests.
//!
//! Reads are batched into multiReads, and several batches are in flight. First we read the entries that should hold the
//! lock, judged by their names. If one of them has left, we read the next entries of the same list. New entries join at
//! the end, so the first remaining entry of an old list is still the head of the queue.

use std::collections::{HashMap, VecDeque};
use std::mem;

use lockkeeper_store::{Call, Error, ReadOp, ReadReply, Session, ZnodePath};

use super::{LockInfo, LockKind, LockPrefix};
use crate::names::{contender_number, has_unique_id, recipe_of};
use crate::observe::QueueEntry;
use crate::queue::{contenders, count_holders};

/// Maximum number of reads per request. A server needs about a third of a millisecond for this many reads.
const MAX_READS: usize = 512;

/// Number of reads in a request while we do not know the size of the answers.
const FIRST_READS: usize = 64;

/// After a reply larger than this, we make the next requests smaller.
const LARGE_ANSWER_BYTES: usize = 512 << 10;

const WINDOW: usize = 4;

/// If all entries of a queue leave before we read them, we list the queue again, up to this many times in total. After
/// that, we leave out the lock.
const MAX_LISTS: usize = 4;

pub(super) const LOCKS: &str = "locks";
pub(super) const LEASES: &str = "leases";
const PERMITS: &str = "permits";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Root {
    path: ZnodePath,
    depth: Depth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    Tree,
    Lock,
    /// The semaphore at this path or, if there is none, the lock at the child `locks` of this path.
    SemaphoreOrLocks,
}

impl Root {
    pub(crate) fn tree(path: ZnodePath) -> Self {
        let depth = Depth::Tree;
        Self { path, depth }
    }

    pub(crate) fn of_entry(
        session: &Session,
        prefix: &LockPrefix,
        entry: &ZnodePath,
    ) -> Option<Self> {
        contender_number(session, entry.name())?;
        let queue = entry.parent()?;
        let semaphore = queue
            .parent()
            .filter(|path| queue.name() == LEASES && is_below(prefix, path));
        Some(match semaphore {
            Some(path) => Self::lock(path),
            None => Self::containing(prefix, queue),
        })
    }

    /// Returns the lock at a path, or the semaphore if the path is the queue of its waiters.
    pub(crate) fn containing(prefix: &LockPrefix, lock: ZnodePath) -> Self {
        let semaphore = lock
            .parent()
            .filter(|path| lock.name() == LOCKS && is_below(prefix, path));
        match semaphore {
            Some(path) => Self {
                path,
                depth: Depth::SemaphoreOrLocks,
            },
            None => Self::lock(lock),
        }
    }

    fn lock(path: ZnodePath) -> Self {
        let depth = Depth::Lock;
        Self { path, depth }
    }

    pub(crate) fn locks(&self) -> impl Iterator<Item = ZnodePath> + use<> {
        let (own, child) = match self.depth {
            Depth::Tree => (None, None),
            Depth::Lock => (Some(self.path.clone()), None),
            Depth::SemaphoreOrLocks => (Some(self.path.clone()), self.path.join(LOCKS).ok()),
        };
        own.into_iter().chain(child)
    }
}

fn is_below(prefix: &LockPrefix, path: &ZnodePath) -> bool {
    path == prefix.top() || prefix.contains(path)
}

pub(crate) struct Walk<'a> {
    session: &'a Session,
    prefix: &'a LockPrefix,
    /// Reads to send. It is a stack, so that we complete one lock before we list others.
    todo: Vec<Read>,
    under_way: VecDeque<(Vec<Read>, Call<Vec<ReadReply>>)>,
    batch: usize,
    incomplete: HashMap<usize, Lock>,
    next_lock: usize,
    complete: Vec<LockInfo>,
    unreadable: Vec<(ZnodePath, Error)>,
}

struct Read {
    path: ZnodePath,
    purpose: Purpose,
}

#[derive(Clone, Copy)]
enum Purpose {
    Look(Depth),
    Queue {
        lock: usize,
        part: Part,
        depth: Depth,
    },
    Entry {
        lock: usize,
        index: usize,
        depth: Depth,
    },
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Holders,
    Waiters,
}

struct Lock {
    path: ZnodePath,
    queue: ZnodePath,
    kind: LockKind,
    entries: Vec<Entry>,
    waiters: usize,
    unanswered: usize,
    rounds: u32,
    lists: usize,
    /// True if the store refused to read one of the entries. That entry may be the holder, so we leave out the lock.
    is_unreadable: bool,
}

struct Entry {
    name: String,
    state: EntryState,
}

enum EntryState {
    Unread,
    Read(Box<QueueEntry>),
    /// The entry has left, or it is a persistent znode and therefore not a contender.
    Gone,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(session: &'a Session, prefix: &'a LockPrefix) -> Self {
        Self {
            session,
            prefix,
            todo: Vec::new(),
            under_way: VecDeque::new(),
            batch: FIRST_READS,
            incomplete: HashMap::new(),
            next_lock: 0,
            complete: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, root: Root) {
        self.look(root.path, root.depth);
    }

    pub(crate) fn into_unreadable(self) -> Vec<(ZnodePath, Error)> {
        self.unreadable
    }

    pub(crate) async fn next(&mut self) -> Result<Option<LockInfo>, Error> {
        loop {
            if let Some(lock) = self.complete.pop() {
                return Ok(Some(lock));
            }
            self.send();
            let Some((reads, call)) = self.under_way.pop_front() else {
                return Ok(None);
            };
            match call.await {
                Ok(replies) => self.take_all(reads, replies)?,
                // The request or its answer was too large, or the connection broke, perhaps because of the size. Retry
                // with smaller requests.
                Err(
                    error @ (Error::LimitReached { .. }
                    | Error::TooLarge { .. }
                    | Error::ConnectionLoss),
                ) => {
                    self.batch = (reads.len() / 2).max(1);
                    if reads.len() == 1 && error != Error::ConnectionLoss {
                        self.refused(reads, &error)?;
                    } else {
                        self.todo.extend(reads);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&mut self) {
        while self.under_way.len() < WINDOW && !self.todo.is_empty() {
            let reads = self
                .todo
                .split_off(self.todo.len().saturating_sub(self.batch));
            let ops = reads.iter().map(|read| match read.purpose {
                Purpose::Entry { .. } => ReadOp::GetEntry(read.path.clone()),
                _ => ReadOp::GetChildren(read.path.clone()),
            });
            let call = self.session.multi_read(ops.collect::<Vec<_>>());
            self.under_way.push_back((reads, call));
        }
    }

    fn take_all(&mut self, reads: Vec<Read>, replies: Vec<ReadReply>) -> Result<(), Error> {
        let bytes: usize = replies.iter().map(size).sum();
        self.batch = match bytes > LARGE_ANSWER_BYTES {
            true => (reads.len() / 2).max(1),
            false => (self.batch * 2).min(MAX_READS),
        };
        for (read, reply) in reads.into_iter().zip(replies) {
            self.take(read, reply)?;
        }
        Ok(())
    }

    fn refused(&mut self, reads: Vec<Read>, error: &Error) -> Result<(), Error> {
        for read in reads {
            self.take(read, ReadReply::Failed(error.clone()))?;
        }
        Ok(())
    }

    fn take(&mut self, read: Read, reply: ReadReply) -> Result<(), Error> {
        let Read { path, purpose } = read;
        let reply = match reply {
            ReadReply::Failed(Error::NoNode { .. }) => None,
            ReadReply::Failed(error) => {
                self.unreadable.push((path, error));
                if let Purpose::Queue { lock, depth, .. } | Purpose::Entry { lock, depth, .. } =
                    purpose
                {
                    let unread = self.expect(lock);
                    unread.is_unreadable = true;
                    unread.unanswered -= 1;
                    self.proceed(lock, depth)?;
                }
                return Ok(());
            }
            reply => Some(reply),
        };
        match (purpose, reply) {
            (Purpose::Look(depth), Some(ReadReply::Children(names))) => {
                self.looked(&path, &names, depth)
            }
            (Purpose::Look(_), _) => Ok(()),
            (Purpose::Queue { lock, part, depth }, reply) => {
                let names = match reply {
                    Some(ReadReply::Children(names)) => names,
                    _ => Vec::new(),
                };
                self.descend(&path, &names, &[], depth)?;
                self.listed(lock, part, &names, depth)
            }
            (Purpose::Entry { lock, index, depth }, reply) => {
                self.read(lock, index, path, reply, depth)
            }
        }
    }

    fn look(&mut self, path: ZnodePath, depth: Depth) {
        let purpose = Purpose::Look(depth);
        self.todo.push(Read { path, purpose });
    }

    fn looked(&mut self, path: &ZnodePath, names: &[String], depth: Depth) -> Result<(), Error> {
        let has = |part| has(names, part);
        let is_semaphore = is_semaphore(path, names);
        let is_wanted = !path.is_root() && self.prefix.contains(path);
        if is_semaphore {
            let queues = [(LEASES, Part::Holders), (LOCKS, Part::Waiters)];
            let lock = self.begin(path, path.join(LEASES)?, LockKind::Semaphore);
            for (name, part) in queues {
                if has(name) {
                    self.list(lock, part, path.join(name)?, depth);
                }
            }
        } else if is_wanted {
            let lock = self.begin(path, path.clone(), LockKind::Mutex);
            self.expect(lock).unanswered += 1;
            self.listed(lock, Part::Holders, names, depth)?;
        }
        if !is_semaphore && depth == Depth::SemaphoreOrLocks && has(LOCKS) {
            self.look(path.join(LOCKS)?, Depth::Lock);
        }
        let parts = if is_semaphore {
            &[LOCKS, LEASES, PERMITS][..]
        } else {
            &[]
        };
        self.descend(path, names, parts, depth)
    }

    fn descend(
        &mut self,
        path: &ZnodePath,
        names: &[String],
        parts: &[&str],
        depth: Depth,
    ) -> Result<(), Error> {
        if depth != Depth::Tree {
            return Ok(());
        }
        for name in names {
            if parts.contains(&name.as_str()) || contender_number(self.session, name).is_some() {
                continue;
            }
            let child = path.join(name)?;
            if self.prefix.contains(&child) {
                self.look(child, depth);
            }
        }
        Ok(())
    }

    fn begin(&mut self, path: &ZnodePath, queue: ZnodePath, kind: LockKind) -> usize {
        let number = self.next_lock;
        self.next_lock += 1;
        let lock = Lock {
            path: path.clone(),
            queue,
            kind,
            entries: Vec::new(),
            waiters: 0,
            unanswered: 0,
            rounds: 0,
            lists: 0,
            is_unreadable: false,
        };
        self.incomplete.insert(number, lock);
        number
    }

    fn expect(&mut self, lock: usize) -> &mut Lock {
        let lock = self.incomplete.get_mut(&lock);
        lock.expect("a lock is incomplete while it has reads without an answer")
    }

    fn list(&mut self, lock: usize, part: Part, path: ZnodePath, depth: Depth) {
        self.expect(lock).unanswered += 1;
        let purpose = Purpose::Queue { lock, part, depth };
        self.todo.push(Read { path, purpose });
    }

    fn listed(
        &mut self,
        number: usize,
        part: Part,
        names: &[String],
        depth: Depth,
    ) -> Result<(), Error> {
        let session = self.session;
        let contenders = contenders(session, names);
        let lock = self.expect(number);
        lock.unanswered -= 1;
        match part {
            Part::Waiters => lock.waiters = contenders.len(),
            Part::Holders => {
                if lock.kind == LockKind::Mutex {
                    lock.kind = recipe_of(contenders.iter().map(|(_, name)| *name));
                }
                lock.lists += 1;
                lock.rounds = 0;
                let entries = contenders.into_iter().map(|(_, name)| Entry {
                    name: name.to_owned(),
                    state: EntryState::Unread,
                });
                lock.entries = entries.collect();
            }
        }
        self.proceed(number, depth)
    }

    fn read(
        &mut self,
        number: usize,
        index: usize,
        path: ZnodePath,
        reply: Option<ReadReply>,
        depth: Depth,
    ) -> Result<(), Error> {
        let state = match reply {
            Some(ReadReply::Entry {
                data,
                stat,
                granted_at_ms,
            }) if stat.is_ephemeral() => {
                let entry = QueueEntry::read(path, data, &stat, granted_at_ms);
                EntryState::Read(Box::new(entry))
            }
            // A persistent znode is not a contender, but may itself be a lock.
            Some(ReadReply::Entry { stat, .. }) => {
                if depth == Depth::Tree && stat.num_children > 0 && self.prefix.contains(&path) {
                    self.look(path, depth);
                }
                EntryState::Gone
            }
            _ => EntryState::Gone,
        };
        let lock = self.expect(number);
        lock.unanswered -= 1;
        lock.entries[index].state = state;
        self.proceed(number, depth)
    }

    fn proceed(&mut self, number: usize, depth: Depth) -> Result<(), Error> {
        let lock = self.expect(number);
        if lock.unanswered > 0 {
            return Ok(());
        }
        if lock.is_unreadable {
            self.incomplete.remove(&number);
            return Ok(());
        }
        let had_entries = !lock.entries.is_empty();
        let missing = lock.missing();
        if !missing.is_empty() {
            let paths = missing.into_iter().map(|index| {
                let path = lock.queue.join(&lock.entries[index].name)?;
                Ok((index, path))
            });
            let paths = paths.collect::<Result<Vec<_>, Error>>()?;
            lock.unanswered = paths.len();
            let reads = paths.into_iter().map(|(index, path)| {
                let purpose = Purpose::Entry {
                    lock: number,
                    index,
                    depth,
                };
                Read { path, purpose }
            });
            self.todo.extend(reads);
            return Ok(());
        }
        let all_left = lock.entries.is_empty();
        if had_entries && all_left && lock.lists < MAX_LISTS {
            let queue = lock.queue.clone();
            self.list(number, Part::Holders, queue, Depth::Lock);
            return Ok(());
        }
        self.complete(number);
        Ok(())
    }

    fn complete(&mut self, number: usize) {
        let Some(mut lock) = self.incomplete.remove(&number) else {
            return;
        };
        let count = lock.count_holders();
        let entries = mem::take(&mut lock.entries).into_iter();
        let mut waiters = lock.waiters;
        let mut holders = Vec::with_capacity(count);
        for (index, entry) in entries.enumerate() {
            match entry.state {
                EntryState::Read(entry) if index < count => holders.push(*entry),
                _ => waiters += 1,
            }
        }
        if holders.is_empty() && waiters == 0 || !self.prefix.contains(&lock.path) {
            return;
        }
        self.complete.push(LockInfo {
            path: lock.path,
            kind: lock.kind,
            holders,
            waiters,
        });
    }
}

impl Lock {
    /// Returns the indices of the entries that must be read before we know the holders.
    fn missing(&mut self) -> Vec<usize> {
        self.entries
            .retain(|entry| !matches!(entry.state, EntryState::Gone));
        let is_unread = |index: &usize| matches!(self.entries[*index].state, EntryState::Unread);
        let count = self.count_holders();
        if self.rounds == 0 {
            self.rounds = 1;
            let is_doubtful =
                |index: &usize| *index < count || !has_unique_id(&self.entries[*index].name);
            return (0..self.entries.len()).filter(is_doubtful).collect();
        }
        if (0..count).all(|index| !is_unread(&index)) {
            return Vec::new();
        }
        // Read more entries each time, because the queue of a busy lock advances in the meantime.
        let ahead = 4usize.saturating_pow(self.rounds).max(count);
        self.rounds += 1;
        let ahead = ahead.min(self.entries.len());
        (0..ahead).filter(is_unread).collect()
    }

    fn count_holders(&self) -> usize {
        count_holders(self.entries.iter().map(|entry| entry.name.as_str()))
    }
}

/// Returns true if the children are the parts of a semaphore. A child `locks` is not enough, because it may be a folder
/// of locks.
pub(super) fn is_semaphore(path: &ZnodePath, names: &[String]) -> bool {
    !path.is_root() && (has(names, LEASES) || has(names, LOCKS) && has(names, PERMITS))
}

fn has(names: &[String], part: &str) -> bool {
    names.iter().any(|name| name == part)
}

fn size(reply: &ReadReply) -> usize {
    match reply {
        ReadReply::Data { data, .. } | ReadReply::Entry { data, .. } => data.len() + 68,
        ReadReply::Children(names) => names.iter().map(|name| name.len() + 4).sum(),
        ReadReply::Failed(_) => 4,
    }
}
