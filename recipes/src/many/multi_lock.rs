//! [`MultiLock`]: a call that locks several keys.

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

pub(super) struct MultiLock {
    pub(super) client: Client,
    pub(super) keys: Keys,
    pub(super) options: LockOptions,
    pub(super) deadline: CallDeadline,
    data: EntryData,
}

impl MultiLock {
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

    pub(super) fn wait_options(&self, only_if_free: bool) -> WaitOptions {
        self.options.wait_options(self.data.clone(), only_if_free)
    }

    pub(super) fn timed_out(&self, index: usize) -> LockError {
        let path = self.keys.path(index);
        self.deadline.error(path, path)
    }

    /// Reads which queues look empty. Only joining a queue confirms that its lock is free.
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

/// One or more distinct locks, in the caller's order.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    keys: Vec<LockPath>,
    queues: Vec<ZnodePath>,
}

impl Keys {
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

    /// Refuses a batch that is too large for one request. Otherwise the server would close the connection, and the
    /// client would send the same request again and again.
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
