//! [`FencingToken`], and [`FencingGate`] for the resources that check it.

use std::fmt;
use std::str::FromStr;

use lockkeeper_store::Zxid;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that grows with every grant: what makes a lock safe.
///
/// A holder hands it to the resource that the lock protects, and the resource refuses one that is
/// older than the newest that it has seen. So a holder that was paused past its session's timeout
/// does no harm when it goes on.
///
/// It is the czxid of the holder's znode. Tokens of one store compare; those of different stores
/// do not. In JSON it is a decimal string, since it exceeds 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(i64);

impl FencingToken {
    pub(crate) fn new(czxid: Zxid) -> Self {
        Self(czxid.0)
    }

    /// The number, for resources that keep it in a column of their own.
    pub fn as_i64(self) -> i64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for FencingToken {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What a resource keeps to refuse the writes of those who no longer hold the lock.
///
/// It belongs with the resource's own data: read it, ask it, and write it back in the same atomic
/// step as the data (a transaction, or a file replaced under a lock). A holder first
/// [`admit`](Self::admit)s its token, then reads, then writes with another `admit`.
///
/// ```
/// use lockkeeper::{FencingGate, FencingToken};
///
/// let (old, new): (FencingToken, FencingToken) = ("17".parse()?, "19".parse()?);
/// let mut gate = FencingGate::default();
/// gate.admit(new).unwrap();
/// gate.admit(new).unwrap(); // the same holder again
/// let refused = gate.admit(old).unwrap_err();
/// assert_eq!(refused.to_string(), "token 17 is stale: 19 was seen");
/// # Ok::<(), std::num::ParseIntError>(())
/// ```
///
/// The readers of an [`RwLock`](crate::RwLock) have tokens that are shared: they come with
/// [`admit_shared`](Self::admit_shared), and no reader shuts another out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FencingGate {
    /// The newest of those who were alone.
    newest: Option<FencingToken>,
    /// The newest of those who were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    newest_shared: Option<FencingToken>,
}

impl FencingGate {
    /// Lets the newest token through, and those that are newer still; remembers it.
    ///
    /// # Errors
    /// [`StaleToken`], when a newer one was seen: the caller no longer holds the lock and must not
    /// write.
    pub fn admit(&mut self, token: FencingToken) -> Result<(), StaleToken> {
        refuse_before(self.newest(), token)?;
        self.newest = Some(token);
        Ok(())
    }

    /// Lets a reader through, unless a writer has come since that reader was granted the lock;
    /// remembers it, so that a writer from before the reader is refused.
    ///
    /// ```
    /// use lockkeeper::{FencingGate, FencingToken};
    ///
    /// let [writer, one, another, next]: [FencingToken; 4] =
    ///     [17, 18, 19, 20].map(|token| token.to_string().parse().unwrap());
    /// let mut gate = FencingGate::default();
    /// gate.admit(writer).unwrap();
    /// gate.admit_shared(another).unwrap();
    /// gate.admit_shared(one).unwrap(); // readers do not shut each other out
    /// gate.admit(writer).unwrap_err(); // it has gone, or they were not granted the lock
    /// gate.admit(next).unwrap();
    /// gate.admit_shared(one).unwrap_err();
    /// ```
    ///
    /// # Errors
    /// [`StaleToken`], when a newer one of a writer was seen: what the caller reads from now on may
    /// be half written.
    pub fn admit_shared(&mut self, token: FencingToken) -> Result<(), StaleToken> {
        refuse_before(self.newest, token)?;
        self.newest_shared = self.newest_shared.max(Some(token));
        Ok(())
    }

    /// The newest token seen, a writer's or a reader's.
    pub fn newest(&self) -> Option<FencingToken> {
        self.newest.max(self.newest_shared)
    }

    /// Forgets all tokens: for a move to another store, whose tokens do not compare with the old
    /// one's. Nobody may hold a lock meanwhile.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

fn refuse_before(newest: Option<FencingToken>, token: FencingToken) -> Result<(), StaleToken> {
    match newest {
        Some(newest) if token < newest => Err(StaleToken {
            fencing_token: token,
            newest,
        }),
        _ => Ok(()),
    }
}

/// A token that is older than one that the resource has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {fencing_token} is stale: {newest} was seen")]
pub struct StaleToken {
    /// The token that was refused.
    pub fencing_token: FencingToken,
    /// The newest that was seen.
    pub newest: FencingToken,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_json_a_token_is_a_string() {
        let token = FencingToken(i64::MAX);
        let json = serde_json::to_string(&token).unwrap();
        assert_eq!(json, "\"9223372036854775807\"");
        assert_eq!(serde_json::from_str::<FencingToken>(&json).unwrap(), token);
    }

    #[test]
    fn a_reader_is_refused_after_a_newer_writer_and_after_nobody_else() {
        let [first, second, third, fourth] = [1, 2, 3, 4].map(FencingToken);
        let stale = |token, newest| {
            Err(StaleToken {
                fencing_token: token,
                newest,
            })
        };
        let mut gate = FencingGate::default();
        assert_eq!(gate.admit_shared(second), Ok(()));
        assert_eq!(gate.admit_shared(first), Ok(()));
        assert_eq!(gate.admit(first), stale(first, second));
        assert_eq!(gate.admit(third), Ok(()));
        assert_eq!(gate.admit_shared(second), stale(second, third));
        assert_eq!(gate.admit_shared(third), Ok(()), "it has downgraded");
        assert_eq!(gate.admit_shared(fourth), Ok(()));
        assert_eq!(gate.newest(), Some(fourth));
        gate.reset();
        assert_eq!(gate.admit(first), Ok(()));
    }

    #[test]
    fn a_gate_that_no_reader_has_passed_is_written_as_before() {
        let mut gate = FencingGate::default();
        gate.admit(FencingToken(7)).unwrap();
        let json = serde_json::to_string(&gate).unwrap();
        assert_eq!(json, r#"{"newest":"7"}"#);
        assert_eq!(serde_json::from_str::<FencingGate>(&json).unwrap(), gate);
        gate.admit_shared(FencingToken(9)).unwrap();
        let json = serde_json::to_string(&gate).unwrap();
        assert_eq!(serde_json::from_str::<FencingGate>(&json).unwrap(), gate);
    }
}
