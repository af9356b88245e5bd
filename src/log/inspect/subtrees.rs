//! Which parts of a store are large.

use crate::core::Core;
use crate::path::ZnodePath;

/// A znode and all below it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subtree {
    /// The uppermost znode.
    pub path: ZnodePath,
    /// How many znodes there are, that one included.
    pub znodes: u64,
    /// How many bytes their data and their paths have.
    pub bytes: u64,
}

/// The `top` largest subtrees, most bytes first, and how many bytes the data of all znodes has.
///
/// The root is none of them, nor are those that every store has; nor is one that is nearly all (nine tenths of the bytes) one child's: that
/// one says more.
pub(super) fn largest(core: &Core, top: usize) -> (Vec<Subtree>, u64) {
    let mut data_bytes = 0;
    let mut found: Vec<Subtree> = Vec::new();
    // From the root to the current znode.
    let mut open: Vec<Open> = Vec::new();
    for node in core.node_images() {
        data_bytes += node.data.len() as u64;
        while open.last().is_some_and(|last| !last.tree.holds(&node.path)) {
            close(&mut open, &mut found, top);
        }
        let bytes = (node.data.len() + node.path.as_str().len()) as u64;
        open.push(Open {
            tree: Subtree {
                path: node.path,
                znodes: 1,
                bytes,
            },
            largest_child: 0,
        });
    }
    while !open.is_empty() {
        close(&mut open, &mut found, top);
    }
    shorten(&mut found, top);
    (found, data_bytes)
}

struct Open {
    tree: Subtree,
    /// In bytes.
    largest_child: u64,
}

impl Subtree {
    fn holds(&self, path: &ZnodePath) -> bool {
        let rest = path.as_str().strip_prefix(self.path.as_str());
        self.path.is_root() || rest.is_some_and(|rest| rest.starts_with('/'))
    }
}

fn close(open: &mut Vec<Open>, found: &mut Vec<Subtree>, top: usize) {
    let Some(Open {
        tree,
        largest_child,
    }) = open.pop()
    else {
        return;
    };
    let Some(parent) = open.last_mut() else {
        return;
    };
    parent.tree.znodes += tree.znodes;
    parent.tree.bytes += tree.bytes;
    parent.largest_child = parent.largest_child.max(tree.bytes);
    let is_of_every_store = tree.path.as_str().starts_with("/zookeeper");
    if !is_of_every_store && tree.bytes / 10 * 9 >= largest_child {
        found.push(tree);
    }
    if found.len() > 64 + 4 * top {
        shorten(found, top);
    }
}

fn shorten(found: &mut Vec<Subtree>, top: usize) {
    found.sort_by(|one, other| other.bytes.cmp(&one.bytes).then(one.path.cmp(&other.path)));
    found.truncate(top);
}
