//! [`LockPath`]: the znode under which a lock's queue stands.

use std::fmt::{self, Write};

use lockkeeper_store::{Error, ZnodePath};

/// The znode under which a lock's queue stands.
///
/// [`key`](Self::key) makes one of any text of the user's, percent-encoding what a znode's name
/// must not or should not hold:
///
/// ```
/// use lockkeeper::LockPath;
///
/// let orders = LockPath::new("/lock/orders")?;
/// assert_eq!(orders.key("EU/4711").to_string(), "/lock/orders/EU%2F4711");
/// # Ok::<(), lockkeeper::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockPath(ZnodePath);

impl LockPath {
    /// A lock at this path.
    ///
    /// # Errors
    /// [`Error::InvalidPath`] for what is no absolute znode path, or is the root.
    pub fn new(path: impl AsRef<str>) -> Result<Self, Error> {
        Self::try_from(ZnodePath::new(path)?)
    }

    /// The lock of this name below this path. Different texts give different paths.
    #[must_use]
    pub fn key(&self, text: &str) -> Self {
        let child = self.0.join(&encode(text));
        Self(child.expect("an encoded name is one valid part of a path"))
    }

    /// The znode's path.
    pub fn as_znode(&self) -> &ZnodePath {
        &self.0
    }
}

/// Percent-encodes all but letters, digits, `-`, `_` and `.`; dots alone would be relative parts.
fn encode(text: &str) -> String {
    let dots = text.bytes().all(|byte| byte == b'.');
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        let plain =
            byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || (byte == b'.' && !dots);
        if plain {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a string takes all");
        }
    }
    if encoded.is_empty() {
        // No other text encodes to a lone percent sign.
        encoded.push('%');
    }
    encoded
}

impl fmt::Display for LockPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<ZnodePath> for LockPath {
    type Error = Error;

    fn try_from(path: ZnodePath) -> Result<Self, Error> {
        if path.is_root() {
            return Err(Error::InvalidPath {
                path: path.to_string(),
                reason: "a lock needs a path of its own below the root",
            });
        }
        Ok(Self(path))
    }
}

impl TryFrom<&str> for LockPath {
    type Error = Error;

    fn try_from(path: &str) -> Result<Self, Error> {
        Self::new(path)
    }
}

impl TryFrom<&String> for LockPath {
    type Error = Error;

    fn try_from(path: &String) -> Result<Self, Error> {
        Self::new(path)
    }
}

impl TryFrom<String> for LockPath {
    type Error = Error;

    fn try_from(path: String) -> Result<Self, Error> {
        Self::new(path)
    }
}

impl TryFrom<&LockPath> for LockPath {
    type Error = Error;

    fn try_from(path: &LockPath) -> Result<Self, Error> {
        Ok(path.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_a_key_and_no_two_are_the_same() {
        let parent = LockPath::new("/l").unwrap();
        let texts = [
            "", ".", "..", "...", "a/b", "a%2Fb", "a.b", "ä", "\0", "%", " ",
        ];
        let keys: std::collections::BTreeSet<_> =
            texts.iter().map(|text| parent.key(text)).collect();
        assert_eq!(keys.len(), texts.len());
        assert_eq!(parent.key("..").to_string(), "/l/%2E%2E");
    }

    #[test]
    fn the_root_is_no_lock() {
        assert!(LockPath::new("/").is_err());
    }
}
