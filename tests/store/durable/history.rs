//! Everything acknowledged over all lives, and the checks of the znodes after each.

use std::collections::{BTreeMap, VecDeque};

use lockkeeper_store::{Durability, sequence_of};

use super::child::LOCKS;
use super::program::{Model, Node, WINDOW, WRITERS, Work};
use super::report::{Found, Said};

#[derive(Clone, Copy, PartialEq)]
enum Answer {
    Done(Option<i64>),
    Failed,
    Refused,
}

#[derive(Default)]
struct Writer {
    /// Its subtree at the start of this life.
    start: Model,
    /// The answers of this life, in order.
    answers: Vec<Answer>,
    /// Highest number of a persistent child in its queue.
    sequence: i64,
}

pub(crate) struct History {
    seed: u64,
    durability: Durability,
    life: u64,
    store: Option<String>,
    writers: Vec<Writer>,
    /// Per lock, the last granted token and the last one acknowledged by the protected resource.
    tokens: [(i64, i64); LOCKS],
    /// Highest zxid before this life and within it.
    zxids: (i64, i64),
    found: Vec<Found>,
    pub(crate) acknowledged: u64,
    /// Operations refused for lack of space.
    pub(crate) refused: u64,
    pub(crate) lost: u64,
}

impl History {
    pub(crate) fn new(seed: u64, durability: Durability) -> Self {
        let new = || Writer {
            sequence: -1,
            ..Writer::default()
        };
        Self {
            seed,
            durability,
            life: 0,
            store: None,
            writers: (0..WRITERS).map(|_| new()).collect(),
            tokens: [(0, 0); LOCKS],
            zxids: (0, 0),
            found: Vec::new(),
            acknowledged: 0,
            refused: 0,
            lost: 0,
        }
    }

    /// Starts a life. A process that is killed before it is ready has changed nothing, so the last ready life is still
    /// to be checked.
    pub(crate) fn next_life(&mut self) {
        self.found.clear();
        self.zxids.0 = self.zxids.1;
    }

    /// Handles a line printed by this life's process.
    pub(crate) fn hear(&mut self, said: Said, life: u64) {
        match said {
            Said::Store(id) => {
                let first = self.store.get_or_insert_with(|| id.clone());
                assert_eq!(*first, id, "the store is another one");
            }
            Said::Found(found) => self.found.push(found),
            Said::Ready => {
                self.judge();
                self.life = life;
            }
            Said::Done {
                writer,
                number,
                zxid,
                sequence,
            } => {
                if let Some(zxid) = zxid {
                    self.see(zxid);
                }
                let known = &mut self.writers[writer].sequence;
                if let Some(sequence) = sequence {
                    assert!(sequence > *known, "number {sequence} after {known}");
                    *known = sequence;
                }
                self.answer(writer, number, Answer::Done(zxid));
            }
            Said::Failed(writer, number) => self.answer(writer, number, Answer::Failed),
            Said::Refused(writer, number) => self.answer(writer, number, Answer::Refused),
            Said::Token(lock, token) => {
                self.see(token);
                let last = &mut self.tokens[lock].0;
                assert!(token > *last, "token {token} after {last}");
                *last = token;
            }
            Said::Shown(lock, token) => self.tokens[lock].1 = token,
        }
    }

    fn see(&mut self, zxid: i64) {
        let (before, highest) = &mut self.zxids;
        assert!(
            zxid > *before,
            "zxid {zxid:#x} after {before:#x} in a life before"
        );
        *highest = zxid.max(*highest);
    }

    fn answer(&mut self, writer: usize, number: u64, answer: Answer) {
        let answers = &mut self.writers[writer].answers;
        assert_eq!(number, answers.len() as u64, "answers come in order");
        answers.push(answer);
        match answer {
            Answer::Refused => self.refused += 1,
            _ => self.acknowledged += 1,
        }
    }

    /// Checks the znodes that the last life left, and continues from them.
    pub(crate) fn judge(&mut self) {
        let found = std::mem::take(&mut self.found);
        for node in &found {
            assert_eq!(node.owner, 0, "an ephemeral znode has survived: {node:?}");
            assert!(!node.path.starts_with("/lock/") || node.path.len() == "/lock/0".len());
            self.zxids.1 = self.zxids.1.max(node.mzxid);
        }
        // The zxids between which the log was cut, over all writers.
        let (mut kept, mut gone) = (0, i64::MAX);
        for number in 0..WRITERS {
            let (model, last_kept, first_gone) = self.judge_writer(number, &found);
            (kept, gone) = (kept.max(last_kept), gone.min(first_gone));
            let writer = &mut self.writers[number];
            writer.start = model;
            writer.answers.clear();
        }
        assert!(kept < gone, "{gone:#x} is gone, and {kept:#x} is there");
        self.judge_gates(&found);
        self.zxids.0 = self.zxids.1;
    }

    /// Finds how much of a writer's work survived. Returns its znodes, the last surviving zxid and the first lost one.
    fn judge_writer(&mut self, number: usize, found: &[Found]) -> (Model, i64, i64) {
        let may_be_lost = self.durability == Durability::None;
        // A writer that does not wait for the disk can outrun it.
        let may = (may_be_lost, may_be_lost || self.refused > 0);
        let writer = &mut self.writers[number];
        let (model, sequence) = model_of(number, found);
        if may_be_lost {
            // A lost entry's number may be reused.
            writer.sequence = -1;
        }
        writer.sequence = writer.sequence.max(sequence);
        let matches = matches(self.seed, self.life, number, writer, &model, may);
        let (Some(&least), Some(&most)) = (matches.first(), matches.last()) else {
            panic!(
                "life {}, writer {number}: {} operations were acknowledged, and this is there: {model:?}",
                self.life,
                writer.answers.len()
            );
        };
        let zxid = |answer: &Answer| match answer {
            Answer::Done(zxid) => *zxid,
            _ => None,
        };
        let answered = writer.answers.len();
        let kept = writer.answers[..least.min(answered)]
            .iter()
            .filter_map(zxid);
        let gone = writer.answers[most.min(answered)..].iter();
        self.lost += gone.len() as u64;
        let gone = gone.clone().filter_map(zxid).min().unwrap_or(i64::MAX);
        (model, kept.max().unwrap_or(0), gone)
    }

    /// Fails unless each resource has seen the last acknowledged token or a later one.
    fn judge_gates(&mut self, found: &[Found]) {
        for (lock, (_, shown)) in self.tokens.iter_mut().enumerate() {
            let at = format!("/gate/{lock}");
            let gate = found.iter().find(|node| node.path == at);
            let seen = gate.and_then(|gate| token_in(&gate.data)).unwrap_or(0);
            if self.durability == Durability::None {
                *shown = seen;
            }
            assert!(
                seen >= *shown,
                "the gate of lock {lock}: {seen:#x} after {shown:#x}"
            );
        }
    }
}

fn token_in(data: &str) -> Option<i64> {
    i64::from_str_radix(data.strip_prefix("0x")?, 16).ok()
}

/// Returns after how many operations a writer's subtree would look like this.
fn matches(
    seed: u64,
    life: u64,
    number: usize,
    writer: &Writer,
    found: &Model,
    (may_be_lost, may_be_refused): (bool, bool),
) -> Vec<usize> {
    let answered = writer.answers.len();
    let least = if may_be_lost { 0 } else { answered };
    let work = |done: usize| Work::of(seed, life, number, done as u64);
    let mut model = writer.start.clone();
    let mut matches = Vec::new();
    for (done, answer) in writer.answers.iter().enumerate() {
        if done >= least && model.is(found) {
            matches.push(done);
        }
        let work = work(done);
        match answer {
            Answer::Refused => {}
            Answer::Failed => assert!(!model.apply(&work, None), "it can be: {work:?}"),
            Answer::Done(zxid) => {
                let is_done = model.apply(&work, *zxid);
                assert!(is_done, "it was acknowledged, and cannot be: {work:?}");
            }
        }
    }
    // Operations in flight may have been applied, in order, unless they were refused.
    let mut ends = vec![model];
    for done in answered..=answered + WINDOW {
        if ends.iter().any(|model| model.is(found)) {
            matches.push(done);
        }
        let before = ends.clone();
        for model in &mut ends {
            model.apply(&work(done), None);
        }
        if may_be_refused {
            ends.extend(before);
        }
    }
    matches
}

/// Returns a writer's subtree as found, and the highest number in its queue.
fn model_of(number: usize, found: &[Found]) -> (Model, i64) {
    let mut nodes = BTreeMap::new();
    let mut queue = BTreeMap::new();
    let (home, line) = (format!("/w{number}/n"), format!("/w{number}/q/s-"));
    for node in found {
        let known = Node {
            data: node.data.clone(),
            version: node.version,
            mzxid: Some(node.mzxid),
        };
        if let Some(name) = node.path.strip_prefix(&home) {
            nodes.insert(name.parse().expect("a writer's name"), known);
        } else if node.path.starts_with(&line) {
            let sequence = sequence_of(&node.path).expect("a number");
            queue.insert(sequence, known);
        }
    }
    let last = queue.keys().next_back().copied().unwrap_or(-1);
    let queue: VecDeque<_> = queue.into_values().collect();
    (Model { nodes, queue }, last)
}
