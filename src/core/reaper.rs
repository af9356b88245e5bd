//! The reaper, which deletes containers whose last child was deleted, containers that stay unused for long, and TTL
//! znodes whose time to live has passed since their last change.

use std::collections::VecDeque;
use std::time::Duration;

use super::intrusive_list::NIL;
use super::journal::{NodeKind, TxnOp, delete_bytes};
use super::tree::Tree;
use super::{Core, Effects, Now};
use crate::model::types::{SessionId, Zxid};
use crate::model::watch::DeleteReason;
use crate::runtime::clock::BootInstant;

/// Maximum number of znodes deleted in one sweep. With sweeps every [`SHORT_WAIT`], the reaper deletes up to 20,000
/// znodes a second while the store serves clients.
const MAX_REAPED_PER_SWEEP: usize = 200;

const MAX_CHECKED_PER_SWEEP: usize = 10_000;

const SHORT_WAIT: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(super) struct Reaper {
    /// Index and czxid of each candidate. The czxid is needed because an index may be reused.
    candidates: VecDeque<(u32, Zxid)>,
    sweep: Option<BootInstant>,
    left: usize,
}

impl Reaper {
    /// Adds a childless container or TTL znode to the candidates.
    pub(super) fn consider(&mut self, tree: &mut Tree, index: u32) {
        let node = tree.node_mut(index);
        let is_reaped = matches!(node.kind, NodeKind::Container | NodeKind::Ttl { .. });
        if is_reaped && !node.is_candidate && node.children() == 0 {
            node.is_candidate = true;
            self.candidates.push_back((index, node.czxid));
        }
    }

    #[inline]
    pub(super) fn next_sweep(
        &mut self,
        interval: Duration,
        now: impl FnOnce() -> BootInstant,
    ) -> Option<BootInstant> {
        if self.sweep.is_none() && !self.candidates.is_empty() {
            let wait = match self.left {
                0 => interval,
                _ => SHORT_WAIT.min(interval),
            };
            self.sweep = Some(now().after(wait));
        }
        self.sweep
    }

    #[cfg(test)]
    pub(super) fn candidates(&self) -> usize {
        self.candidates.len()
    }
}

impl Core {
    pub(super) fn reap(&mut self, now: Now, effects: &mut Effects) {
        if self.reaper.sweep.is_none_or(|due| due > now.moment) {
            return;
        }
        self.reaper.sweep = None;
        let mut reaped = 0;
        if self.reaper.left == 0 {
            self.reaper.left = self.reaper.candidates.len();
        }
        let (mut looked_at, most) = (0, self.reaper.left.min(MAX_CHECKED_PER_SWEEP));
        while looked_at < most && reaped < MAX_REAPED_PER_SWEEP {
            looked_at += 1;
            let Some((index, czxid)) = self.reaper.candidates.pop_front() else {
                continue;
            };
            let known = self.tree.nodes.get_mut(index as usize);
            let Some(node) = known.filter(|node| node.czxid == czxid && node.is_candidate) else {
                continue;
            };
            // Check for children again, because a contender may have joined the queue in the meantime.
            if node.children() > 0 {
                node.is_candidate = false;
            } else if self.may_reap(index, now) {
                self.reap_node(index, now, effects);
                reaped += 1;
            } else {
                // Move the candidate to the back, so that it does not delay candidates that are due.
                self.reaper.candidates.push_back((index, czxid));
            }
        }
        self.reaper.left -= looked_at;
        self.tree.work.add(looked_at);
    }

    /// Returns true if a znode is due and its delete fits into the log. The delete of a very long path may be too large
    /// if the log had larger segments when the znode was created.
    fn may_reap(&self, index: u32, now: Now) -> bool {
        let is_kept = self.check_txn(delete_bytes(self.tree.node(index).path_bytes as usize));
        self.is_due(index, now) && is_kept.is_ok()
    }

    fn is_due(&self, index: u32, now: Now) -> bool {
        let node = self.tree.node(index);
        let idle_ms = u64::try_from(now.unix_ms.saturating_sub(node.mtime)).unwrap_or(0);
        match node.kind {
            NodeKind::Container => {
                node.creates() > 0 || idle_ms > self.options.unused_container.as_millis() as u64
            }
            NodeKind::Ttl { ms } => idle_ms > ms,
            NodeKind::Persistent | NodeKind::Ephemeral => false,
        }
    }

    fn reap_node(&mut self, index: u32, now: Now, effects: &mut Effects) {
        let path = self.tree.path(index);
        let at = self.stamp(now, self.log_mode_of(NIL));
        self.apply_delete(index, DeleteReason::Removed, at, effects);
        self.resolve_waiters(now, effects);
        self.log(SessionId(0), at, || TxnOp::Delete { path });
    }
}
