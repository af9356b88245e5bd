//! A writer's operations and their results, shared by the process that executes them and the one that checks them. An
//! operation depends only on the run's seed, the life, the writer's number and its own number.

use std::collections::{BTreeMap, VecDeque};

use lockkeeper_store::{Acl, Create, CreateMode, Op, Request, ZnodePath};
use testkit::Random;

use crate::common::path;

/// Writers, each with its own session and subtree.
pub(crate) const WRITERS: usize = 6;

/// Operations that a writer may have in flight.
pub(crate) const WINDOW: usize = 4;

const NAMES: u64 = 8;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Create(u64, String),
    Set(u64, String),
    Delete(u64),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Work {
    One(Change),
    /// All of them or none.
    All(Vec<Change>),
    /// Joins the writer's persistent queue with this data.
    Push(String),
    Pop,
    /// An ephemeral entry joins the queue and leaves it.
    Blip,
}

impl Work {
    pub(crate) fn of(seed: u64, life: u64, writer: usize, number: u64) -> Self {
        let mut dice = Random(seed ^ (life << 40) ^ ((writer as u64) << 32) ^ number);
        let mut text = format!("{life}.{writer}.{number}.");
        let size = match dice.below(40) {
            0 => dice.below(8_000),
            _ => dice.below(400),
        };
        text.extend((0..size).map(|_| char::from(b'a' + dice.below(26) as u8)));
        match dice.below(20) {
            0..12 => Self::One(Change::of(&mut dice, text)),
            12..15 => {
                let count = 2 + dice.below(3);
                Self::All(
                    (0..count)
                        .map(|part| Change::of(&mut dice, format!("{part}.{text}")))
                        .collect(),
                )
            }
            15..17 => Self::Push(text),
            17 => Self::Pop,
            _ => Self::Blip,
        }
    }

    /// Returns the request, or `None` if the operation takes several.
    pub(crate) fn request(&self, writer: usize) -> Option<Request> {
        Some(match self {
            Self::One(Change::Create(name, data)) => {
                Request::Create(create(writer, *name, data.clone()))
            }
            Self::One(Change::Set(name, data)) => Request::SetData {
                path: node(writer, *name),
                data: data.clone().into(),
                version: None,
            },
            Self::One(Change::Delete(name)) => Request::Delete {
                path: node(writer, *name),
                version: None,
            },
            Self::All(changes) => {
                Request::Multi(changes.iter().map(|change| change.op(writer)).collect())
            }
            Self::Push(data) => Request::Create(Create {
                path: queue(writer).join("s-").expect("a valid name"),
                data: data.clone().into(),
                mode: CreateMode::PersistentSequential,
                acl: Acl::open(),
            }),
            Self::Pop | Self::Blip => return None,
        })
    }
}

impl Change {
    fn of(dice: &mut Random, data: String) -> Self {
        let name = dice.below(NAMES);
        match dice.below(4) {
            0 => Self::Delete(name),
            1 => Self::Create(name, data),
            _ => Self::Set(name, data),
        }
    }

    fn op(&self, writer: usize) -> Op {
        match self {
            Self::Create(name, data) => Op::Create(create(writer, *name, data.clone())),
            Self::Set(name, data) => Op::SetData {
                path: node(writer, *name),
                data: data.clone().into(),
                version: None,
            },
            Self::Delete(name) => Op::Delete {
                path: node(writer, *name),
                version: None,
            },
        }
    }
}

fn create(writer: usize, name: u64, data: String) -> Create {
    Create {
        path: node(writer, name),
        data: data.into(),
        mode: CreateMode::Persistent,
        acl: Acl::open(),
    }
}

pub(crate) fn home(writer: usize) -> ZnodePath {
    path(&format!("/w{writer}"))
}

fn node(writer: usize, name: u64) -> ZnodePath {
    path(&format!("/w{writer}/n{name}"))
}

pub(crate) fn queue(writer: usize) -> ZnodePath {
    path(&format!("/w{writer}/q"))
}

/// The modelled part of a znode.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) data: String,
    pub(crate) version: i32,
    /// Of the last change, if it was acknowledged.
    pub(crate) mzxid: Option<i64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) nodes: BTreeMap<u64, Node>,
    pub(crate) queue: VecDeque<Node>,
}

impl Model {
    /// Applies an operation that was acknowledged with this zxid. Returns true if the store would accept it.
    pub(crate) fn apply(&mut self, work: &Work, zxid: Option<i64>) -> bool {
        match work {
            Work::One(change) => self.change(change, zxid),
            Work::All(changes) => {
                let before = self.nodes.clone();
                let done = changes.iter().all(|change| self.change(change, zxid));
                if !done {
                    self.nodes = before;
                }
                done
            }
            Work::Push(data) => {
                self.queue.push_back(Node::new(data, zxid));
                true
            }
            Work::Pop => self.queue.pop_front().is_some(),
            Work::Blip => true,
        }
    }

    fn change(&mut self, change: &Change, zxid: Option<i64>) -> bool {
        match change {
            Change::Create(name, data) => {
                let is_new = !self.nodes.contains_key(name);
                if is_new {
                    self.nodes.insert(*name, Node::new(data, zxid));
                }
                is_new
            }
            Change::Set(name, data) => {
                let Some(node) = self.nodes.get_mut(name) else {
                    return false;
                };
                node.data = data.clone();
                node.version += 1;
                node.mzxid = zxid;
                true
            }
            Change::Delete(name) => self.nodes.remove(name).is_some(),
        }
    }

    /// Returns true if the znodes found agree with everything that the model knows.
    pub(crate) fn is(&self, found: &Self) -> bool {
        let same = |one: &Node, other: &Node| {
            one.data == other.data
                && one.version == other.version
                && (one.mzxid.is_none() || one.mzxid == other.mzxid)
        };
        self.nodes.keys().eq(found.nodes.keys())
            && self
                .nodes
                .values()
                .zip(found.nodes.values())
                .all(|(a, b)| same(a, b))
            && self.queue.len() == found.queue.len()
            && self.queue.iter().zip(&found.queue).all(|(a, b)| same(a, b))
    }
}

impl Node {
    fn new(data: &str, mzxid: Option<i64>) -> Self {
        Self {
            data: data.to_owned(),
            version: 0,
            mzxid,
        }
    }
}
