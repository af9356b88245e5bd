//! [`SeenGrants`]: grant times that a watching command has observed, for stores that do not record them.

use std::collections::HashMap;

use lockkeeper::{FencingToken, LockChange, QueueEntry, ZnodePath};

/// Maximum number of locks whose holders we remember. Holders of further locks have no grant time.
const MAX_LOCKS: usize = 65_536;

/// Observed grant times of holders.
///
/// A holder that first appears in a change has just been granted the lock, so the time of the change is the grant time.
/// A holder that first appears when all locks are read may have been granted the lock long ago, so its grant time stays
/// unknown.
#[derive(Debug, Default)]
pub(crate) struct SeenGrants(HashMap<ZnodePath, Vec<Seen>>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    token: FencingToken,
    granted_at_ms: Option<i64>,
    seen_at_ms: i64,
}

impl SeenGrants {
    /// Adds grant times to a change that was read just before `now_ms`. `all` means that the change contains all locks.
    pub(crate) fn complete(&mut self, change: &mut LockChange, all: bool, now_ms: i64) {
        let mut before = match all {
            true => std::mem::take(&mut self.0),
            false => HashMap::new(),
        };
        for path in &change.freed {
            self.0.remove(path);
        }
        for lock in &mut change.changed {
            let known = before
                .remove(&lock.path)
                .or_else(|| self.0.remove(&lock.path));
            let is_full = self.0.len() >= MAX_LOCKS;
            if is_full && known.is_none() {
                continue;
            }
            let known = known.unwrap_or_default();
            let mut unknown = Vec::new();
            for holder in &mut lock.holders {
                if holder.granted_at_ms.is_some() {
                    continue;
                }
                let token = holder.fencing_token;
                let seen = known.iter().find(|known| known.token == token);
                let seen = seen.copied().unwrap_or(Seen {
                    token,
                    granted_at_ms: (!all).then_some(now_ms),
                    seen_at_ms: now_ms,
                });
                holder.granted_at_ms = seen.granted_at_ms;
                holder.seen_holding_at_ms = Some(seen.seen_at_ms);
                unknown.push(seen);
            }
            if !unknown.is_empty() {
                self.0.insert(lock.path.clone(), unknown);
            }
        }
    }
}

/// Copies the observed grant times to the same holders in another reading.
pub(crate) fn add_seen(seen: &[QueueEntry], to: &mut [QueueEntry]) {
    for holder in to {
        let same = seen
            .iter()
            .find(|it| it.fencing_token == holder.fencing_token);
        if let (Some(same), None) = (same, holder.granted_at_ms) {
            holder.granted_at_ms = same.granted_at_ms;
            holder.seen_holding_at_ms = same.seen_holding_at_ms;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::samples::{NOW_MS, change, lock};

    #[test]
    fn a_hold_counts_from_the_moment_at_which_it_was_seen_to_begin() {
        let mut grants = SeenGrants::default();
        let mut seen_at = |token, all, s: i64| {
            let mut unknown = lock("a", token, 900, 0);
            unknown.holders[0].granted_at_ms = None;
            let mut change = change([unknown], &[]);
            let now_ms = NOW_MS + 1_000 * s;
            grants.complete(&mut change, all, now_ms);
            let holder = &change.changed[0].holders[0];
            let held = holder.held_for(now_ms);
            // The expected hold time is 30 s.
            let due_in = holder.due_at_ms().map(|due| (due - now_ms) / 1_000);
            (held.map(|held| held.as_secs()), due_in)
        };
        assert_eq!(seen_at(1, true, 0), (None, Some(30)), "it held before");
        assert_eq!(
            seen_at(1, false, 1),
            (None, Some(29)),
            "it has another waiter"
        );
        assert_eq!(seen_at(2, false, 2), (Some(0), Some(30)));
        assert_eq!(seen_at(2, false, 5), (Some(3), Some(27)));
        assert_eq!(
            seen_at(2, true, 6),
            (Some(4), Some(26)),
            "all were read again"
        );
        assert_eq!(
            seen_at(3, true, 7),
            (None, Some(30)),
            "it may hold for long"
        );
        grants.complete(&mut change([], &["a"]), false, NOW_MS);
        assert_eq!(grants.0.len(), 0);
    }

    #[test]
    fn a_grant_that_the_store_knows_stays() {
        let mut grants = SeenGrants::default();
        let mut change = change([lock("a", 1, 7, 0)], &[]);
        grants.complete(&mut change, false, NOW_MS);
        let held = change.changed[0].holders[0].held_for(NOW_MS);
        assert_eq!(
            (held.map(|held| held.as_secs()), grants.0.len()),
            (Some(7), 0)
        );
    }
}
