//! [`Snapshot`]: those ahead of an entry, as a list of all children showed them.

use lockkeeper_store::{SHARED_MARK, Skip, sequence_of};

/// Those ahead of an entry that block it, in order of their numbers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    blocking: Vec<(i64, String)>,
    /// How many contenders are ahead in all, blocking or not.
    pub(crate) ahead: usize,
}

impl Snapshot {
    /// Those ahead of the child `me`; `None` when it is not among the children.
    pub(crate) fn of(children: Vec<String>, me: &str, skip: Skip) -> Option<Self> {
        let mine = sequence_of(me)?;
        let mut found = false;
        let mut ahead = 0;
        let mut blocking = Vec::new();
        for child in children {
            found |= child == me;
            let Some(sequence) = sequence_of(&child) else {
                continue;
            };
            if (sequence, child.as_str()) < (mine, me) {
                ahead += 1;
                if skip == Skip::None || !child.contains(SHARED_MARK) {
                    blocking.push((sequence, child));
                }
            }
        }
        blocking.sort_unstable();
        found.then_some(Self { blocking, ahead })
    }

    /// The one to watch.
    pub(crate) fn nearest(&self) -> Option<&str> {
        self.blocking.last().map(|(_, name)| name.as_str())
    }

    /// Drops the one that was watched, and all that have been released according to the mark.
    pub(crate) fn shorten(&mut self, released: Option<i64>) {
        self.blocking.pop();
        if let Some(released) = released {
            self.blocking.retain(|(sequence, _)| *sequence > released);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(children: &[&str], me: &str, skip: Skip) -> Option<Snapshot> {
        Snapshot::of(
            children.iter().map(|name| name.to_string()).collect(),
            me,
            skip,
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
        let snapshot = of(&children, "m-0000000011", Skip::None).unwrap();
        assert_eq!(snapshot.nearest(), Some("x-lock-0000000010"));
        assert_eq!(snapshot.ahead, 3);
        let names: Vec<_> = snapshot
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
        assert_eq!(of(&["a-0000000001"], "m-0000000002", Skip::None), None);
    }

    #[test]
    fn readers_do_not_block_where_shared_entries_are_skipped() {
        let children = [
            "a__WRIT__0000000001",
            "b__READ__0000000002",
            "m__READ__0000000003",
        ];
        let snapshot = of(&children, "m__READ__0000000003", Skip::Shared).unwrap();
        assert_eq!(snapshot.nearest(), Some("a__WRIT__0000000001"));
        assert_eq!(snapshot.ahead, 2);
    }

    #[test]
    fn a_mark_shortens_to_those_above_it() {
        let children = [
            "a-0000000001",
            "b-0000000002",
            "c-0000000003",
            "m-0000000004",
        ];
        let mut snapshot = of(&children, "m-0000000004", Skip::None).unwrap();
        snapshot.shorten(Some(1));
        assert_eq!(snapshot.nearest(), Some("b-0000000002"));
        snapshot.shorten(None);
        assert_eq!(snapshot.nearest(), None);
    }
}
