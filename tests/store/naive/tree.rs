//! The znode tree, its transactions and the order of its queues.

use std::collections::BTreeMap;

use bytes::Bytes;
use lockkeeper_store::{
    Blockers, Condition, Create, CreateMode, DeleteReason, Error, EventKind, Op, OpReply, ReadOp,
    ReadReply, Result, SHARED_MARKER, SessionId, Stat, ZnodePath, Zxid,
};

#[derive(Clone)]
pub(super) struct Node {
    pub(super) data: Bytes,
    pub(super) mode: CreateMode,
    pub(super) owner: SessionId,
    pub(super) czxid: i64,
    pub(super) mzxid: i64,
    pub(super) pzxid: i64,
    pub(super) ctime: i64,
    pub(super) mtime: i64,
    pub(super) version: i32,
    pub(super) children_ever: i64,
    /// `children_ever` and `pzxid` after a restart. Ephemeral znodes never reach the disk, and only a create records
    /// the number there.
    pub(super) kept: (i64, i64),
    /// Number of znodes created before it.
    pub(super) age: usize,
}

/// The tree and the last zxid. A failed transaction is discarded as a whole.
#[derive(Clone)]
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) zxid: i64,
    pub(super) now_ms: u64,
    /// The clock's date minus its moment.
    pub(super) epoch_ms: i64,
    pub(super) made: usize,
    pub(super) changes: Vec<Change>,
}

/// A znode's change, with the reason of a delete.
pub(super) type Change = (EventKind, String, Option<DeleteReason>);

impl Node {
    pub(super) fn new(
        data: Bytes,
        mode: CreateMode,
        owner: SessionId,
        zxid: i64,
        unix_ms: i64,
    ) -> Self {
        Self {
            data,
            mode,
            owner,
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: unix_ms,
            mtime: unix_ms,
            version: 0,
            children_ever: 0,
            kept: (0, zxid),
            age: 0,
        }
    }
}

impl Tree {
    pub(super) fn begin(&mut self) {
        self.zxid += 1;
        self.changes.clear();
    }

    /// Returns the contenders among the children, by number and then by age.
    pub(super) fn queue(&self, parent: &ZnodePath) -> Vec<String> {
        let mut names = self.children(parent.as_str());
        let is_owned =
            |name: &String| self.nodes[parent.join(name).unwrap().as_str()].owner != SessionId(0);
        names.retain(|name| number(name).is_some() && is_owned(name));
        let age = |name: &String| self.nodes[parent.join(name).unwrap().as_str()].age;
        // Children created by a full name may repeat a number. The older one is first.
        names.sort_by_key(|name| (number(name), age(name)));
        names
    }

    pub(super) fn is_clear(&self, age: usize, blockers: Blockers) -> bool {
        let Some((path, _)) = self.nodes.iter().find(|(_, node)| node.age == age) else {
            return false;
        };
        let path: ZnodePath = path.parse().unwrap();
        let queue = self.queue(&path.parent().unwrap());
        let mine = queue.iter().position(|name| name == path.name()).unwrap();
        nearest(&queue[..mine], blockers).is_none()
    }

    /// Returns the reason that waiters get when a session deletes a znode.
    pub(super) fn cause(&self, path: &str, session: SessionId) -> DeleteReason {
        match self.nodes.get(path) {
            Some(node) if node.owner == session => DeleteReason::Released,
            _ => DeleteReason::Removed,
        }
    }

    pub(super) fn unix_ms(&self) -> i64 {
        self.now_ms as i64 + self.epoch_ms
    }

    pub(super) fn node(&self, path: &str) -> Result<&Node> {
        self.nodes.get(path).ok_or_else(|| Error::NoNode {
            path: path.to_owned(),
        })
    }

    pub(super) fn children(&self, path: &str) -> Vec<String> {
        let others = self.nodes.keys().filter(|other| *other != "/");
        let mine = others.filter(|other| parent(other) == path);
        mine.map(|child| child.rsplit_once('/').unwrap().1.to_owned())
            .collect()
    }

    pub(super) fn stat(&self, path: &str) -> Result<Stat> {
        let node = self.node(path)?;
        let children = self.children(path).len() as i32;
        Ok(Stat {
            czxid: Zxid(node.czxid),
            mzxid: Zxid(node.mzxid),
            pzxid: Zxid(node.pzxid),
            ctime: node.ctime,
            mtime: node.mtime,
            version: node.version,
            // Rule 6.
            cversion: 2 * node.children_ever as i32 - children,
            aversion: 0,
            ephemeral_owner: node.owner,
            data_length: node.data.len() as i32,
            num_children: children,
        })
    }

    pub(super) fn create(
        &mut self,
        session: SessionId,
        create: &Create,
    ) -> Result<(ZnodePath, Stat)> {
        let parent_path = parent(create.path.as_str());
        let Ok(above) = self.node(&parent_path).cloned() else {
            return Err(Error::NoNode { path: parent_path });
        };
        let asked = create.path.to_string();
        let path = match create.mode.is_sequential() {
            // Rule 4: numbered by all children ever created, sequential or not.
            true => format!("{}{:010}", create.path, above.children_ever),
            false => create.path.to_string(),
        };
        if self.nodes.contains_key(&path) {
            return Err(Error::NodeExists { path: asked });
        }
        // Rule 10, checked after the name, as in ZooKeeper.
        if above.mode.is_ephemeral() {
            return Err(Error::NoChildrenForEphemerals { path: asked });
        }
        let owner = if create.mode.is_ephemeral() {
            session
        } else {
            SessionId(0)
        };
        let mut node = Node::new(
            create.data.clone(),
            create.mode,
            owner,
            self.zxid,
            self.unix_ms(),
        );
        self.made += 1;
        node.age = self.made;
        self.nodes.insert(path.clone(), node);
        let above = self.nodes.get_mut(&parent_path).unwrap();
        // Rule 4: deletes never take it back. Rule 7: the parent's mzxid and mtime stay.
        above.children_ever += 1;
        above.pzxid = self.zxid;
        if !create.mode.is_ephemeral() {
            above.kept = (above.children_ever, above.pzxid);
        }
        self.changes
            .push((EventKind::NodeCreated, path.clone(), None));
        self.changes
            .push((EventKind::NodeChildrenChanged, parent_path, None));
        let stat = self.stat(&path)?;
        Ok((path.parse()?, stat))
    }

    pub(super) fn check(&self, path: &str, version: Option<i32>) -> Result<()> {
        let node = self.node(path)?;
        match version {
            // Rule 8.
            None | Some(-1) => Ok(()),
            Some(expected) if expected == node.version => Ok(()),
            Some(expected) => Err(Error::BadVersion {
                path: path.to_owned(),
                expected,
            }),
        }
    }

    pub(super) fn delete(
        &mut self,
        path: &str,
        version: Option<i32>,
        cause: DeleteReason,
    ) -> Result<()> {
        self.check(path, version)?;
        if !self.children(path).is_empty() {
            return Err(Error::NotEmpty {
                path: path.to_owned(),
            });
        }
        let gone = self.nodes.remove(path).unwrap();
        let parent_path = parent(path);
        let above = self.nodes.get_mut(&parent_path).unwrap();
        above.pzxid = self.zxid;
        // Deletes of ephemeral znodes are never logged.
        if !gone.mode.is_ephemeral() {
            above.kept.1 = above.pzxid;
        }
        self.changes
            .push((EventKind::NodeDeleted, path.to_owned(), Some(cause)));
        self.changes
            .push((EventKind::NodeChildrenChanged, parent_path, None));
        Ok(())
    }

    pub(super) fn set(
        &mut self,
        path: &ZnodePath,
        data: Bytes,
        version: Option<i32>,
    ) -> Result<Stat> {
        self.check(path.as_str(), version)?;
        let (zxid, unix_ms) = (self.zxid, self.unix_ms());
        let node = self.nodes.get_mut(path.as_str()).unwrap();
        node.data = data;
        node.version += 1;
        (node.mzxid, node.mtime) = (zxid, unix_ms);
        self.changes
            .push((EventKind::NodeDataChanged, path.to_string(), None));
        self.stat(path.as_str())
    }

    pub(super) fn op(&mut self, session: SessionId, op: &Op) -> Result<OpReply> {
        Ok(match op {
            Op::Create(create) => {
                let (path, stat) = self.create(session, create)?;
                OpReply::Created {
                    path,
                    stat: Some(stat),
                }
            }
            Op::Delete { path, version } => {
                let cause = self.cause(path.as_str(), session);
                self.delete(path.as_str(), *version, cause)?;
                OpReply::Deleted
            }
            Op::SetData {
                path,
                data,
                version,
            } => OpReply::Set(self.set(path, data.clone(), *version)?),
            Op::Check { path, version } => {
                self.check(path.as_str(), *version)?;
                OpReply::Checked
            }
            Op::Require(Condition::Data { znode, data })
                if self.node(znode.as_str())?.data != data =>
            {
                return Err(Error::BadVersion {
                    path: znode.to_string(),
                    expected: -1,
                });
            }
            Op::Require(Condition::Children { znode, limit })
                if self.children(znode.as_str()).len() > *limit as usize =>
            {
                return Err(Error::NotEmpty {
                    path: znode.to_string(),
                });
            }
            Op::Require(_) => OpReply::Checked,
        })
    }

    pub(super) fn read(&self, op: &ReadOp) -> ReadReply {
        let read = match op {
            ReadOp::GetData(path) => self.stat(path.as_str()).map(|stat| ReadReply::Data {
                data: self.nodes[path.as_str()].data.clone(),
                stat,
            }),
            ReadOp::GetChildren(path) => self
                .node(path.as_str())
                .map(|_| ReadReply::Children(self.children(path.as_str()))),
            ReadOp::GetEntry(_) => unreachable!("no program asks for the time of a grant"),
        };
        read.unwrap_or_else(ReadReply::Failed)
    }
}

pub(super) fn nearest(ahead: &[String], blockers: Blockers) -> Option<&String> {
    let blocks = |name: &&String| blockers == Blockers::All || !name.contains(SHARED_MARKER);
    ahead.iter().rev().find(blocks)
}

/// Returns the number formed by ten or more final digits.
fn number(name: &str) -> Option<i64> {
    let digits: String = name
        .chars()
        .rev()
        .take_while(char::is_ascii_digit)
        .collect();
    let digits: String = digits.chars().rev().collect();
    if digits.len() < 10 {
        None
    } else {
        digits.parse().ok()
    }
}

pub(super) fn is_below(path: &str, top: &str) -> bool {
    path == top || path.starts_with(&format!("{top}/"))
}

fn parent(path: &str) -> String {
    let (parent, _) = path.rsplit_once('/').unwrap();
    if parent.is_empty() {
        "/".to_owned()
    } else {
        parent.to_owned()
    }
}
