//! [`MultiLock`]: a call that locks several keys, with its arguments checked before anything is sent.

use std::collections::BTreeSet;

use lockkeeper_store::{
    Client, Error, LARGEST_REQUEST_BYTES, ReadOp, ReadReply, Session, ZnodePath,
};

use crate::deadline::CallDeadline;
use crate::error::{LockError, Result};
use crate::metadata::EntryData;
use crate::names::Kind;
use crate::options::LockOptions;
use crate::path::{IntoLockPath, LockPath};
use crate::queue::{Queue, WaitOptions, is_taken};
use crate::retry::retry;
use crate::synced::read_synced;

/// A call that locks several keys: one of [`lock_all`](super::lock_all()), [`lock_each`](super::lock_each()),
/// [`try_lock_all`](super::try_lock_all()) and [`try_lock_many`](super::try_lock_many()).
pub(super) struct MultiLock {
    pub(super) client: Client,
    pub(super) keys: Keys,
    pub(super) options: LockOptions,
    pub(super) deadline: CallDeadline,
    /// Data of each entry's znode.
    data: EntryData,
}

impl MultiLock {
    /// Checks the arguments of a call, and starts its deadline. Nothing is sent.
    ///
    /// # Errors
    /// [`LockError::EmptyKeys`], [`LockError::DuplicateKey`], [`LockError::BatchTooLarge`], [`LockError::InvalidField`], and
    /// that of an invalid path.
    pub(super) fn new(
        client: &Client,
        keys: impl IntoIterator<Item: IntoLockPath>,
        mut options: LockOptions,
    ) -> Result<Self> {
        let keys = Keys::parse(keys)?;
        options.check()?;
        let data = options.data(client.clock().unix_ms());
        keys.check_size(client, &data)?;
        Ok(Self {
            client: client.clone(),
            keys,
            deadline: options.start(client),
            options,
            data,
        })
    }

    /// Returns the terms on which the call waits in each queue.
    pub(super) fn wait_options(&self, only_if_free: bool) -> WaitOptions {
        self.options.wait_options(self.data.clone(), only_if_free)
    }

    /// Returns the error of a call that its deadline has ended before the lock with this index was granted.
    pub(super) fn timed_out(&self, index: usize) -> LockError {
        let path = self.keys.path(index);
        self.deadline.error(path, path)
    }

    /// Finds the queues that look empty, with one read of all. Only "held" is believed: "free" is confirmed by joining.
    pub(super) async fn look(&self, session: &Session) -> Result<Vec<bool>> {
        let look = || look(session, self.keys.queues());
        read_synced(session, self.keys.path(0), self.options.synced, look).await
    }
}

async fn look(session: &Session, queues: &[ZnodePath]) -> Result<Vec<bool>> {
    let reads: Vec<_> = queues.iter().cloned().map(ReadOp::GetChildren).collect();
    let lists = retry(|| session.multi_read(reads.clone())).await?;
    let mut look_free = Vec::with_capacity(lists.len());
    for (path, list) in queues.iter().zip(lists) {
        look_free.push(looks_free(session, path, list).await?);
    }
    Ok(look_free)
}

async fn looks_free(session: &Session, path: &ZnodePath, list: ReadReply) -> Result<bool> {
    match list {
        ReadReply::Children(names) => {
            let queue = Queue {
                session,
                path,
                kind: Kind::Mutex,
            };
            Ok(!is_taken(queue, &names, false).await?)
        }
        ReadReply::Failed(Error::NoNode { .. }) => Ok(true),
        ReadReply::Failed(error) => Err(error.into()),
        _ => Err(Error::Protocol("a list was answered with data".to_owned()).into()),
    }
}

/// One or more locks, each named once, in the order of their naming.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    keys: Vec<LockPath>,
    /// Their znodes, in the same order.
    queues: Vec<ZnodePath>,
}

impl Keys {
    /// # Errors
    /// [`LockError::EmptyKeys`], [`LockError::DuplicateKey`], and that of an invalid path.
    fn parse(keys: impl IntoIterator<Item: IntoLockPath>) -> Result<Self> {
        let keys = keys.into_iter().map(|key| key.into_lock_path());
        let keys = keys.collect::<Result<Vec<_>, Error>>()?;
        let mut seen = BTreeSet::new();
        match keys.iter().find(|key| !seen.insert(*key)) {
            Some(twice) => Err(LockError::DuplicateKey {
                path: twice.as_znode().clone(),
            }),
            None if keys.is_empty() => Err(LockError::EmptyKeys),
            None => Ok(Self::of(keys)),
        }
    }

    fn of(keys: Vec<LockPath>) -> Self {
        let queues = keys.iter().map(|key| key.as_znode().clone()).collect();
        Self { keys, queues }
    }

    /// Returns the keys with a wanted index.
    pub(super) fn only(&self, wanted: impl Fn(usize) -> bool) -> Self {
        let keys = self.keys.iter().enumerate();
        let wanted = keys.filter(|(index, _)| wanted(*index));
        Self::of(wanted.map(|(_, key)| key.clone()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(super) fn key(&self, index: usize) -> &LockPath {
        &self.keys[index]
    }

    pub(super) fn path(&self, index: usize) -> &ZnodePath {
        &self.queues[index]
    }

    pub(super) fn queues(&self) -> &[ZnodePath] {
        &self.queues
    }

    pub(super) fn to_vec(&self) -> Vec<LockPath> {
        self.keys.clone()
    }

    /// Refuses a batch that is too large for one request. Sent all the same, it would never be answered: a server closes
    /// the connection, and the client sends it again on the next.
    fn check_size(&self, client: &Client, data: &EntryData) -> Result<()> {
        let (session, data) = (client.current_session(), data.to_bytes().len());
        let bytes = self
            .queues
            .iter()
            .map(|path| session.create_bytes(path.as_str().len() + Kind::NAME_BYTES, data));
        let bytes = bytes.sum();
        if bytes > LARGEST_REQUEST_BYTES {
            return Err(LockError::BatchTooLarge {
                keys: self.len(),
                bytes,
                limit: LARGEST_REQUEST_BYTES,
            });
        }
        Ok(())
    }
}
