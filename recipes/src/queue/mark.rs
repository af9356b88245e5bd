//! [`Mark`]: how far a queue has been released, written on its parent with each release.
//!
//! A store without an index (a ZooKeeper server) can say who is ahead only by listing all names.
//! So that a hand-over does not list them again, the holder that leaves writes into the queue's
//! parent, in one multi with its own delete, the number up to which the queue has been released.
//! The next holder drops from its own list whatever is not above that number. Whoever does not know
//! the mark ignores it; a parent with foreign data, or that may not be written, gets a plain delete.

use bytes::Bytes;
use lockkeeper_store::Stat;
use serde::{Deserialize, Serialize};

use crate::names::Kind;

/// How far a queue has been released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mark {
    v: u32,
    queue: String,
    /// All entries up to this number have left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    released: Option<i64>,
}

impl Mark {
    const VERSION: u32 = 1;

    /// The mark of a queue that nobody has held yet.
    pub(crate) fn fresh(kind: Kind) -> Self {
        Self {
            v: Self::VERSION,
            queue: kind.title().to_owned(),
            released: None,
        }
    }

    /// The mark of a queue that has been released up to `sequence`.
    pub(crate) fn released_to(kind: Kind, sequence: i64) -> Self {
        Self {
            released: Some(sequence),
            ..Self::fresh(kind)
        }
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self)
            .expect("a mark is plain JSON")
            .into()
    }
}

/// What a contender read on its queue's parent.
pub(crate) struct Reading {
    /// The version to expect when the mark is moved on.
    pub(crate) version: i32,
    /// All entries up to this number have left.
    pub(crate) released: Option<i64>,
}

impl Reading {
    /// Reads a mark; `None` for what this version did not write.
    pub(crate) fn parse(kind: Kind, data: &[u8], stat: &Stat) -> Option<Self> {
        let mark: Mark = serde_json::from_slice(data).ok()?;
        let known = mark.v == Mark::VERSION && mark.queue == kind.title();
        known.then_some(Self {
            version: stat.version,
            released: mark.released,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(data: &[u8]) -> Option<Option<i64>> {
        Reading::parse(Kind::Mutex, data, &Stat::default()).map(|reading| reading.released)
    }

    #[test]
    fn only_what_this_version_wrote_is_a_mark() {
        assert_eq!(read(&Mark::fresh(Kind::Mutex).to_bytes()), Some(None));
        assert_eq!(
            read(&Mark::released_to(Kind::Mutex, 7).to_bytes()),
            Some(Some(7))
        );
        for foreign in [
            &b""[..],
            b"10.0.0.1",
            br#"{"v":2,"queue":"mutex","released":7}"#,
            br#"{"v":1,"queue":"semaphore","released":7}"#,
            br#"{"v":1,"queue":"mutex","released":7,"more":1}"#,
        ] {
            assert_eq!(read(foreign), None);
        }
    }
}
