//! [`ZnodePath`]: a validated, absolute znode path.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::model::error::Error;

/// Absolute path of a znode, validated when it is created.
///
/// The rules are ZooKeeper's (`PathUtils.validatePath`). The path starts with `/` and, except for the root, does not
/// end with `/`. No part is empty, `.` or `..`. The characters U+0000 to U+001F, U+007F to U+009F, U+D800 to U+F8FF and
/// all from U+FFF0 are invalid. Characters beyond U+FFFF are invalid, too, because Java represents each of them by two
/// code units from U+D800 to U+DFFF.
///
/// Clones share the text.
///
/// ```
/// use lockkeeper_store::ZnodePath;
///
/// let orders: ZnodePath = "/lock/orders".parse()?;
/// assert_eq!(orders.name(), "orders");
/// assert_eq!(orders.parent().unwrap().as_str(), "/lock");
/// assert!("lock/orders".parse::<ZnodePath>().is_err());
/// # Ok::<(), lockkeeper_store::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZnodePath(Arc<str>);

impl ZnodePath {
    /// Validates a path.
    ///
    /// # Errors
    /// [`Error::InvalidPath`] with the broken rule.
    pub fn new(path: impl AsRef<str>) -> Result<Self, Error> {
        let path = path.as_ref();
        match fault(path) {
            None => Ok(Self(path.into())),
            Some(reason) => Err(Error::InvalidPath {
                path: path.to_owned(),
                reason,
            }),
        }
    }

    /// Returns the root, `/`.
    pub fn root() -> Self {
        Self("/".into())
    }

    pub(crate) fn trusted(path: impl Into<Arc<str>>) -> Self {
        let path = path.into();
        debug_assert_eq!(fault(&path), None, "{path}");
        Self(path)
    }

    /// Returns `parent` with a trailing `/`, for a sequential create whose name is only its number.
    #[allow(dead_code, reason = "of the server")]
    pub(crate) fn unnamed_below(parent: &Self) -> Self {
        match parent.is_root() {
            true => parent.clone(),
            false => Self(format!("{parent}/").into()),
        }
    }

    /// Returns the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true for `/`.
    pub fn is_root(&self) -> bool {
        self.0.len() == 1
    }

    /// Returns the last part, or the empty string for the root.
    pub fn name(&self) -> &str {
        name_of(&self.0)
    }

    /// Returns the path without its last part, or `None` for the root.
    pub fn parent(&self) -> Option<ZnodePath> {
        parent_of(&self.0).map(|parent| Self(parent.into()))
    }

    /// Returns the path of a child.
    ///
    /// # Errors
    /// [`Error::InvalidPath`] if `name` is not a single valid part.
    pub fn join(&self, name: &str) -> Result<ZnodePath, Error> {
        let path = if self.is_root() {
            format!("/{name}")
        } else {
            format!("{}/{name}", self.0)
        };
        if name.contains('/') {
            return Err(Error::InvalidPath {
                path,
                reason: "a name of one part must not contain `/`",
            });
        }
        Self::new(path)
    }
}

pub(crate) fn parent_of(path: &str) -> Option<&str> {
    match path.rfind('/')? {
        0 if path.len() == 1 => None,
        0 => Some("/"),
        slash => Some(&path[..slash]),
    }
}

pub(crate) fn name_of(path: &str) -> &str {
    &path[path.rfind('/').map_or(0, |slash| slash + 1)..]
}

fn fault(path: &str) -> Option<&'static str> {
    match is_plain(path.as_bytes()) {
        true => None,
        false => broken_rule(path),
    }
}

/// Returns true if the path is printable ASCII and no name in it is empty or starts with a dot. This holds for nearly
/// all valid paths. Every request checks its path, so the loops have no early exit, which lets the compiler vectorize
/// them.
fn is_plain(path: &[u8]) -> bool {
    let is_printable = path
        .iter()
        .fold(true, |is, byte| is & matches!(byte, b' '..=b'~'));
    let is_named = path.windows(2).fold(true, |is, pair| {
        is & !((pair[0] == b'/') & ((pair[1] == b'/') | (pair[1] == b'.')))
    });
    is_printable & is_named && path.len() > 1 && path[0] == b'/' && path[path.len() - 1] != b'/'
}

fn broken_rule(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("it is empty");
    }
    if !path.starts_with('/') {
        return Some("it must start with `/`");
    }
    if path.len() == 1 {
        return None;
    }
    if path.ends_with('/') {
        return Some("it must not end with `/`");
    }
    for part in path[1..].split('/') {
        match part {
            "" => return Some("a part of it is empty (`//`)"),
            "." | ".." => return Some("relative parts (`.`, `..`) are not allowed"),
            _ => {}
        }
    }
    path.chars().find_map(|c| match c {
        '\0' => Some("it contains a NUL"),
        '\u{1}'..='\u{1f}' | '\u{7f}'..='\u{9f}' => Some("it contains a control character"),
        '\u{e000}'..='\u{f8ff}' => Some("it contains a private-use character"),
        '\u{fff0}'..='\u{ffff}' => Some("it contains a Unicode special"),
        '\u{10000}'.. => Some("it contains a character beyond U+FFFF"),
        _ => None,
    })
}

impl FromStr for ZnodePath {
    type Err = Error;

    fn from_str(path: &str) -> Result<Self, Error> {
        Self::new(path)
    }
}

impl TryFrom<&str> for ZnodePath {
    type Error = Error;

    fn try_from(path: &str) -> Result<Self, Error> {
        Self::new(path)
    }
}

impl TryFrom<String> for ZnodePath {
    type Error = Error;

    fn try_from(path: String) -> Result<Self, Error> {
        Self::new(path)
    }
}

impl TryFrom<&ZnodePath> for ZnodePath {
    type Error = Error;

    fn try_from(path: &ZnodePath) -> Result<Self, Error> {
        Ok(path.clone())
    }
}

impl AsRef<str> for ZnodePath {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ZnodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ZnodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_paths_are_refused_with_the_reason() {
        for (path, reason) in [
            ("", "it is empty"),
            ("a", "it must start with `/`"),
            ("/a/", "it must not end with `/`"),
            ("/a//b", "a part of it is empty (`//`)"),
            ("/./b", "relative parts (`.`, `..`) are not allowed"),
            ("/a/..", "relative parts (`.`, `..`) are not allowed"),
            ("/a\0b", "it contains a NUL"),
            ("/a\nb", "it contains a control character"),
            ("/a\u{e000}", "it contains a private-use character"),
            ("/a\u{fffe}", "it contains a Unicode special"),
            ("/a\u{1f512}", "it contains a character beyond U+FFFF"),
        ] {
            match ZnodePath::new(path) {
                Err(Error::InvalidPath { reason: said, .. }) => {
                    assert_eq!(said, reason, "{path:?}")
                }
                other => panic!("{path:?}: {other:?}"),
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn a_plain_path_breaks_no_rule(path in r"[/.a~ \x1f\x7f\u{80}]{0,6}") {
            if is_plain(path.as_bytes()) {
                proptest::prop_assert_eq!(broken_rule(&path), None);
            }
        }
    }

    #[test]
    fn parts() {
        let path = ZnodePath::new("/a/b.c/é").unwrap();
        assert_eq!(path.name(), "é");
        assert_eq!(path.parent().unwrap().as_str(), "/a/b.c");
        assert_eq!(
            ZnodePath::new("/a").unwrap().parent(),
            Some(ZnodePath::root())
        );
        assert_eq!(ZnodePath::root().parent(), None);
        assert_eq!(ZnodePath::root().join("x").unwrap().as_str(), "/x");
        assert!(path.join("x/y").is_err());
        assert!(path.join("").is_err());
    }
}
