//! [`Unread`]: the total number of bytes that wait for clients, and the order in which the connections of slow readers
//! are closed.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of bytes, over all connections, that a store's clients have not read yet.
///
/// While the sum exceeds the limit, the connection with the oldest unread bytes is closed, unless it holds few bytes. A
/// client that keeps reading never loses its connection, no matter how much it requests. The age of a byte is the
/// number of bytes that have arrived after it, so no clock is needed.
#[derive(Debug)]
pub(crate) struct Unread {
    limit: AtomicUsize,
    bytes: AtomicUsize,
    came: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    pub(super) bytes: usize,
    /// Number of unread bytes that were already waiting when `since` was set.
    left: usize,
    since: u64,
}

impl Default for Unread {
    fn default() -> Self {
        Self {
            limit: AtomicUsize::new(usize::MAX),
            bytes: AtomicUsize::new(0),
            came: AtomicU64::new(0),
        }
    }
}

// All accesses are `Relaxed`, because the numbers are independent of each other. If a thread reads an outdated number,
// a slow reader's connection is only closed one message later.
impl Unread {
    #[cfg(any(test, feature = "server"))]
    pub(super) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    #[cfg(all(feature = "server", feature = "metrics"))]
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_over(&self) -> bool {
        self.bytes() > self.limit.load(Ordering::Relaxed)
    }

    /// Returns half of a client's equal share of the limit. Connections of clients that hold at most this many bytes
    /// are closed last.
    pub(super) fn own_bytes(&self, clients: usize) -> usize {
        self.limit.load(Ordering::Relaxed) / 2 / clients.max(1)
    }

    pub(super) fn set(&self, account: &mut Account, bytes: usize) {
        let before = account.bytes;
        account.bytes = bytes;
        if let Some(more) = bytes.checked_sub(before) {
            self.bytes.fetch_add(more, Ordering::Relaxed);
            let came = self.came.fetch_add(more as u64, Ordering::Relaxed);
            // The oldest byte determines the age, so new bytes do not change the age while older ones wait.
            if before == 0 {
                account.mark(came);
            }
            return;
        }
        let gone = before - bytes;
        self.bytes.fetch_sub(gone, Ordering::Relaxed);
        account.left = account.left.saturating_sub(gone);
        if account.left == 0 {
            // All bytes that waited at `since` have been read. The remaining bytes arrived later.
            account.mark(self.came.load(Ordering::Relaxed));
        }
    }
}

impl Account {
    fn mark(&mut self, came: u64) {
        (self.left, self.since) = (self.bytes, came);
    }

    /// Returns a number that orders accounts by the age of their waiting bytes. The smallest number belongs to the
    /// oldest bytes.
    pub(super) fn since(&self) -> u64 {
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_wait_age_until_they_are_read() {
        let unread = Unread::default();
        unread.set_limit(1_000);
        let [mut slow, mut quick] = [Account::default(); 2];
        unread.set(&mut slow, 400);
        for _ in 0..10 {
            unread.set(&mut quick, 500);
            assert!(slow.since() < quick.since());
            assert!(!unread.is_over());
            unread.set(&mut quick, 100);
        }
        assert_eq!(unread.bytes(), 500);
        unread.set(&mut slow, 301);
        unread.set(&mut slow, 501);
        assert!(
            slow.since() < quick.since(),
            "a byte now and then does not count"
        );
        unread.set(&mut quick, 500);
        assert!(unread.is_over());
        unread.set(&mut slow, 100);
        assert!(
            slow.since() > quick.since(),
            "all that waited has been read"
        );
        unread.set(&mut slow, 0);
        unread.set(&mut quick, 0);
        assert_eq!(unread.bytes(), 0);
    }
}
