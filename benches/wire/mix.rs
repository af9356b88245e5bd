//! Slots. Each repeats one request. A connection has as many slots as requests may be in flight on it.

use testkit::wire::{self, EPHEMERAL_SEQUENTIAL, Out, PERSISTENT, op};

use crate::connection::{Connection, Reply, entry};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mix {
    Ping,
    Get,
    Set,
    /// A persistent znode is created and deleted.
    Create,
    /// Requests of an uncontended lock: create and list, sent together, then delete.
    Locks,
}

impl Mix {
    pub(crate) const ALL: [Self; 5] = [Self::Ping, Self::Get, Self::Set, Self::Create, Self::Locks];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Get => "get",
            Self::Set => "set",
            Self::Create => "create",
            Self::Locks => "locks",
        }
    }

    /// Returns the numbers of connections, and of slots on each.
    pub(crate) fn cases(self) -> &'static [(usize, usize)] {
        match self {
            Self::Ping => &[(1, 1), (2, 128)],
            Self::Get => &[(1, 1), (2, 128), (64, 1), (64, 16)],
            Self::Set => &[(1, 1), (64, 1), (64, 16), (512, 1)],
            Self::Create => &[(1, 1), (64, 1), (512, 1)],
            Self::Locks => &[(1, 1), (2, 128)],
        }
    }
}

pub(crate) const KEYS: usize = 10_000;

pub(crate) struct Slot {
    mix: Mix,
    /// Path of the slot's znode, or the parent of the keys.
    path: String,
    data: Vec<u8>,
    key: usize,
    made: Option<String>,
    waits_for: Wait,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// The only answer.
    Answer,
    /// The name of the created znode.
    Name,
    /// The list sent along with the create.
    List,
    /// The answer of the delete.
    Deletion,
}

/// Operation that a reply has completed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    Nothing,
    /// A single request.
    Request,
    /// Both requests of an acquire.
    Acquire,
    /// The request of a release.
    Release,
}

impl Slot {
    pub(crate) fn new(mix: Mix, path: String, bytes: usize, number: usize) -> Self {
        Self {
            mix,
            path,
            data: vec![b'x'; bytes],
            // Far from the keys of the other slots.
            key: number * 39,
            made: None,
            waits_for: Wait::Answer,
        }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Sends the next operation. Returns its number of requests.
    pub(crate) fn ask(&mut self, to: &mut Connection) -> usize {
        match self.mix {
            Mix::Ping => to.put(-2, op::PING, &Out::new()),
            Mix::Get => to.put(1, op::GET_DATA, &wire::read(&self.path, false)),
            Mix::Set => to.put(1, op::SET_DATA, &wire::set_data(&self.path, &self.data)),
            Mix::Create => self.create_or_delete(to),
            Mix::Locks => return self.lock_or_unlock(to),
        }
        1
    }

    fn create_or_delete(&mut self, to: &mut Connection) {
        if let Some(made) = self.made.take() {
            return delete(to, &made);
        }
        let path = format!("{}/made", self.path);
        create(to, &path, &self.data, PERSISTENT);
        self.made = Some(path);
    }

    fn lock_or_unlock(&mut self, to: &mut Connection) -> usize {
        if let Some(made) = self.made.take() {
            delete(to, &made);
            self.waits_for = Wait::Deletion;
            return 1;
        }
        let queue = format!("{}/{}", self.path, self.key % KEYS);
        self.key += 1;
        let entry = entry(&queue);
        create(to, &entry, &self.data, EPHEMERAL_SEQUENTIAL);
        to.put(1, op::GET_CHILDREN, &wire::read(&queue, false));
        self.waits_for = Wait::Name;
        2
    }

    pub(crate) fn answered(&mut self, reply: &Reply<'_>) -> Done {
        assert_eq!(reply.error, 0, "a request of {} fails", self.mix.name());
        match self.waits_for {
            Wait::Answer => Done::Request,
            Wait::Name => {
                self.made = Some(reply.text().to_owned());
                self.waits_for = Wait::List;
                Done::Nothing
            }
            Wait::List => Done::Acquire,
            Wait::Deletion => Done::Release,
        }
    }

    /// Returns true if the slot would leave no znode behind.
    pub(crate) fn is_clean(&self) -> bool {
        self.made.is_none()
    }
}

pub(crate) fn create(to: &mut Connection, path: &str, data: &[u8], mode: i32) {
    to.put(1, op::CREATE, &wire::create(path, data, mode));
}

pub(crate) fn delete(to: &mut Connection, path: &str) {
    to.put(1, op::DELETE, &wire::delete(path));
}
