//! [`StoreOptions`] and the [`Durability`] class of an embedded store.

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

/// Durability class of a store in a folder. It decides what the store does before it acknowledges a write.
///
/// | kept after… | `Fsync` | `DelayedRestart` | `None` |
/// |---|---|---|---|
/// | the program closes the store | everything | everything | everything |
/// | the program is killed | every acknowledged write | every acknowledged write to persistent znodes | all writes except the last ones, which had not yet reached the operating system |
/// | the machine stops | every acknowledged write | every acknowledged write to persistent znodes | the writes that had reached the disk |
/// | the program closes the store (sessions of other processes) | all | all | all |
/// | an unclean stop (sessions of other processes) | all | none, and the next start pauses | none, and the next start pauses if the log contains sessions |
///
/// Zxids, and therefore fencing tokens, never go backward. Sessions of the store's own process and their ephemeral
/// znodes end with the process. If such a session creates a container and no server is attached, the store writes the
/// container within a tenth of a second, but the answer does not wait for this.
///
/// After an unclean stop, the log may lack transactions that were acknowledged to sessions of other processes, such as
/// the release of a lock. So at its next start, the store ends these sessions, and opens no new session while a client
/// may still consider its old session alive. This *pause* lasts for the longest timeout ever granted, plus a hundredth
/// for slow clocks. A call that opens a session waits for the end of the pause. The durability class of the stopped run
/// decides whether there is a pause. If a store was ever served, its copies and the stores restored from its backups
/// pause in every class, for the longest timeout ever granted or allowed ([`StoreOptions::session_timeouts`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// The write is on the disk (`fdatasync`) before it is acknowledged.
    #[default]
    Fsync,
    /// Works like `Fsync` for persistent znodes. Writes that concern only sessions of other processes and their
    /// ephemeral znodes are acknowledged before they are on the disk. After an unclean stop, these sessions are ended,
    /// and a pause follows (see above).
    DelayedRestart,
    /// Writes are acknowledged without waiting for the disk, and written in the background. The store syncs full
    /// segments, the data that keeps tokens from repeating, and everything when it is closed. Answers wait for the log
    /// only when the log runs short of room. After the machine stops, some of the last acknowledged writes may be
    /// missing, but the recovered store has the content of a single earlier moment.
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
    /// Largest limit for the number of znodes, of sessions, and of watches per session. Higher limits are reduced to
    /// this value.
    pub const MAX: usize = 1 << 31;

    /// Longest session timeout, 2^31 - 1 ms (24.8 days), because ZooKeeper's protocol uses a signed 32-bit number.
    pub const MAX_SESSION_TIMEOUT: Duration = MAX_SESSION_TIMEOUT;

    /// Returns the defaults: the machine's clock, ticks of 2 s, session timeouts of 2 to 20 ticks, TTL znodes allowed,
    /// a reaper interval of one minute, and at most 2^28 znodes, 64 GiB, 2^20 sessions, and 2^20 watches per session.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the clock that the store uses.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the store's unit of time, from 1 ms to [`MAX_SESSION_TIMEOUT`](Self::MAX_SESSION_TIMEOUT). A session
    /// expires up to one tick later than its timeout.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick.clamp(Duration::from_millis(1), MAX_SESSION_TIMEOUT);
        self
    }

    /// Sets the shortest and the longest session timeout, from 1 ms to
    /// [`MAX_SESSION_TIMEOUT`](Self::MAX_SESSION_TIMEOUT). The defaults are 2 and 20 ticks. A requested timeout outside
    /// the bounds is replaced with the nearest bound. When a session of another process reconnects, its timeout cannot
    /// exceed the timeout that it was opened with.
    #[must_use]
    pub fn session_timeouts(mut self, shortest: Duration, longest: Duration) -> Self {
        let shortest = shortest.clamp(Duration::from_millis(1), MAX_SESSION_TIMEOUT);
        self.session_timeouts = Some((shortest, longest.clamp(shortest, MAX_SESSION_TIMEOUT)));
        self
    }

    /// Allows or forbids znodes with a time to live. If they are forbidden, creating one fails with
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

    /// Limits the number of znodes (at most [`MAX`](Self::MAX)).
    #[must_use]
    pub fn max_znodes(mut self, limit: usize) -> Self {
        self.limits.znodes = limit.min(Self::MAX);
        self
    }

    /// Limits the total size, in bytes, of all znodes and of the watches, sessions and identities that belong to other
    /// processes.
    ///
    /// - A znode counts as its path, its data, its access control list (80 bytes per entry plus the entry's texts), and
    ///   384 bytes more. This sum approximates the znode's memory use.
    /// - A watch counts as its path plus 256 bytes, a session as 512 bytes, and an identity as 192 bytes plus three
    ///   times its text. Watches, sessions and identities of this process do not count.
    ///
    /// A request that would exceed the limit fails with [`Error::LimitReached`](crate::Error::LimitReached). Requests
    /// that do not make the store larger are never refused, and a store in a folder can always be opened with all its
    /// content. The sessions of other processes share the last quarter of the limit. Each session can use only an equal
    /// share of this quarter for its watches and ephemeral znodes. Sessions may use up to a sixteenth of the limit, and
    /// so may identities, no matter how full the rest is.
    #[must_use]
    pub fn max_bytes(mut self, limit: usize) -> Self {
        self.limits.bytes = limit;
        self
    }

    /// Limits the number of sessions (at most [`MAX`](Self::MAX)).
    #[must_use]
    pub fn max_sessions(mut self, limit: usize) -> Self {
        self.limits.sessions = limit.min(Self::MAX);
        self
    }

    /// Limits the number of watches per session (at most [`MAX`](Self::MAX)).
    #[must_use]
    pub fn max_watches_per_session(mut self, limit: usize) -> Self {
        self.limits.watches_per_session = limit.min(Self::MAX);
        self
    }

    /// Sets the digest of the superuser, who has every right. The digest is `user:` followed by the base64 of the SHA-1
    /// of `user:password`, as in `zookeeper.DigestAuthenticationProvider.superDigest`. A client proves this identity
    /// with [`ConnectOptions::auth`](crate::ConnectOptions::auth).
    ///
    /// # Errors
    /// [`Error::BadArguments`] if the text is not such a digest. The error does not show the text, because it might be
    /// a password.
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

    /// Sets the durability class of a store in a folder.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the sizes in bytes of the log's first segment (at least 64 KiB) and of its largest segment. Each segment is
    /// twice as large as the one before it, up to the largest size. The defaults are 16 MiB and 64 MiB.
    ///
    /// The store refuses a transaction with [`Error::TooLarge`] if it is larger than a quarter of the first segment. In
    /// any case, it refuses transactions larger than 2 MiB plus 1 KiB. A transaction contains the data of its request.
    /// In its access control lists, each `auth` entry is replaced with all identities of the session.
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
