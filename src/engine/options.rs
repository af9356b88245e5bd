//! [`StoreOptions`]: the options of an embedded store, and its [`Durability`] class.

use std::time::Duration;

use crate::core::{CoreOptions, Limits};
use crate::log::Sizes;
use crate::model::error::{Error, Result};
use crate::model::identity::Identity;
use crate::model::protocol::SEMAPHORE_CHILDREN;
use crate::model::types::MAX_SESSION_TIMEOUT;
use crate::runtime::clock::Clock;

/// Options of an embedded store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    pub(super) clock: Clock,
    tick: Duration,
    session_timeouts: Option<(Duration, Duration)>,
    allow_ttl: bool,
    reaper_interval: Duration,
    limits: Limits,
    super_digest: Option<Identity>,
    durability: Durability,
    sizes: Sizes,
}

/// Durability class: the work of a store in a folder before a write is acknowledged.
///
/// | kept after… | `Fsync` | `DelayedRestart` | `None` |
/// |---|---|---|---|
/// | the program closes the store | everything | everything | everything |
/// | the program is killed | every acknowledged write | every acknowledged write to persistent znodes | all but the last writes, which were on their way to the system |
/// | the machine stops | every acknowledged write | every acknowledged write to persistent znodes | the writes that had reached the disk by then |
/// | sessions of other processes, after the program closes the store | yes | yes | yes |
/// | the same, after a stop that was not in order | yes | ended; a pause before any may enter | ended; a pause before any may enter, if the log still knows of them |
///
/// Zxids, and so fencing tokens, never go back, in any row and column. Sessions of the store's own
/// process, and their ephemeral znodes, end with it. The containers that they create are written within a
/// tenth of a second, and not waited for, as long as no server is attached.
///
/// The *pause*: the log may lack transactions that were acknowledged to a session of another process, such as the
/// release of a lock. Then that session cannot go on. All such sessions are ended when the store is opened, and the
/// store accepts no session at all until no client can believe any more in one that was ended: for the longest timeout
/// that was ever granted, and a hundredth more for slow clocks. Opening a session waits for that. The class of the run
/// that stopped decides, not that of the next. A store that was restored from a backup or copied pauses in every class,
/// if it was ever served, for the longest timeout that was or is allowed ([`StoreOptions::session_timeouts`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// It is on the disk (`fdatasync`).
    #[default]
    Fsync,
    /// As `Fsync` for persistent znodes; sessions of other processes, and their ephemeral znodes, are
    /// not waited for. After a stop that was not in order they are all ended, after a pause (above).
    DelayedRestart,
    /// Nothing: the store writes behind, and syncs only what must be there for tokens, segments that are
    /// full, and all when it is closed. When room in the log runs short, answers wait for it. After the machine
    /// stops, any of the last writes may be missing, acknowledged or not; the rest is the store as it was at one moment
    /// of the past.
    None,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            tick: Duration::from_secs(2),
            session_timeouts: None,
            allow_ttl: true,
            reaper_interval: Duration::from_secs(60),
            limits: Limits::default(),
            super_digest: None,
            durability: Durability::default(),
            sizes: Sizes::default(),
        }
    }
}

impl StoreOptions {
    /// The most znodes, sessions, and watches of a session that a store can number. A limit above it is taken for
    /// it.
    pub const MAX: usize = 1 << 31;

    /// Longest timeout of a session, 2^31 - 1 ms (24.8 days): ZooKeeper's protocol states it in milliseconds, as a signed
    /// 32-bit number.
    pub const MAX_SESSION_TIMEOUT: Duration = MAX_SESSION_TIMEOUT;

    /// Returns the defaults: the machine's clock, ticks of 2 s, session timeouts of 2 to 20 ticks, TTL
    /// znodes allowed, a reaper that looks every minute; at most 2^28 znodes, 64 GiB, 2^20
    /// sessions, and 2^20 watches a session.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the clock that the store lives by.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the store's unit of time, at least 1 ms and at most [`MAX_SESSION_TIMEOUT`](Self::MAX_SESSION_TIMEOUT):
    /// sessions expire in buckets of this width, up to one later than their timeout says.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick.clamp(Duration::from_millis(1), MAX_SESSION_TIMEOUT);
        self
    }

    /// Sets the bounds of a session's timeout, instead of 2 and 20 ticks: at least 1 ms, and at most
    /// [`MAX_SESSION_TIMEOUT`](Self::MAX_SESSION_TIMEOUT), which a longer one is taken for. A session of another process that comes back
    /// over a new connection gets no longer one than it was opened with.
    #[must_use]
    pub fn session_timeouts(mut self, shortest: Duration, longest: Duration) -> Self {
        let shortest = shortest.clamp(Duration::from_millis(1), MAX_SESSION_TIMEOUT);
        self.session_timeouts = Some((shortest, longest.clamp(shortest, MAX_SESSION_TIMEOUT)));
        self
    }

    /// Allows znodes with a time to live, or not; without, creating one is
    /// [`Error::Unimplemented`](crate::Error::Unimplemented).
    #[must_use]
    pub fn allow_ttl(mut self, allow: bool) -> Self {
        self.allow_ttl = allow;
        self
    }

    /// Sets the interval at which the store looks for container and TTL znodes to remove (at least 1 ms).
    #[must_use]
    pub fn reaper_interval(mut self, interval: Duration) -> Self {
        self.reaper_interval = interval.max(Duration::from_millis(1));
        self
    }

    /// Limits the number of znodes, at most [`MAX`](Self::MAX).
    #[must_use]
    pub fn max_znodes(mut self, limit: usize) -> Self {
        self.limits.znodes = limit.min(Self::MAX);
        self
    }

    /// Limits the bytes that all znodes, and the watches, sessions and identities of other processes, count for
    /// together. A znode counts for its path, its data and its access control list (80 bytes an entry, and its texts),
    /// and for 384 bytes more: about the memory that it takes. A watch counts for its path and 256 bytes, a session for
    /// 512, an identity for 192 and three times its text; those of this process for nothing.
    ///
    /// A request that would go beyond it is [`Error::LimitReached`](crate::Error::LimitReached); what makes nothing
    /// larger is never refused, and the content of a store in a folder is always read back. Of the last quarter a
    /// session of another process gets an equal share, for its watches and ephemeral znodes: so that none takes what
    /// others need. Sessions and identities of other processes are accepted up to a sixteenth each, however full the
    /// rest is.
    #[must_use]
    pub fn max_bytes(mut self, limit: usize) -> Self {
        self.limits.bytes = limit;
        self
    }

    /// Limits the number of sessions, at most [`MAX`](Self::MAX).
    #[must_use]
    pub fn max_sessions(mut self, limit: usize) -> Self {
        self.limits.sessions = limit.min(Self::MAX);
        self
    }

    /// Limits the number of watches of a session, at most [`MAX`](Self::MAX).
    #[must_use]
    pub fn max_watches_per_session(mut self, limit: usize) -> Self {
        self.limits.watches_per_session = limit.min(Self::MAX);
        self
    }

    /// Sets the digest of the superuser, which has every right: `user:` and the base64 of the SHA-1 of
    /// `user:password`, as `zookeeper.DigestAuthenticationProvider.superDigest` takes it. A client
    /// that proves it ([`ConnectOptions::auth`](crate::ConnectOptions::auth)) is asked for no right.
    ///
    /// # Errors
    /// [`Error::BadArguments`] for a text that is no such digest (it might be a password, so the error
    /// does not show it).
    pub fn super_digest(mut self, digest: &str) -> Result<Self> {
        let known = Identity::written_digest(digest).ok_or_else(|| {
            Error::BadArguments(
                "the super user's digest: expected user:BASE64, the base64 of the 20 bytes of \
                 SHA-1 of user:password"
                    .into(),
            )
        })?;
        self.super_digest = Some(known);
        Ok(self)
    }

    /// Sets the durability class of a store in a folder: the point at which a write counts as done.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the size of the log's first segment, in bytes (at least 64 KiB), and of the largest: each is
    /// twice the one before it until then. 16 MiB and 64 MiB unless set. A store of small segments
    /// refuses transactions of more than a quarter of the first ([`Error::TooLarge`]); no store takes
    /// any of more than 2 MiB and 1 KiB. A transaction is a request in which each `auth` of an access
    /// control list is replaced by all identities of the session.
    #[must_use]
    pub fn segment_bytes(mut self, first: u64, largest: u64) -> Self {
        let first = first.clamp(1 << 16, 1 << 30);
        self.sizes = Sizes::new(first, largest.clamp(first, 1 << 30));
        self.limits.txn_bytes = self.sizes.largest_txn;
        self
    }

    pub(super) fn durability_class(&self) -> Durability {
        self.durability
    }

    pub(super) fn log(&self) -> crate::log::Options {
        crate::log::Options {
            syncs: self.durability != Durability::None,
            keeps_sessions: self.durability == Durability::Fsync,
            longest_timeout_ms: self.core(0, 0).longest_timeout.as_millis() as u64,
            sizes: self.sizes,
        }
    }

    pub(super) fn core(&self, last_zxid: i64, hash_seed: u64) -> CoreOptions {
        let (shortest_timeout, longest_timeout) = self.session_timeouts.unwrap_or(
            [2, 20]
                .map(|ticks| MAX_SESSION_TIMEOUT.min(ticks * self.tick))
                .into(),
        );
        CoreOptions {
            last_zxid,
            tick: self.tick,
            shortest_timeout,
            longest_timeout,
            allow_ttl: self.allow_ttl,
            reaper_interval: self.reaper_interval,
            limits: self.limits,
            hash_seed,
            super_digest: self.super_digest.clone(),
            not_queues: &SEMAPHORE_CHILDREN,
            ..CoreOptions::default()
        }
    }
}
