//! The order of a queue by names, without I/O. [`Predecessors`] contains the entries ahead of a waiter.
//! [`ReleaseMarker`] contains the number up to which a queue has been released.
//!
//! A store without an index (ZooKeeper) shows predecessors only in a list of all names. To save a new list for each
//! hand-over, a leaving holder writes its number into the queue's parent, in the multi that deletes its entry. The next
//! waiter then drops all entries up to this number from its list.

use std::sync::OnceLock;

use bytes::Bytes;
use lockkeeper_store::{Blockers, Op, SHARED_MARKER, Stat, ZnodePath, Zxid, sequence_of};
use serde::{Deserialize, Serialize};

use crate::names::{Kind, converted, is_writer};

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Predecessors {
    blocking: Vec<(i64, String)>,
    watched: Option<i64>,
    /// Number of all contenders ahead, including those that do not block.
    pub(crate) ahead: usize,
}

impl Predecessors {
    /// Selects the entries ahead of the child `me`. Returns `None` if `me` is not among the children.
    pub(crate) fn of(
        children: Vec<String>,
        me: &str,
        blockers: Blockers,
        number: impl Fn(&str) -> Option<i64>,
    ) -> Option<Self> {
        let mine = sequence_of(me)?;
        let mut found = false;
        let mut ahead = 0;
        let mut blocking = Vec::new();
        for child in children {
            found |= child == me;
            let Some(sequence) = number(&child) else {
                continue;
            };
            // Compare numbers and not names, because prefixes differ between libraries and numbers can have more than
            // ten digits. Two entries can have the same number, because Curator converts a writer into a new znode with
            // the same number. The name then decides, so that all clients see the same order.
            if (sequence, child.as_str()) < (mine, me) {
                ahead += 1;
                if blocks(&child, blockers) {
                    blocking.push((sequence, child));
                }
            }
        }
        blocking.sort_unstable();
        found.then_some(Self {
            blocking,
            watched: None,
            ahead,
        })
    }

    /// Returns the nearest blocking entry, which is the one to watch (invariant 4).
    pub(crate) fn nearest(&self) -> Option<&str> {
        self.blocking.last().map(|(_, name)| name.as_str())
    }

    pub(crate) fn discard_nearest(&mut self) {
        self.blocking.pop();
        self.ahead = self.ahead.saturating_sub(1);
    }

    pub(crate) fn shorten(&mut self, released: Option<i64>) {
        self.watched = self.blocking.last().map(|(sequence, _)| *sequence);
        // Keep the entry of a reader or a writer, because a converted entry may still block under its other name.
        let watched = self.nearest().map(converted);
        if watched == Some(None) {
            self.blocking.pop();
        }
        if let Some(released) = released {
            self.blocking.retain(|(sequence, _)| *sequence > released);
        }
        self.count();
    }

    pub(crate) fn nearest_few(&self, few: usize) -> impl Iterator<Item = &str> {
        let names = self.blocking.iter().rev().map(|(_, name)| name.as_str());
        names.take(few)
    }

    pub(crate) fn len(&self) -> usize {
        self.blocking.len()
    }

    /// Updates the nearest entries with their current names. An entry without a name has left.
    pub(crate) fn update(&mut self, standing: Vec<Option<String>>, blockers: Blockers) -> Nearest {
        for now in standing {
            let Some((sequence, name)) = self.blocking.pop() else {
                break;
            };
            // Curator may have converted this writer into a reader with an arbitrary name. Only a writer's data shows
            // which library created it, and we read only the data of the writer that we watched.
            if now.is_none() && is_writer(&name) && self.watched != Some(sequence) {
                return Nearest::Unknown;
            }
            if let Some(name) = now.filter(|name| blocks(name, blockers)) {
                self.blocking.push((sequence, name));
                self.count();
                return Nearest::Known;
            }
        }
        match self.blocking.is_empty() {
            true => Nearest::Known,
            false => Nearest::Further,
        }
    }

    fn count(&mut self) {
        self.ahead = self.ahead.min(self.blocking.len());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nearest {
    Known,
    /// All entries that were read have left, so read more entries or list the queue again.
    Further,
    /// A writer that we did not watch has left, or has become a reader with an unknown name, so we need a new list.
    Unknown,
}

pub(crate) fn blocks(name: &str, blockers: Blockers) -> bool {
    blockers == Blockers::All || !name.contains(SHARED_MARKER)
}

pub(crate) fn count_holders<'a>(names: impl IntoIterator<Item = &'a str>) -> usize {
    let mut names = names.into_iter();
    match names.next() {
        None => 0,
        Some(head) if is_shared(head) => 1 + names.take_while(|name| is_shared(name)).count(),
        Some(_) => 1,
    }
}

/// Returns true for the name of a reader (ours or kazoo's) or of a semaphore's permit.
pub(crate) fn is_shared(name: &str) -> bool {
    [SHARED_MARKER, "__rlock__", "-lease-"]
        .iter()
        .any(|mark| name.contains(mark))
}

pub(crate) fn holding(mut queue: Vec<ZnodePath>) -> Vec<ZnodePath> {
    queue.truncate(count_holders(queue.iter().map(ZnodePath::name)));
    queue
}

/// Release marker in the data of a queue's parent. All entries up to its number have left.
///
/// Numbers restart under a new parent, so a marker also contains the id of its store and the czxid of its parent. A
/// waiter that trusted a copied marker could hold the lock together with another holder (invariant 5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReleaseMarker {
    v: u32,
    queue: String,
    /// `None` in a queue that no holder has left yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    released: Option<i64>,
}

/// The fields that all versions of a marker have in common. A marker of the same recipe may be replaced if it has these
/// fields.
#[derive(Deserialize)]
struct AnyVersion {
    #[serde(rename = "v")]
    _version: u32,
    queue: String,
}

impl ReleaseMarker {
    const VERSION: u32 = 2;

    pub(crate) fn fresh(kind: Kind) -> Self {
        Self {
            v: Self::VERSION,
            queue: kind.title().to_owned(),
            store: None,
            parent: None,
            released: None,
        }
    }

    /// Built once per kind, because every create of an entry contains these bytes.
    pub(crate) fn fresh_bytes(kind: Kind) -> &'static Bytes {
        static FRESH: [OnceLock<Bytes>; Kind::COUNT] = [const { OnceLock::new() }; Kind::COUNT];
        FRESH[kind as usize].get_or_init(|| Self::fresh(kind).to_bytes())
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self)
            .expect("a marker is plain JSON")
            .into()
    }

    fn released_in(&self, store: &str, parent: Zxid) -> Option<i64> {
        let is_known = self.v == Self::VERSION;
        let is_here = self.store.as_deref() == Some(store) && self.parent == Some(parent.0);
        self.released.filter(|_| is_known && is_here)
    }
}

/// Identifies the marker that a contender has read, so that a write can replace exactly this marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CurrentMarker {
    /// Czxid of the parent. It cannot change while the contender's own znode exists.
    parent: Zxid,
    /// Version of the data, so that a write never overwrites newer data.
    version: i32,
}

impl CurrentMarker {
    /// Returns `None` if there is no store id, because no client would trust a marker without one.
    pub(crate) fn release(self, store: Option<&str>, kind: Kind, entry: &ZnodePath) -> Option<Op> {
        let marker = ReleaseMarker {
            store: Some(store?.to_owned()),
            parent: Some(self.parent.0),
            released: Some(number_of(entry)?),
            ..ReleaseMarker::fresh(kind)
        };
        Some(Op::SetData {
            path: entry.parent()?,
            data: marker.to_bytes(),
            version: Some(self.version),
        })
    }
}

#[derive(Debug)]
pub(crate) struct MarkerReading {
    pub(crate) current: CurrentMarker,
    pub(crate) released: Option<i64>,
}

impl MarkerReading {
    /// Returns `None` for foreign data, such as a marker of another recipe, which we neither trust nor replace. A
    /// marker of this recipe with another version, store or parent may be replaced, but its number is not valid here.
    pub(crate) fn parse(kind: Kind, store: Option<&str>, data: &[u8], stat: &Stat) -> Option<Self> {
        let store = store?;
        let any: AnyVersion = serde_json::from_slice(data).ok()?;
        if any.queue != kind.title() {
            return None;
        }
        let marker: Option<ReleaseMarker> = serde_json::from_slice(data).ok();
        Some(Self {
            current: CurrentMarker {
                parent: stat.czxid,
                version: stat.version,
            },
            released: marker.and_then(|marker| marker.released_in(store, stat.czxid)),
        })
    }
}

pub(crate) fn number_of(path: &ZnodePath) -> Option<i64> {
    sequence_of(path.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(children: &[&str], me: &str, blockers: Blockers) -> Option<Predecessors> {
        Predecessors::of(
            children.iter().map(|name| name.to_string()).collect(),
            me,
            blockers,
            sequence_of,
        )
    }

    #[test]
    fn order_is_numeric_and_strangers_do_not_count() {
        let children = [
            "x-lock-0000000010",
            "config",
            "a-lock-0000000002",
            "lock--000000003",
            "m-0000000011",
        ];
        let predecessors = of(&children, "m-0000000011", Blockers::All).unwrap();
        assert_eq!(predecessors.nearest(), Some("x-lock-0000000010"));
        assert_eq!(predecessors.ahead, 3);
        let names: Vec<_> = predecessors
            .blocking
            .iter()
            .map(|(_, name)| name.as_str())
            .collect();
        assert_eq!(
            names,
            ["lock--000000003", "a-lock-0000000002", "x-lock-0000000010"]
        );
    }

    #[test]
    fn an_entry_that_is_not_listed_has_no_place() {
        assert_eq!(of(&["a-0000000001"], "m-0000000002", Blockers::All), None);
    }

    #[test]
    fn readers_do_not_block_where_shared_entries_are_skipped() {
        let children = [
            "a__WRIT__0000000001",
            "b__READ__0000000002",
            "m__READ__0000000003",
        ];
        let predecessors = of(&children, "m__READ__0000000003", Blockers::Exclusive).unwrap();
        assert_eq!(predecessors.nearest(), Some("a__WRIT__0000000001"));
        assert_eq!(predecessors.ahead, 2);
    }

    #[test]
    fn a_mark_shortens_to_those_above_it() {
        let children = [
            "a-0000000001",
            "b-0000000002",
            "c-0000000003",
            "m-0000000004",
        ];
        let mut predecessors = of(&children, "m-0000000004", Blockers::All).unwrap();
        assert_eq!(predecessors.ahead, 3);
        predecessors.shorten(Some(1));
        assert_eq!(predecessors.nearest(), Some("b-0000000002"));
        assert_eq!(predecessors.ahead, 1);
        predecessors.shorten(None);
        assert_eq!(predecessors.nearest(), None);
        assert_eq!(predecessors.ahead, 0);
    }

    #[test]
    fn a_converted_entry_blocks_on_under_its_other_name() {
        let children = [
            "a__READ__0000000001",
            "b__WRIT__0000000002",
            "m__WRIT__0000000003",
        ];
        let mut predecessors = of(&children, "m__WRIT__0000000003", Blockers::All).unwrap();
        predecessors.shorten(None);
        assert_eq!(predecessors.nearest(), Some("b__WRIT__0000000002"));
        assert_eq!(
            predecessors.update(vec![Some("b__READ__0000000002".to_owned())], Blockers::All),
            Nearest::Known
        );
        assert_eq!(predecessors.nearest(), Some("b__READ__0000000002"));
        assert_eq!(
            predecessors.update(vec![None, None], Blockers::All),
            Nearest::Known
        );
        assert_eq!(predecessors.nearest(), None);
    }

    #[test]
    fn a_downgraded_writer_does_not_block_a_reader() {
        let children = ["b__WRIT__0000000002", "m__READ__0000000003"];
        let mut predecessors = of(&children, "m__READ__0000000003", Blockers::Exclusive).unwrap();
        predecessors.shorten(None);
        assert_eq!(
            predecessors.update(
                vec![Some("b__READ__0000000002".to_owned())],
                Blockers::Exclusive
            ),
            Nearest::Known
        );
        assert_eq!(predecessors.nearest(), None);
    }

    #[test]
    fn a_writer_that_has_gone_unwatched_may_stand_there_under_any_name() {
        let children = [
            "a__WRIT__0000000001",
            "b__WRIT__0000000002",
            "m__WRIT__0000000003",
        ];
        let mut predecessors = of(&children, "m__WRIT__0000000003", Blockers::All).unwrap();
        predecessors.shorten(None);
        let nearest = predecessors.update(vec![None, None], Blockers::All);
        assert_eq!(nearest, Nearest::Unknown);
    }

    #[test]
    fn the_same_behind_others_that_were_asked_about_before() {
        let children = [
            "a__WRIT__0000000001",
            "b__READ__0000000002",
            "c__READ__0000000003",
            "m__WRIT__0000000004",
        ];
        let mut predecessors = of(&children, "m__WRIT__0000000004", Blockers::All).unwrap();
        predecessors.shorten(None);
        let nearest = predecessors.update(vec![None, None], Blockers::All);
        assert_eq!(nearest, Nearest::Further);
        let nearest = predecessors.update(vec![None], Blockers::All);
        assert_eq!(nearest, Nearest::Unknown);
    }

    #[test]
    fn when_all_who_were_asked_about_have_gone_the_next_are_to_be_asked_about() {
        let children: Vec<_> = (0..20).map(|n| format!("a-{n:010}")).collect();
        let me = "a-0000000019";
        let mut predecessors = Predecessors::of(children, me, Blockers::All, sequence_of).unwrap();
        predecessors.shorten(None);
        assert_eq!(predecessors.nearest_few(8).count(), 8);
        assert_ne!(
            predecessors.update(vec![None; 8], Blockers::All),
            Nearest::Known
        );
        assert_eq!(
            (predecessors.len(), predecessors.nearest()),
            (10, Some("a-0000000009"))
        );
        assert_eq!(predecessors.nearest_few(32).count(), 10);
        assert_eq!(
            predecessors.update(vec![None; 10], Blockers::All),
            Nearest::Known
        );
    }

    const STORE: &str = "one";

    fn read(data: &[u8]) -> Option<Option<i64>> {
        let stat = Stat {
            czxid: Zxid(5),
            ..Stat::default()
        };
        let reading = MarkerReading::parse(Kind::Mutex, Some(STORE), data, &stat);
        reading.map(|reading| reading.released)
    }

    #[test]
    fn a_mark_counts_only_where_it_was_written() {
        assert_eq!(
            read(&ReleaseMarker::fresh(Kind::Mutex).to_bytes()),
            Some(None)
        );
        let marker = br#"{"v":2,"queue":"mutex","store":"one","parent":5,"released":7}"#;
        assert_eq!(read(marker), Some(Some(7)));
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
    fn a_release_moves_the_mark_to_its_entry_over_the_data_that_were_read() {
        let kind = Kind::Mutex;
        let stat = Stat {
            czxid: Zxid(5),
            version: 3,
            ..Stat::default()
        };
        let fresh = ReleaseMarker::fresh_bytes(kind);
        let reading = MarkerReading::parse(kind, Some(STORE), fresh, &stat).unwrap();
        assert_eq!(reading.released, None);
        let entry = "/queue/x-lock-0000000007".parse().unwrap();
        let op = reading.current.release(Some(STORE), kind, &entry).unwrap();
        let Op::SetData {
            path,
            data,
            version,
        } = op
        else {
            panic!("{op:?}")
        };
        assert_eq!((path.as_str(), version), ("/queue", Some(3)));
        assert_eq!(read(&data), Some(Some(7)));
        assert!(reading.current.release(None, kind, &entry).is_none());
    }

    #[test]
    fn each_kind_has_a_fresh_mark_of_its_own() {
        for kind in [Kind::Mutex, Kind::Read, Kind::Write, Kind::Candidate] {
            let fresh = ReleaseMarker::fresh(kind);
            assert_eq!(*ReleaseMarker::fresh_bytes(kind), fresh.to_bytes());
            assert_eq!(fresh.queue, kind.title());
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
        assert!(MarkerReading::parse(Kind::Mutex, None, &data, &Stat::default()).is_none());
    }

    fn held(names: &[&str]) -> usize {
        count_holders(names.iter().copied())
    }

    #[test]
    fn the_names_tell_who_holds() {
        assert_eq!(held(&[]), 0);
        assert_eq!(held(&["a-lock-0", "b-lock-1"]), 1);
        assert_eq!(held(&["a-latch-0", "b-latch-1"]), 1);
        assert_eq!(held(&["a-__WRIT__0", "b-__READ__1"]), 1);
        assert_eq!(held(&["a-__READ__0", "b-__READ__1", "c-__WRIT__2"]), 2);
        let behind = ["a-__READ__0", "b-__WRIT__1", "c-__READ__2"];
        assert_eq!(held(&behind), 1, "who is behind a writer waits");
        assert_eq!(held(&["a-lease-4", "b-lease-7", "c-lease-9"]), 3);
        assert_eq!(held(&["a__rlock__0", "b__rlock__1", "c__lock__2"]), 2);
        assert_eq!(held(&["lock-0", "lock-1"]), 1);
    }
}
