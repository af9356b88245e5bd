//! [`Keys`]: the locks that a batch names, checked before anything is sent.

use std::collections::BTreeSet;

use lockkeeper_store::{Client, Error, LARGEST_REQUEST_BYTES, ZnodePath};

use crate::error::{LockError, Result};
use crate::metadata::EntryData;
use crate::names::Kind;
use crate::path::{IntoLockPath, LockPath};

/// One or more locks, each named once, in the order of their naming.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    keys: Vec<LockPath>,
    /// Their znodes, in the same order.
    queues: Vec<ZnodePath>,
}

impl Keys {
    /// # Errors
    /// [`LockError::EmptyKeys`], [`LockError::DuplicateKey`], and that of a path that cannot be one.
    pub(super) fn parse(keys: impl IntoIterator<Item: IntoLockPath>) -> Result<Self> {
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

    /// Some of these.
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

    pub(super) fn into_vec(self) -> Vec<LockPath> {
        self.keys
    }

    /// Refuses a batch that one request cannot carry: a server would break the connection over it.
    pub(super) fn check_size(&self, client: &Client, data: &EntryData) -> Result<()> {
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
