//! [`StoreOptions`].

use std::time::Duration;

use crate::clock::Clock;
use crate::core::{CoreOptions, Limits};

/// How a store works.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    pub(super) clock: Clock,
    tick: Duration,
    session_timeouts: Option<(Duration, Duration)>,
    allow_ttl: bool,
    reaper_interval: Duration,
    limits: Limits,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            tick: Duration::from_secs(2),
            session_timeouts: None,
            allow_ttl: true,
            reaper_interval: Duration::from_secs(60),
            limits: Limits {
                znodes: 1 << 28,
                sessions: 1 << 20,
                watches_per_session: 1 << 20,
            },
        }
    }
}

impl StoreOptions {
    /// The defaults: the machine's clock, ticks of 2 s, session timeouts of 2 to 20 ticks, TTL
    /// znodes allowed, a reaper that looks every minute; at most 2^28 znodes, 2^20 sessions, and
    /// 2^20 watches a session.
    pub fn new() -> Self {
        Self::default()
    }

    /// The clock that the store lives by.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The store's unit of time (at least 1 ms): sessions expire in buckets of this width, up to
    /// one later than their timeout says.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick.max(Duration::from_millis(1));
        self
    }

    /// The bounds of a session's timeout, instead of 2 and 20 ticks.
    #[must_use]
    pub fn session_timeouts(mut self, shortest: Duration, longest: Duration) -> Self {
        let shortest = shortest.max(Duration::from_millis(1));
        self.session_timeouts = Some((shortest, longest.max(shortest)));
        self
    }

    /// Whether there may be znodes with a time to live; without, making one is
    /// [`Error::Unimplemented`](crate::Error::Unimplemented).
    #[must_use]
    pub fn allow_ttl(mut self, allow: bool) -> Self {
        self.allow_ttl = allow;
        self
    }

    /// How often the store looks for container and TTL znodes to remove (at least 1 ms).
    #[must_use]
    pub fn reaper_interval(mut self, interval: Duration) -> Self {
        self.reaper_interval = interval.max(Duration::from_millis(1));
        self
    }

    /// How many znodes there may be.
    #[must_use]
    pub fn most_znodes(mut self, limit: usize) -> Self {
        self.limits.znodes = limit.min(1 << 31);
        self
    }

    /// How many sessions there may be.
    #[must_use]
    pub fn most_sessions(mut self, limit: usize) -> Self {
        self.limits.sessions = limit.min(1 << 31);
        self
    }

    /// How many watches a session may have.
    #[must_use]
    pub fn most_watches_per_session(mut self, limit: usize) -> Self {
        self.limits.watches_per_session = limit.min(1 << 31);
        self
    }

    pub(super) fn core(&self, last_zxid: i64, hash_seed: u64) -> CoreOptions {
        let (shortest_timeout, longest_timeout) = self
            .session_timeouts
            .unwrap_or((2 * self.tick, 20 * self.tick));
        CoreOptions {
            last_zxid,
            tick: self.tick,
            shortest_timeout,
            longest_timeout,
            allow_ttl: self.allow_ttl,
            reaper_interval: self.reaper_interval,
            unused_container: UNUSED_CONTAINER,
            limits: self.limits,
            hash_seed,
        }
    }
}

/// How long a container may go without a first child.
const UNUSED_CONTAINER: Duration = Duration::from_secs(5 * 60);
