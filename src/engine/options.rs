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

/// Durability class: what a store in a folder does before it acknowledges a write.
///
/// | kept after… | `Fsync` | `DelayedRestart` | `None` |
/// |---|---|---|---|
/// | the program closes the store | everything | everything | everything |
/// | the program is killed | every acknowledged write | every acknowledged write to persistent znodes | all but the last writes, which had not reached the system |
/// | the machine stops | every acknowledged write | every acknowledged write to persistent znodes | the writes that had reached the disk |
/// | sessions of other processes, after the program closes the store | yes | yes | yes |
/// | the same, after an unclean stop | yes | ended, with a pause | ended, with a pause if the log still knows of them |
///
/// Zxids, and therefore fencing tokens, never go backward in any of these cases. Sessions of the store's own process
/// end with it, and so do their ephemeral znodes. Containers that they create are written within a tenth of a second,
/// but not waited for, as long as no server is attached.
///
/// The *pause*: the log may lack transactions that were acknowledged to a session of another process, such as the
/// release of a lock. Such a session cannot continue. When the store is opened, it ends all sessions of other processes
/// and accepts no session until no client can still believe in one of them. This takes the longest timeout ever
/// granted, plus a hundredth for slow clocks, and opening a session waits for it. The class of the run that stopped
/// decides, not the class of the next. A store that was restored from a backup or copied pauses in every class if it
/// was ever served, for the longest timeout ever granted or allowed ([`StoreOptions::session_timeouts`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// The write is on the disk (`fdatasync`).
    #[default]
    Fsync,
    /// As `Fsync` for persistent znodes. Sessions of other processes and their ephemeral znodes are not waited for.
    /// After an unclean stop they are ended, with a pause (see above).
    DelayedRestart,
    /// Nothing. The store writes in the background, and syncs only what tokens depend on, full segments, and everything
    /// when it is closed. Answers wait for the log only when its room runs short. After the machine stops, any of the
    /// last writes may be missing, acknowledged or not. The rest is the store as it was at one earlier moment.
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
    /// Largest number of znodes, of sessions, and of watches per session. A higher limit is reduced to it.
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

    /// Sets the store's unit of time, from 1 ms to [`MAX_SESSION_TIMEOUT`](Self::MAX_SESSION_TIMEOUT). Sessions expire
    /// up to one tick later than their timeout.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick.clamp(Duration::from_millis(1), MAX_SESSION_TIMEOUT);
        self
    }

    /// Sets the bounds of session timeouts instead of 2 and 20 ticks, from 1 ms to
    /// [`MAX_SESSION_TIMEOUT`](Self::MAX_SESSION_TIMEOUT). Values outside are clamped. A session of another process
    /// that reconnects gets no longer timeout than it was opened with.
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

    /// Limits the bytes that all znodes, and the watches, sessions and identities of other processes, count for
    /// together.
    ///
    /// - A znode counts for its path, its data, its access control list (80 bytes per entry plus its texts), and 384
    ///   bytes more. This is about the memory that it takes.
    /// - A watch counts for its path and 256 bytes, a session for 512 bytes, and an identity for 192 bytes and three
    ///   times its text. Watches, sessions and identities of this process are free.
    ///
    /// A request that would exceed the limit fails with [`Error::LimitReached`](crate::Error::LimitReached). Requests
    /// that make nothing larger are never refused, and the content of a store in a folder is always read back. For its
    /// watches and ephemeral znodes, each session of another process gets only an equal share of the last quarter, so
    /// that none takes the room that others need. Sessions and identities of other processes are accepted up to a
    /// sixteenth each, however full the rest is.
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

    /// Sets the digest of the superuser, who has every right: `user:` and the base64 of the SHA-1 of `user:password`,
    /// as in `zookeeper.DigestAuthenticationProvider.superDigest`. A client proves this identity with
    /// [`ConnectOptions::auth`](crate::ConnectOptions::auth).
    ///
    /// # Errors
    /// [`Error::BadArguments`] if the text is no such digest. The error does not show it, because it might be a
    /// password.
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

    /// Sets the size in bytes of the log's first segment (at least 64 KiB) and of its largest. Each segment is twice as
    /// large as the one before until then. The defaults are 16 MiB and 64 MiB. A store refuses transactions larger than
    /// a quarter of the first segment, and in any case those larger than 2 MiB and 1 KiB ([`Error::TooLarge`]). A
    /// transaction is a request in which all identities of the session replace each `auth` of an access control list.
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
