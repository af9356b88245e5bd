//! [`FencingToken`], and [`FencingGate`] for resources that check it.

use std::fmt;
use std::str::FromStr;

use lockkeeper_store::Zxid;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of a grant, greater than the numbers of all earlier grants.
///
/// A holder passes the token to the resource that the lock protects, and the resource refuses tokens older than the
/// newest it has seen. So a holder that was paused beyond its session timeout does no harm.
///
/// The token is the czxid of the holder's znode, and always positive. Only tokens of the same store can be compared.
///
/// # As text and in JSON
///
/// The token is written as a decimal string, because it may exceed 2^53, and many programs round JSON numbers above
/// that. JSON numbers up to 2^53 - 1 are accepted too.
///
/// ```
/// use lockkeeper::FencingToken;
///
/// let token = FencingToken::from_i64(17)?; // from a column of a database
/// assert_eq!("17".parse::<FencingToken>()?, token);
/// assert!(FencingToken::from_i64(0).is_err());
/// # Ok::<(), lockkeeper::InvalidToken>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(i64);

const MAX_EXACT: u64 = (1 << 53) - 1;

impl FencingToken {
    pub(crate) fn new(czxid: Zxid) -> Self {
        Self(czxid.0)
    }

    /// Converts back a number that [`as_i64`](Self::as_i64) returned.
    ///
    /// # Errors
    /// [`InvalidToken::NotPositive`] if the number is not positive. A resource may store 0 or -1 for "no token yet".
    pub fn from_i64(number: i64) -> Result<Self, InvalidToken> {
        match number {
            1.. => Ok(Self(number)),
            _ => Err(InvalidToken::NotPositive(number)),
        }
    }

    /// Returns the number, for resources that store it in a column.
    pub fn as_i64(self) -> i64 {
        self.0
    }
}

/// Error of converting something that is not a [`FencingToken`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidToken {
    /// A number that no grant can have.
    #[error("a fencing token is a positive number, not {0}")]
    NotPositive(i64),
    /// A text that is not a 64-bit decimal number.
    #[error("a fencing token is a decimal number of 64 bits: {0}")]
    NotANumber(#[from] std::num::ParseIntError),
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for FencingToken {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::from_i64(text.parse()?)
    }
}

impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(TokenVisitor)
        } else {
            // A binary format may not be self-describing, so request the type that was written.
            deserializer.deserialize_str(TokenVisitor)
        }
    }
}

struct TokenVisitor;

impl Visitor<'_> for TokenVisitor {
    type Value = FencingToken;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fencing token: a decimal string, or a number below 2^53")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<FencingToken, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<FencingToken, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::custom(InvalidToken::NotPositive(number))),
        }
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<FencingToken, E> {
        // Refuse a number that may have been rounded. If rounded up, it could lock out all later holders. If rounded
        // down, it would admit a stale holder.
        match i64::try_from(number) {
            Ok(exact) if number <= MAX_EXACT => FencingToken::from_i64(exact).map_err(E::custom),
            _ => Err(E::custom(format_args!(
                "{number} may have been rounded: a fencing token above 2^53 has to be a string"
            ))),
        }
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<FencingToken, E> {
        if number.fract() == 0.0 && (1.0..=MAX_EXACT as f64).contains(&number) {
            return self.visit_u64(number as u64);
        }
        Err(E::invalid_value(de::Unexpected::Float(number), &self))
    }
}

/// A resource's memory of the newest tokens it has seen, which refuses writes of former holders.
///
/// Store the gate with the resource's own data. Read the gate, check the token, and write the gate back in the same
/// atomic step as the data (a transaction, or a file replaced under a lock). Call [`admit`](Self::admit) with the
/// holder's token before the holder reads, and again when it writes.
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
/// # Ok::<(), lockkeeper::InvalidToken>(())
/// ```
///
/// Readers of an [`RwLock`](crate::RwLock) use [`admit_shared`](Self::admit_shared) and do not lock each other out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FencingGate {
    newest: Option<FencingToken>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    newest_shared: Option<FencingToken>,
}

impl FencingGate {
    /// Admits and remembers a token that is at least as new as all tokens seen before.
    ///
    /// # Errors
    /// [`StaleToken`] if a newer token was seen. The caller has lost the lock and must not write.
    pub fn admit(&mut self, token: FencingToken) -> Result<(), StaleToken> {
        refuse_before(self.newest(), token)?;
        self.newest = Some(token);
        Ok(())
    }

    /// Admits a reader unless a newer writer was seen. Remembers the token, so that an older writer is refused from now
    /// on.
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
    /// [`StaleToken`] if a newer writer's token was seen. The data that the caller would read may be half written.
    pub fn admit_shared(&mut self, token: FencingToken) -> Result<(), StaleToken> {
        refuse_before(self.newest, token)?;
        self.newest_shared = self.newest_shared.max(Some(token));
        Ok(())
    }

    /// Returns the newest token seen, of a writer or a reader.
    pub fn newest(&self) -> Option<FencingToken> {
        self.newest.max(self.newest_shared)
    }

    /// Forgets all tokens, for a move to another store. No client may hold the lock during the move.
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

/// Error for a token that is older than the newest token that the resource has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {fencing_token} is stale: {newest} was seen")]
pub struct StaleToken {
    /// The token that was refused.
    pub fencing_token: FencingToken,
    /// The newest token seen.
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
