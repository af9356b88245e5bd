//! Comparison of the znodes at the end with the writes that were acknowledged.

use std::collections::BTreeMap;

use super::line::{Answer, Line, Name, Said, Work};

/// A znode as it was found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Znode {
    pub(crate) czxid: i64,
    pub(crate) mzxid: i64,
    pub(crate) version: i32,
    pub(crate) data: String,
}

/// Znodes of a writer's folder, by name; without content where the name alone is checked.
pub(crate) type Folder = BTreeMap<String, Option<Znode>>;

/// One writer's answers, in order.
#[derive(Default)]
pub(crate) struct Writer(Vec<Answer>);

/// Knowledge of one write.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    Done(Option<i64>),
    Unknown,
    Refused,
    /// It was never asked for.
    Never,
}

/// The answers of all writers. Fails when they contradict each other.
pub(crate) fn writers(lines: &[Line]) -> BTreeMap<(Name, usize), Writer> {
    let mut writers = BTreeMap::<_, Writer>::new();
    for line in lines {
        if let Line::Client(
            name,
            Said::Wrote {
                writer,
                number,
                answer,
            },
        ) = line
        {
            let answers = &mut writers.entry((name.clone(), *writer)).or_default().0;
            assert_eq!(*number, answers.len() as u64, "not in order: {line:?}");
            answers.push(*answer);
        }
    }
    for (name, writer) in &writers {
        writer.check_versions(name);
        writer.check_refusals(name);
    }
    writers
}

impl Writer {
    fn known(&self, number: u64) -> Known {
        match self.0.get(number as usize) {
            Some(Answer::Done { zxid, .. }) => Known::Done(*zxid),
            Some(Answer::Unknown) => Known::Unknown,
            Some(Answer::Refused) => Known::Refused,
            // One that was killed may have been waiting for this answer.
            None if number == self.0.len() as u64 => Known::Unknown,
            None => Known::Never,
        }
    }

    /// The numbers of all writes that may have been, of one kind.
    fn numbers(&self, of: impl Fn(Work) -> bool) -> impl DoubleEndedIterator<Item = u64> {
        (0..=self.0.len() as u64).filter(move |number| of(Work::of(*number)))
    }

    /// Each set that was acknowledged is one version further; those of unknown outcome are or are not.
    fn check_versions(&self, name: &(Name, usize)) {
        for of in [Work::Count, Work::Both] {
            let (mut least, mut most) = (0, 0);
            for (number, answer) in self.0.iter().enumerate() {
                if Work::of(number as u64) != of {
                    continue;
                }
                most += 1;
                if let Answer::Done { version, .. } = answer {
                    let version = version.expect("a set tells its version");
                    assert!(
                        (least + 1..=most).contains(&version),
                        "write {number} of {name:?} has version {version}, not {} to {most}",
                        least + 1
                    );
                    (least, most) = (version, version);
                }
            }
        }
    }

    /// Checks that only znodes that were to be deleted are missing, and only if their creation had an unknown
    /// outcome.
    fn check_refusals(&self, name: &(Name, usize)) {
        for (number, answer) in self.0.iter().enumerate() {
            if *answer == Answer::Refused {
                let is_fine = match Work::of(number as u64) {
                    Work::Delete(made) => self.known(made) == Known::Unknown,
                    _ => false,
                };
                assert!(
                    is_fine,
                    "write {number} of {name:?} lacks what was made before"
                );
            }
        }
    }

    /// Fails unless this is the result of all those writes.
    pub(crate) fn judge(&self, name: &(Name, usize), found: &Folder) {
        if self.0.is_empty() {
            return;
        }
        self.judge_makes(name, found);
        self.judge_pair(name, found);
        self.judge_counter(name, found);
        for found in found.keys() {
            let (kind, number) = found.split_once('-').unwrap_or((found, ""));
            let was_asked_for = match (kind, number.parse()) {
                ("counter" | "pair", Err(_)) => true,
                ("n", Ok(number)) => self.may_be(number, Work::Make),
                ("m", Ok(number)) => self.may_be(number, Work::Both),
                _ => false,
            };
            assert!(was_asked_for, "{name:?} has never asked for {found}");
        }
    }

    fn may_be(&self, number: u64, work: Work) -> bool {
        let known = self.known(number);
        Work::of(number) == work && matches!(known, Known::Done(_) | Known::Unknown)
    }

    fn judge_makes(&self, name: &(Name, usize), found: &Folder) {
        let deletes: BTreeMap<_, _> = (0..=self.0.len() as u64)
            .filter_map(|number| match Work::of(number) {
                Work::Delete(made) => Some((made, self.known(number))),
                _ => None,
            })
            .collect();
        for number in self.numbers(|work| work == Work::Make) {
            let (made, deleted) = (self.known(number), deletes.get(&number));
            let znode = found.get(&format!("n-{number}"));
            match (made, deleted) {
                (_, Some(Known::Done(_) | Known::Refused)) => {
                    assert!(znode.is_none(), "{name:?} has deleted n-{number}");
                }
                (Known::Done(zxid), None) => {
                    let znode = znode.unwrap_or_else(|| panic!("n-{number} of {name:?} is lost"));
                    let znode = znode.as_ref().expect("it was read");
                    assert_eq!(Some(znode.czxid), zxid, "n-{number} of {name:?}");
                    assert_eq!(znode.data, number.to_string(), "n-{number} of {name:?}");
                }
                _ => {}
            }
        }
    }

    /// Fails unless the two parts of each multi agree, acknowledged or not.
    fn judge_pair(&self, name: &(Name, usize), found: &Folder) {
        let is_there = |number: &u64| found.contains_key(&format!("m-{number}"));
        for number in self.numbers(|work| work == Work::Both) {
            if let Known::Done(_) = self.known(number) {
                assert!(is_there(&number), "m-{number} of {name:?} is lost");
            }
        }
        let there: Vec<_> = self
            .numbers(|work| work == Work::Both)
            .filter(is_there)
            .collect();
        let pair = content(name, found, "pair");
        let last = there.last().map_or("-1".to_owned(), u64::to_string);
        assert_eq!(pair.data, last, "the pair of {name:?} is half done");
        assert_eq!(pair.version as usize, there.len(), "the pair of {name:?}");
    }

    fn judge_counter(&self, name: &(Name, usize), found: &Folder) {
        let counter = content(name, found, "counter");
        let sets: Vec<_> = self.numbers(|work| work == Work::Count).collect();
        let is_done = |number: &&u64| matches!(self.known(**number), Known::Done(_));
        let done = sets.iter().filter(is_done).count();
        let versions = done..=sets.len();
        assert!(
            versions.contains(&(counter.version as usize)),
            "the counter of {name:?} is at {}, not {versions:?}",
            counter.version
        );
        let Some(last) = sets.iter().rfind(is_done) else {
            return;
        };
        let number: u64 = counter.data.parse().expect("a writer's number");
        assert!(
            number >= *last && self.may_be(number, Work::Count),
            "the counter of {name:?} shows {number}, and {last} was acknowledged"
        );
        if let Known::Done(zxid) = self.known(number) {
            assert_eq!(Some(counter.mzxid), zxid, "the counter of {name:?}");
        }
    }
}

fn content<'a>(name: &(Name, usize), found: &'a Folder, znode: &str) -> &'a Znode {
    match found.get(znode) {
        Some(Some(content)) => content,
        other => panic!("{znode} of {name:?} is lost: {other:?}"),
    }
}
