//! [`Snapshot`]: those ahead of an entry, as a list of all children showed them.

use lockkeeper_store::{SHARED_MARK, Skip, sequence_of};

use crate::names::{converted, is_writer};

/// Those ahead of an entry that block it, in order of their numbers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    blocking: Vec<(i64, String)>,
    /// The number of the one that was watched last.
    watched: Option<i64>,
    /// How many contenders are ahead in all, blocking or not.
    pub(crate) ahead: usize,
}

impl Snapshot {
    /// Those ahead of the child `me`; `None` when it is not among the children. `number` tells the number of a
    /// contender from its name.
    pub(crate) fn of(
        children: Vec<String>,
        me: &str,
        skip: Skip,
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
            if (sequence, child.as_str()) < (mine, me) {
                ahead += 1;
                if blocks(&child, skip) {
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

    /// The one to watch.
    pub(crate) fn nearest(&self) -> Option<&str> {
        self.blocking.last().map(|(_, name)| name.as_str())
    }

    /// Drops the nearest, which has turned out to be no contender.
    pub(crate) fn discard_nearest(&mut self) {
        self.blocking.pop();
        self.ahead = self.ahead.saturating_sub(1);
    }

    /// Drops the one that was watched, since it has gone, and all that have been released according
    /// to the mark.
    pub(crate) fn shorten(&mut self, released: Option<i64>) {
        self.watched = self.blocking.last().map(|(sequence, _)| *sequence);
        // What can be converted may stand there under another name, and is asked about.
        let watched = self.nearest().map(converted);
        if watched == Some(None) {
            self.blocking.pop();
        }
        if let Some(released) = released {
            self.blocking.retain(|(sequence, _)| *sequence > released);
        }
        self.count();
    }

    /// The nearest ones, nearest first: those to ask about when the nearest of all has gone.
    pub(crate) fn nearest_few(&self, few: usize) -> impl Iterator<Item = &str> {
        let names = self.blocking.iter().rev().map(|(_, name)| name.as_str());
        names.take(few)
    }

    /// How many may block, as far as is known.
    pub(crate) fn len(&self) -> usize {
        self.blocking.len()
    }

    /// Takes in under which name each of the nearest few stands there now.
    pub(crate) fn update(&mut self, standing: Vec<Option<String>>, skip: Skip) -> Nearest {
        for now in standing {
            let Some((sequence, name)) = self.blocking.pop() else {
                break;
            };
            if now.is_none() && is_writer(&name) && self.watched != Some(sequence) {
                return Nearest::Unknown;
            }
            if let Some(name) = now.filter(|name| blocks(name, skip)) {
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

/// Whether it is known who is nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nearest {
    /// The snapshot tells, or that nobody is ahead.
    Known,
    /// All that were asked about have gone: more must be asked about, or a new list tell.
    Further,
    /// A new list must tell: a writer that was not watched has gone. If it was another library's, it
    /// may stand there as a reader under any name.
    Unknown,
}

/// Whether a contender ahead blocks one that skips these.
pub(crate) fn blocks(name: &str, skip: Skip) -> bool {
    skip == Skip::None || !name.contains(SHARED_MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(children: &[&str], me: &str, skip: Skip) -> Option<Snapshot> {
        Snapshot::of(
            children.iter().map(|name| name.to_string()).collect(),
            me,
            skip,
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

    #[test]
    fn a_converted_entry_blocks_on_under_its_other_name() {
        let children = [
            "a__READ__0000000001",
            "b__WRIT__0000000002",
            "m__WRIT__0000000003",
        ];
        let mut snapshot = of(&children, "m__WRIT__0000000003", Skip::None).unwrap();
        snapshot.shorten(None);
        assert_eq!(snapshot.nearest(), Some("b__WRIT__0000000002"));
        assert_eq!(
            snapshot.update(vec![Some("b__READ__0000000002".to_owned())], Skip::None),
            Nearest::Known
        );
        assert_eq!(snapshot.nearest(), Some("b__READ__0000000002"));
        assert_eq!(
            snapshot.update(vec![None, None], Skip::None),
            Nearest::Known
        );
        assert_eq!(snapshot.nearest(), None);
    }

    #[test]
    fn a_downgraded_writer_does_not_block_a_reader() {
        let children = ["b__WRIT__0000000002", "m__READ__0000000003"];
        let mut snapshot = of(&children, "m__READ__0000000003", Skip::Shared).unwrap();
        snapshot.shorten(None);
        assert_eq!(
            snapshot.update(vec![Some("b__READ__0000000002".to_owned())], Skip::Shared),
            Nearest::Known
        );
        assert_eq!(snapshot.nearest(), None);
    }

    #[test]
    fn a_writer_that_has_gone_unwatched_may_stand_there_under_any_name() {
        let children = [
            "a__WRIT__0000000001",
            "b__WRIT__0000000002",
            "m__WRIT__0000000003",
        ];
        let mut snapshot = of(&children, "m__WRIT__0000000003", Skip::None).unwrap();
        snapshot.shorten(None);
        let nearest = snapshot.update(vec![None, None], Skip::None);
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
        let mut snapshot = of(&children, "m__WRIT__0000000004", Skip::None).unwrap();
        snapshot.shorten(None);
        let nearest = snapshot.update(vec![None, None], Skip::None);
        assert_eq!(nearest, Nearest::Further);
        let nearest = snapshot.update(vec![None], Skip::None);
        assert_eq!(nearest, Nearest::Unknown);
    }

    #[test]
    fn when_all_who_were_asked_about_have_gone_the_next_are_to_be_asked_about() {
        let children: Vec<_> = (0..20).map(|n| format!("a-{n:010}")).collect();
        let me = "a-0000000019";
        let mut snapshot = Snapshot::of(children, me, Skip::None, sequence_of).unwrap();
        snapshot.shorten(None);
        assert_eq!(snapshot.nearest_few(8).count(), 8);
        assert_ne!(snapshot.update(vec![None; 8], Skip::None), Nearest::Known);
        assert_eq!(
            (snapshot.len(), snapshot.nearest()),
            (10, Some("a-0000000009"))
        );
        assert_eq!(snapshot.nearest_few(32).count(), 10);
        assert_eq!(snapshot.update(vec![None; 10], Skip::None), Nearest::Known);
    }
}
