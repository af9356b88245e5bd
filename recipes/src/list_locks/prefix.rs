//! [`LockPrefix`]: a part of the lock tree.

use std::fmt;

use lockkeeper_store::{Error, ZnodePath};

use crate::path::LockPath;

/// A set of locks: all locks at and below a path, or all locks whose keys start with a given text.
///
/// Convert a path with `try_into()` (`"/"` is the whole store), or use [`keys`](Self::keys):
///
/// ```
/// use lockkeeper::{LockPath, LockPrefix};
///
/// let below: LockPrefix = "/lock/orders".try_into()?;
/// let orders = LockPath::new("/lock/orders")?;
/// assert!(below.contains(orders.key("EU/4711").as_znode()));
/// let european = LockPrefix::keys(orders.clone(), "EU/");
/// assert!(european.contains(orders.key("EU/4711").as_znode()));
/// assert!(!european.contains(orders.key("US/4711").as_znode()));
/// # Ok::<(), lockkeeper::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockPrefix {
    top: ZnodePath,
    keys: Option<String>,
}

impl LockPrefix {
    /// Returns the set of all locks below `parent` whose [`key`](LockPath::key) starts with `text`, and all locks below
    /// those. The set does not include `parent`.
    pub fn keys(parent: LockPath, text: impl Into<String>) -> Self {
        Self {
            top: parent.as_znode().clone(),
            keys: Some(text.into()),
        }
    }

    /// Returns `true` if the lock at this path is in the set.
    pub fn contains(&self, path: &ZnodePath) -> bool {
        let Some(below) = below(&self.top, path) else {
            return false;
        };
        let Some(keys) = &self.keys else {
            return true;
        };
        let name = below.split('/').next().unwrap_or_default();
        let (Ok(parent), Ok(child)) = (LockPath::try_from(&self.top), self.top.join(name)) else {
            return false;
        };
        parent
            .key_text(&child)
            .is_some_and(|text| text.starts_with(keys))
    }

    pub(crate) fn covers(&self, other: &Self) -> bool {
        self == other || self.keys.is_none() && self.contains(&other.top)
    }

    pub(crate) fn top(&self) -> &ZnodePath {
        &self.top
    }
}

fn below<'a>(top: &ZnodePath, path: &'a ZnodePath) -> Option<&'a str> {
    if top.is_root() {
        return path.as_str().strip_prefix('/');
    }
    let rest = path.as_str().strip_prefix(top.as_str())?;
    match rest {
        "" => Some(rest),
        _ => rest.strip_prefix('/'),
    }
}

impl fmt::Display for LockPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.keys {
            None => self.top.fmt(f),
            Some(keys) => write!(f, "{}/{}…", self.top, keys.escape_default()),
        }
    }
}

impl From<ZnodePath> for LockPrefix {
    fn from(top: ZnodePath) -> Self {
        Self { top, keys: None }
    }
}

impl From<LockPath> for LockPrefix {
    fn from(top: LockPath) -> Self {
        top.as_znode().clone().into()
    }
}

impl TryFrom<&LockPrefix> for LockPrefix {
    type Error = Error;

    fn try_from(prefix: &LockPrefix) -> Result<Self, Error> {
        Ok(prefix.clone())
    }
}

impl TryFrom<&str> for LockPrefix {
    type Error = Error;

    fn try_from(path: &str) -> Result<Self, Error> {
        Ok(ZnodePath::new(path)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> ZnodePath {
        path.parse().unwrap()
    }

    #[test]
    fn a_path_covers_itself_and_what_is_below_it_alone() {
        let prefix: LockPrefix = "/a/b".try_into().unwrap();
        let covered = ["/a/b", "/a/b/c", "/a/b/c/d"];
        assert!(covered.iter().all(|it| prefix.contains(&path(it))));
        let others = ["/", "/a", "/a/bc", "/a/c", "/b"];
        assert!(!others.iter().any(|it| prefix.contains(&path(it))));
        let all: LockPrefix = "/".try_into().unwrap();
        assert!(covered.iter().all(|it| all.contains(&path(it))));
    }

    #[test]
    fn keys_are_compared_as_they_were_written() {
        let parent = LockPath::new("/l").unwrap();
        let prefix = LockPrefix::keys(parent.clone(), "a/");
        assert!(prefix.contains(parent.key("a/").as_znode()));
        assert!(prefix.contains(parent.key("a/b").key("c").as_znode()));
        for other in ["/l", "/l/a", "/l/a/b", "/l/%61%2Fb", "/m/a%2Fb", "/"] {
            assert!(!prefix.contains(&path(other)), "{other}");
        }
        assert!(!LockPrefix::keys(parent.clone(), "").contains(parent.as_znode()));
    }
}
