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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FencingGate {
    newest: Option<FencingToken>,
}

impl FencingGate {
    /// Lets the newest token through, and those that are newer still; remembers it.
    ///
    /// # Errors
    /// [`StaleToken`], when a newer one was seen: the caller no longer holds the lock and must not
    /// write.
    pub fn admit(&mut self, token: FencingToken) -> Result<(), StaleToken> {
        match self.newest {
            Some(newest) if token < newest => Err(StaleToken { token, newest }),
            _ => {
                self.newest = Some(token);
                Ok(())
            }
        }
    }

    /// The newest token seen.
    pub fn newest(&self) -> Option<FencingToken> {
        self.newest
    }

    /// Forgets all tokens: for a move to another store, whose tokens do not compare with the old
    /// one's. Nobody may hold a lock meanwhile.
    pub fn reset(&mut self) {
        self.newest = None;
    }
}

/// A token that is older than one that the resource has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {token} is stale: {newest} was seen")]
pub struct StaleToken {
    /// The token that was refused.
    pub token: FencingToken,
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
}
