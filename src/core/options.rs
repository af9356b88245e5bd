//! [`CoreOptions`]: the options of a core.

use std::time::Duration;

use crate::model::identity::Identity;
use crate::model::size::MAX_TXN_BYTES;

#[derive(Clone, Debug)]
pub(crate) struct CoreOptions {
    pub(crate) last_zxid: i64,
    pub(crate) tick: Duration,
    pub(crate) shortest_timeout: Duration,
    pub(crate) longest_timeout: Duration,
    pub(crate) allow_ttl: bool,
    pub(crate) reaper_interval: Duration,
    /// Age at which a container that never had a child is reaped.
    pub(crate) unused_container: Duration,
    pub(crate) limits: Limits,
    /// Seeds the hash functions, so that clients cannot choose paths whose hashes collide.
    pub(crate) hash_seed: u64,
    pub(crate) super_digest: Option<Identity>,
    /// A znode with a child of one of these names is not a queue.
    pub(crate) not_queues: &'static [&'static str],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) znodes: usize,
    /// Maximum bytes that clients can make the store keep.
    pub(crate) bytes: usize,
    pub(crate) sessions: usize,
    pub(crate) watches_per_session: usize,
    /// Maximum bytes of one transaction in a log. The limit also holds without a log, because znodes may have to be
    /// logged later ([`Core::keep_all`](super::Core::keep_all)).
    pub(crate) txn_bytes: usize,
}

impl Default for CoreOptions {
    fn default() -> Self {
        let tick = Duration::from_secs(2);
        Self {
            last_zxid: 0,
            tick,
            shortest_timeout: 2 * tick,
            longest_timeout: 20 * tick,
            allow_ttl: true,
            reaper_interval: Duration::from_secs(60),
            unused_container: Duration::from_secs(5 * 60),
            limits: Limits::default(),
            hash_seed: 0,
            super_digest: None,
            not_queues: &[],
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            znodes: 1 << 28,
            bytes: usize::try_from(64_u64 << 30).unwrap_or(usize::MAX),
            sessions: 1 << 20,
            watches_per_session: 1 << 20,
            txn_bytes: MAX_TXN_BYTES,
        }
    }
}
