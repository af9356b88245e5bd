//! [`ReleaseMarker`]: how far a queue has been released, written on its parent with each release.
//!
//! A store without an index (a ZooKeeper server) can say who is ahead only by listing all names.
//! So that a hand-over does not list them again, the holder that leaves writes into the queue's
//! parent, in one multi with its own delete, the number up to which the queue has been released.
//! The next holder drops from its own list whatever is not above that number. Whoever does not know
//! the mark ignores it; a parent with foreign data, or that may not be written, gets a plain delete.
//!
//! Numbers begin again under another parent. So a mark names the store and the parent (its czxid)
//! that it was written for, and claims nothing elsewhere, where somebody has copied it to: believed
//! there, it would let a waiter hold beside the holder (invariant 5).

use bytes::Bytes;
use lockkeeper_store::{Op, Session, Stat, ZnodePath, Zxid};
use serde::{Deserialize, Serialize};

use super::wait::number_of;
use crate::names::Kind;

/// How far a queue has been released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReleaseMarker {
    v: u32,
    queue: String,
    /// The store for which this holds. None in the mark of a queue that nobody has left yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    /// The czxid of the parent for which this holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<i64>,
    /// All entries up to this number have left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    released: Option<i64>,
}

/// The part of a mark that all versions have: it says that the data is ours to replace.
#[derive(Deserialize)]
struct AnyVersion {
    #[serde(rename = "v")]
    _version: u32,
    queue: String,
}

impl ReleaseMarker {
    const VERSION: u32 = 2;

    /// The mark of a queue that nobody has left yet. It claims nothing: its parent's czxid is not
    /// known before the create that it is a part of.
    pub(crate) fn fresh(kind: Kind) -> Self {
        Self {
            v: Self::VERSION,
            queue: kind.title().to_owned(),
            store: None,
            parent: None,
            released: None,
        }
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self)
            .expect("a mark is plain JSON")
            .into()
    }

    /// The claim of this mark, if it was written for this store and this parent.
    fn released_in(&self, store: &str, parent: Zxid) -> Option<i64> {
        let is_known = self.v == Self::VERSION;
        let is_here = self.store.as_deref() == Some(store) && self.parent == Some(parent.0);
        self.released.filter(|_| is_known && is_here)
    }
}

/// The mark that stands on a queue's parent, as a contender has read it: what the next one replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CurrentMark {
    /// The parent's czxid. It cannot become another while the contender's own znode is there.
    parent: Zxid,
    /// The version of the parent's data: what anybody has written since is not overwritten.
    version: i32,
}

impl CurrentMark {
    /// The operation that moves the mark on to `entry`, for the multi that deletes this entry. `None`
    /// where nothing can be claimed, since the store has no id.
    pub(crate) fn release(self, session: &Session, kind: Kind, entry: &ZnodePath) -> Option<Op> {
        let mark = ReleaseMarker {
            store: Some(session.store_id()?.to_owned()),
            parent: Some(self.parent.0),
            released: Some(number_of(entry)?),
            ..ReleaseMarker::fresh(kind)
        };
        Some(Op::SetData {
            path: entry.parent()?,
            data: mark.to_bytes(),
            version: Some(self.version),
        })
    }
}

/// What a contender read on its queue's parent.
pub(crate) struct Reading {
    pub(crate) current: CurrentMark,
    /// All entries up to this number have left.
    pub(crate) released: Option<i64>,
}

impl Reading {
    /// Reads the data of a queue's parent in the store of this id; `None` for foreign data, another
    /// recipe's mark among them, which is neither believed nor replaced. A mark of this recipe that
    /// is of another version, store or parent claims nothing here, and is replaced.
    pub(crate) fn parse(kind: Kind, store: Option<&str>, data: &[u8], stat: &Stat) -> Option<Self> {
        let store = store?;
        let any: AnyVersion = serde_json::from_slice(data).ok()?;
        if any.queue != kind.title() {
            return None;
        }
        let mark: Option<ReleaseMarker> = serde_json::from_slice(data).ok();
        Some(Self {
            current: CurrentMark {
                parent: stat.czxid,
                version: stat.version,
            },
            released: mark.and_then(|mark| mark.released_in(store, stat.czxid)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: &str = "one";

    /// `None`: not ours. `Some(None)`: ours, and without a claim here.
    fn read(data: &[u8]) -> Option<Option<i64>> {
        let stat = Stat {
            czxid: Zxid(5),
            ..Stat::default()
        };
        let reading = Reading::parse(Kind::Mutex, Some(STORE), data, &stat);
        reading.map(|reading| reading.released)
    }

    #[test]
    fn a_mark_counts_only_where_it_was_written() {
        assert_eq!(
            read(&ReleaseMarker::fresh(Kind::Mutex).to_bytes()),
            Some(None)
        );
        let mark = br#"{"v":2,"queue":"mutex","store":"one","parent":5,"released":7}"#;
        assert_eq!(read(mark), Some(Some(7)));
        for elsewhere in [
            &br#"{"v":2,"queue":"mutex","store":"two","parent":5,"released":7}"#[..],
            br#"{"v":2,"queue":"mutex","store":"one","parent":6,"released":7}"#,
            br#"{"v":2,"queue":"mutex","parent":5,"released":7}"#,
            br#"{"v":2,"queue":"mutex","store":"one","released":7}"#,
            br#"{"v":2,"queue":"mutex","store":"one","parent":5,"released":7,"more":1}"#,
            br#"{"v":3,"queue":"mutex","store":"one","parent":5,"released":7}"#,
            br#"{"v":1,"queue":"mutex","released":7}"#,
        ] {
            assert_eq!(read(elsewhere), Some(None));
        }
    }

    #[test]
    fn foreign_data_and_another_recipes_marks_are_left_alone() {
        for foreign in [
            &b""[..],
            b"10.0.0.1",
            br#"{"queue":"mutex"}"#,
            br#"{"v":2,"queue":"semaphore","store":"one","parent":5,"released":7}"#,
        ] {
            assert_eq!(read(foreign), None);
        }
    }

    #[test]
    fn without_a_store_id_nothing_is_read() {
        let data = ReleaseMarker::fresh(Kind::Mutex).to_bytes();
        assert!(Reading::parse(Kind::Mutex, None, &data, &Stat::default()).is_none());
    }
}
