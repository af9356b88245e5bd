//! [`Keys`]: paths of znodes as etcd's keys, and back.
//!
//! A znode's key is the URL's prefix followed by the znode's path. If etcd has numbered the znode, its path ends with
//! the key's create revision, which the key itself does not contain. Such a key has a lease and ends with `-` or `_`. A
//! parent needs no key, because it exists while a key is below it.

use std::collections::HashSet;

use super::messages::{KeyValue, Range, RangeResponse, range};
use crate::model::path::ZnodePath;
use crate::model::protocol::sequence_of;
use crate::model::types::{SessionId, Stat, Zxid};

#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

/// The keys that the znode at a path may have.
pub(super) struct Candidates {
    pub(super) exact: Vec<u8>,
    /// Key and create revision that the znode has if etcd has numbered it. `None` if its name does not end with a
    /// number.
    pub(super) numbered: Option<(Vec<u8>, i64)>,
}

impl Candidates {
    pub(super) fn reads(&self) -> Vec<Range> {
        let numbered = self.numbered.as_ref().map(|(key, _)| key.clone());
        let keys = numbered.into_iter().chain([self.exact.clone()]);
        keys.map(range).collect()
    }

    /// Takes the answers to [`reads`](Self::reads), and returns the znode's key.
    pub(super) fn found(
        &self,
        answers: &mut impl Iterator<Item = RangeResponse>,
    ) -> Option<KeyValue> {
        let numbered = self.numbered.as_ref().and_then(|(_, number)| {
            let kv = answers.next()?.kvs.pop();
            kv.filter(|kv| kv.create_revision == *number)
        });
        let exact = answers.next().and_then(|mut range| range.kvs.pop());
        numbered.or(exact)
    }
}

impl Keys {
    pub(super) fn new(chroot: &ZnodePath) -> Self {
        let prefix = match chroot.is_root() {
            true => String::new(),
            false => chroot.as_str().to_owned(),
        };
        Self { prefix }
    }

    pub(super) fn prefix_bytes(&self) -> usize {
        self.prefix.len()
    }

    pub(super) fn exact(&self, path: &ZnodePath) -> Vec<u8> {
        [self.prefix.as_bytes(), path.as_str().as_bytes()].concat()
    }

    /// Returns the key that represents the session with this lease.
    pub(super) fn session(&self, lease: i64) -> Vec<u8> {
        format!("{}/lockkeeper.sessions/{lease:016x}", self.prefix).into_bytes()
    }

    /// Returns the key that the session with this lease puts with each new connection.
    pub(super) fn fence(&self, lease: i64) -> Vec<u8> {
        [&self.session(lease)[..], b"/connection"].concat()
    }

    pub(super) fn candidates(&self, path: &ZnodePath) -> Candidates {
        let exact = self.exact(path);
        let numbered = sequence_of(path.name()).filter(|number| *number > 0);
        let numbered = numbered.and_then(|number| {
            let digits = exact.iter().rev().take_while(|byte| byte.is_ascii_digit());
            let key = exact[..exact.len() - digits.count()].to_vec();
            takes_number(&key).then_some((key, number))
        });
        Candidates { exact, numbered }
    }

    /// Returns the range of all keys below a znode, as the first key and the first key after the range.
    pub(super) fn below(&self, path: &ZnodePath) -> (Vec<u8>, Vec<u8>) {
        let mut start = self.exact(path);
        if !start.ends_with(b"/") {
            start.push(b'/');
        }
        let mut end = start.clone();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        (start, end)
    }

    /// Counts the znodes below `parent` that have one of these keys themselves or through a descendant.
    pub(super) fn count_below<'a>(
        &self,
        parent: &ZnodePath,
        keys: impl Iterator<Item = &'a KeyValue>,
    ) -> usize {
        let (start, _) = self.below(parent);
        let mut znodes = HashSet::new();
        for kv in keys {
            let rest = kv.key.strip_prefix(&*start).unwrap_or_default();
            let ends = (0..rest.len()).filter(|at| rest[*at] == b'/');
            znodes.extend(ends.chain([rest.len()]).map(|end| &rest[..end]));
        }
        znodes.len()
    }

    /// Returns the path of the znode with this key, including its number.
    pub(super) fn path(&self, kv: &KeyValue) -> Option<ZnodePath> {
        let key = std::str::from_utf8(&kv.key).ok()?;
        let path = key.strip_prefix(&self.prefix)?;
        match is_numbered(kv) {
            true => format!("{path}{:010}", kv.create_revision).parse().ok(),
            false => path.parse().ok(),
        }
    }

    /// Returns the name of the child of `parent` that has this key or is an ancestor of the znode with this key. The
    /// flag is true if the child itself has the key.
    pub(super) fn child(&self, parent: &ZnodePath, kv: &KeyValue) -> Option<(String, bool)> {
        let (start, _) = self.below(parent);
        let rest = std::str::from_utf8(kv.key.strip_prefix(&*start)?).ok()?;
        let (name, is_whole) = match rest.split_once('/') {
            Some((name, _)) => (name.to_owned(), false),
            None if is_numbered(kv) => (format!("{rest}{:010}", kv.create_revision), true),
            None => (rest.to_owned(), true),
        };
        // Other programs may have keys that are not paths of znodes.
        parent.join(&name).is_ok().then_some((name, is_whole))
    }
}

/// Returns true if etcd numbers a znode with this key, provided that the key has a lease.
pub(super) fn takes_number(key: &[u8]) -> bool {
    key.ends_with(b"-") || key.ends_with(b"_")
}

fn is_numbered(kv: &KeyValue) -> bool {
    kv.lease != 0 && takes_number(&kv.key)
}

/// Returns the state of a znode. Times and the number of children are missing, because etcd does not keep them.
pub(super) fn stat(kv: &KeyValue) -> Stat {
    Stat {
        czxid: Zxid(kv.create_revision),
        mzxid: Zxid(kv.mod_revision),
        version: i32::try_from(kv.version - 1).unwrap_or(i32::MAX),
        ephemeral_owner: SessionId(kv.lease),
        data_length: i32::try_from(kv.value.len()).unwrap_or(i32::MAX),
        ..Stat::default()
    }
}
