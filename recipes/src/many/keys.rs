//! [`Keys`]: the locks that a batch names, checked before anything is sent.

use std::collections::BTreeSet;

use lockkeeper_store::{Client, Error, LARGEST_REQUEST_BYTES, ZnodePath};

use crate::error::{LockError, Result};
use crate::metadata::EntryData;
use crate::names::Kind;
use crate::path::{IntoLockPath, LockPath};

/// One or more locks, each named once, in the order of their naming.
#[derive(Clone, Debug)]
pub(super) struct Keys(Vec<LockPath>);

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
            None => Ok(Self(keys)),
        }
    }

    /// Some of these.
    pub(super) fn only(&self, wanted: impl Fn(usize) -> bool) -> Self {
        let keys = self.0.iter().enumerate();
        let wanted = keys.filter(|(index, _)| wanted(*index));
        Self(wanted.map(|(_, key)| key.clone()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn key(&self, index: usize) -> &LockPath {
        &self.0[index]
    }

    pub(super) fn path(&self, index: usize) -> &ZnodePath {
        self.0[index].as_znode()
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &ZnodePath> {
        self.0.iter().map(LockPath::as_znode)
    }

    pub(super) fn into_vec(self) -> Vec<LockPath> {
        self.0
    }

    /// Refuses a batch that one request cannot carry: a server would break the connection over it.
    pub(super) fn check_size(&self, client: &Client, data: &EntryData) -> Result<()> {
        let (session, data) = (client.current_session(), data.to_bytes().len());
        let bytes = self
            .paths()
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
