//! [`LockPath`]: the parent znode of a lock's queue.

use std::fmt::{self, Write};
use std::sync::Arc;

use lockkeeper_store::{Error, SEMAPHORE_CHILDREN, ZnodeHandle, ZnodePath};

/// The path of a lock. The znode at this path contains the lock's queue. Locks nest, and a lock below another lock is
/// independent of it.
///
/// [`key`](Self::key) turns any text into a path. It percent-encodes the characters that a znode's name should not
/// contain:
///
/// ```
/// use lockkeeper::LockPath;
///
/// let orders = LockPath::new("/lock/orders")?;
/// assert_eq!(orders.key("EU/4711").to_string(), "/lock/orders/EU%2F4711");
/// # Ok::<(), lockkeeper::Error>(())
/// ```
///
/// A key never looks like an entry of the parent lock. If the text ends in ten or more digits, like an entry's name,
/// `key` encodes the last digit.
///
/// A full path may end like an entry's name (`lock-0000000001`). Locks of this library at the parent path ignore this
/// znode, because it is not ephemeral, but Curator and go-zookeeper would wait for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockPath(ZnodePath);

impl LockPath {
    /// Validates a path.
    ///
    /// # Errors
    /// [`Error::InvalidPath`] if the name is not an absolute znode path or is the root.
    pub fn new(path: impl AsRef<str>) -> Result<Self, Error> {
        Self::try_from(ZnodePath::new(path)?)
    }

    pub(crate) fn into_queue(self) -> Arc<ZnodeHandle> {
        Arc::new(ZnodeHandle::new(self.0))
    }

    /// Returns the lock with this name below this path. Different texts give different paths.
    #[must_use]
    pub fn key(&self, text: &str) -> Self {
        let child = self.0.join(&encode(text));
        Self(child.expect("an encoded name is one valid part of a path"))
    }

    /// Returns the text whose [`key`](Self::key) is this child, if any.
    ///
    /// ```
    /// use lockkeeper::LockPath;
    ///
    /// let orders = LockPath::new("/lock/orders")?;
    /// let path = orders.key("EU/4711");
    /// assert_eq!(orders.key_text(path.as_znode()).as_deref(), Some("EU/4711"));
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn key_text(&self, child: &ZnodePath) -> Option<String> {
        let text = decode(child.name())?;
        (self.key(&text).as_znode() == child).then_some(text)
    }

    /// Returns the path of the znode.
    pub fn as_znode(&self) -> &ZnodePath {
        &self.0
    }
}

/// Percent-encodes all characters except letters, digits, `-`, `_` and `.`. Also encodes a text that consists only of
/// dots (a relative path), and the last character of a name that looks like an entry or a part of a semaphore.
fn encode(text: &str) -> String {
    let dots = text.bytes().all(|byte| byte == b'.');
    let mut encoded = String::with_capacity(text.len() + 2);
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
        // Encode an empty text as a single percent sign, because no other text has this encoding.
        encoded.push('%');
    }
    if (ends_as_an_entry(&encoded) || SEMAPHORE_CHILDREN.contains(&encoded.as_str()))
        && let Some(last) = encoded.pop()
    {
        write!(encoded, "%{:02X}", u32::from(last)).expect("a string takes all");
    }
    encoded
}

fn decode(name: &str) -> Option<String> {
    if name == "%" {
        return Some(String::new());
    }
    let mut pieces = name.split('%');
    let mut text = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        text.push(u8::from_str_radix(digits, 16).ok()?);
        text.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(text).ok()
}

/// Returns true if the name ends like the name of a sequential znode: in ten digits or, after an overflow, in a minus
/// sign and nine digits. Longer numbers count too, because other libraries may parse them.
fn ends_as_an_entry(name: &str) -> bool {
    let stem = name.trim_end_matches(|last: char| last.is_ascii_digit());
    let digits = name.len() - stem.len();
    digits >= 10 || (digits == 9 && stem.ends_with('-'))
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

/// Path argument of every recipe: a [`LockPath`], a [`ZnodePath`] or a string.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lockkeeper::{Client, Error, IntoLockPath, LockPath, Mutex};
///
/// fn of_order(client: &Client, orders: impl IntoLockPath, id: &str) -> Result<Mutex, Error> {
///     Mutex::new(client, orders.into_lock_path()?.key(id))
/// }
///
/// # let client = lockkeeper::connect("memory:into-lock-path").await?;
/// assert_eq!(of_order(&client, "/lock/orders", "4711")?.path().as_str(), "/lock/orders/4711");
/// assert!(of_order(&client, "orders", "4711").is_err()); // no absolute path
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub trait IntoLockPath {
    /// Validates the name.
    ///
    /// # Errors
    /// [`Error::InvalidPath`] if the name is not an absolute znode path or is the root.
    fn into_lock_path(self) -> Result<LockPath, Error>;
}

impl<T> IntoLockPath for T
where
    T: TryInto<LockPath>,
    T::Error: Into<Error>,
{
    fn into_lock_path(self) -> Result<LockPath, Error> {
        self.try_into().map_err(Into::into)
    }
}

impl TryFrom<&ZnodePath> for LockPath {
    type Error = Error;

    fn try_from(path: &ZnodePath) -> Result<Self, Error> {
        Self::try_from(path.clone())
    }
}

impl TryFrom<&str> for LockPath {
    type Error = Error;

    fn try_from(path: &str) -> Result<Self, Error> {
        Self::new(path)
    }
}

/// Accepts the items of a slice, as in `lock_all(&client, &names[1..])`.
impl TryFrom<&&str> for LockPath {
    type Error = Error;

    fn try_from(path: &&str) -> Result<Self, Error> {
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

    fn texts() -> impl Iterator<Item = String> {
        const PARTS: [&str; 16] = [
            "",
            "_c_00112233-4455-4677-8899-aabbccddeeff-",
            "lock-",
            "-lock--",
            "__READ__",
            "__lock__",
            "-",
            ".",
            "%",
            "%30",
            "%3",
            "/",
            "ä",
            "x",
            "locks",
            "leases",
        ];
        const NUMBERS: [&str; 12] = [
            "",
            "0",
            "00000000",
            "000000005",
            "123456789",
            "0000000000",
            "2147483648",
            "12345678901",
            "1234567890123",
            "999999999999999999",
            "9999999999999999999",
            "12345678901234567890123456789",
        ];
        PARTS.into_iter().flat_map(|first| {
            PARTS.into_iter().flat_map(move |second| {
                NUMBERS
                    .into_iter()
                    .map(move |number| format!("{first}{second}{number}"))
            })
        })
    }

    #[test]
    fn no_key_is_taken_for_an_entry() {
        let parent = LockPath::new("/l").unwrap();
        for text in texts() {
            let key = parent.key(&text);
            let name = key.as_znode().name();
            assert_eq!(
                lockkeeper_store::sequence_of(name),
                None,
                "{text:?} as {name:?}"
            );
            assert!(!ends_as_an_entry(name), "{text:?} as {name:?}");
            assert!(!SEMAPHORE_CHILDREN.contains(&name), "{text:?} as {name:?}");
            assert_eq!(decode(name).as_deref(), Some(&*text), "as {name:?}");
            assert_eq!(parent.key_text(key.as_znode()), Some(text));
        }
        for plain in ["order-4711", "123456789", "lock-1", "locks-1", "__READ__"] {
            assert_eq!(parent.key(plain).as_znode().name(), plain);
        }
        assert_eq!(parent.key("0000000000").to_string(), "/l/000000000%30");
    }

    #[test]
    fn a_name_that_no_text_gives_has_no_text() {
        let parent = LockPath::new("/l").unwrap();
        for path in [
            "/l/a b", "/l/%", "/l/%2", "/l/%zz", "/l/%FF", "/l/%41", "/l/ä", "/l/a/b", "/m/a",
            "/l/%+1",
        ] {
            let text = parent.key_text(&ZnodePath::new(path).unwrap());
            assert_eq!(text, (path == "/l/%").then(String::new), "{path}");
        }
    }

    #[test]
    fn the_root_is_no_lock() {
        assert!(LockPath::new("/").is_err());
    }
}
