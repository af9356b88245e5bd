//! [`ConnectOptions`].

use std::fmt;
use std::time::Duration;

use super::DEFAULT_TICK;
use crate::acl::Acl;
use crate::error::{Error, Result};
use crate::tls::ClientTls;

/// How to connect. Secrets stand here, never in a URL, and are shown nowhere.
#[derive(Clone)]
pub struct ConnectOptions {
    pub(crate) session_timeout: Option<Duration>,
    pub(crate) connect_timeout: Duration,
    pub(crate) auth: Vec<(String, Vec<u8>)>,
    pub(crate) acl: Acl,
    pub(crate) create_chroot: bool,
    pub(crate) tls: Option<ClientTls>,
    pub(crate) ensemble_tick: Duration,
    pub(crate) entry_patterns: Vec<String>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            session_timeout: None,
            connect_timeout: Duration::from_secs(10),
            auth: Vec::new(),
            acl: Acl::open(),
            create_chroot: false,
            tls: None,
            ensemble_tick: DEFAULT_TICK,
            entry_patterns: Vec::new(),
        }
    }
}

impl ConnectOptions {
    /// The defaults: no session timeout in this process and 15 s elsewhere, 10 s to connect, no
    /// credentials, open access control lists, no making of a missing chroot.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the store waits for a sign of life before it ends the session. The store may
    /// change it into its own bounds (ZooKeeper: 2 to 20 ticks).
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = Some(timeout);
        self
    }

    /// How long `connect` tries before it gives up.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Proves an identity, as `digest` and `user:password`: access control lists may name it. The embedded
    /// store knows `digest` alone; where a scheme is unknown, connecting fails with [`Error::AuthFailed`].
    #[must_use]
    pub fn auth(mut self, scheme: impl Into<String>, secret: impl Into<Vec<u8>>) -> Self {
        self.auth.push((scheme.into(), secret.into()));
        self
    }

    /// The access control list of the znodes that recipes and typed methods make.
    #[must_use]
    pub fn acl(mut self, acl: Acl) -> Self {
        self.acl = acl;
        self
    }

    /// Makes the path that the URL ends with, if it is missing. Without this, that is an error.
    #[must_use]
    pub fn create_chroot(mut self) -> Self {
        self.create_chroot = true;
        self
    }

    /// Speaks TLS with a `lockkeeper://` or `zookeeper://` server, and nothing else: a server that does not is no
    /// server. Without this there is no TLS. A store of this process has no wire.
    ///
    /// Needs the feature `tls`; connecting fails without it.
    #[must_use]
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The tick (`tickTime`) of the ZooKeeper ensemble, 2 s unless told otherwise; means nothing to a single
    /// server. Followers pass on to the leader which sessions are alive twice in a tick, so for so long, but
    /// not longer than a quarter of the session's timeout, nothing shows that the leader knows of a write
    /// ([`SessionStatus::held_until`]).
    ///
    /// One that is shorter than the servers' makes sessions believe in locks that they may have lost; one
    /// that is longer makes the first lock of a session that was idle come later.
    ///
    /// [`SessionStatus::held_until`]: crate::SessionStatus::held_until
    #[must_use]
    pub fn ensemble_tick(mut self, tick: Duration) -> Self {
        self.ensemble_tick = tick;
        self
    }

    /// Takes further names for those of contenders, for queues that are shared with a library whose names the
    /// recipes do not know: ephemeral children whose names end in `before_number` and a sequence number. An empty
    /// text stands for all numbered names.
    ///
    /// Known are the names of this library, Curator, kazoo, go-zookeeper and ZooKeeper's own lock. Every client
    /// of a queue needs the same patterns: one that does not know a contender's name gets in beside it.
    #[must_use]
    pub fn entry_pattern(mut self, before_number: impl Into<String>) -> Self {
        self.entry_patterns.push(before_number.into());
        self
    }

    /// Refuses lengths of time and patterns that cannot be meant.
    ///
    /// # Errors
    /// [`Error::BadArguments`].
    pub(crate) fn check(&self) -> Result<()> {
        let session = self
            .session_timeout
            .map(|timeout| ("session timeout", timeout));
        let others = [
            ("connect timeout", self.connect_timeout),
            ("ensemble's tick", self.ensemble_tick),
        ];
        for (what, length) in session.into_iter().chain(others) {
            if !(SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(&length) {
                return Err(Error::BadArguments(format!(
                    "the {what} of {length:?}: expected {SHORTEST_TIMEOUT:?} to {LONGEST_TIMEOUT:?}"
                )));
            }
        }
        let is_unfit = |pattern: &&String| {
            pattern.contains('/') || pattern.ends_with(|last: char| last.is_ascii_digit())
        };
        match self.entry_patterns.iter().find(is_unfit) {
            None => Ok(()),
            Some(pattern) => Err(Error::BadArguments(format!(
                "the entry pattern {pattern:?}: expected the part of a name before its number, without `/` and \
                 without a digit at its end"
            ))),
        }
    }
}

/// ZooKeeper counts timeouts in whole milliseconds, as a signed 32-bit number.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);
const LONGEST_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field(
                "auth",
                &self
                    .auth
                    .iter()
                    .map(|(scheme, _)| scheme)
                    .collect::<Vec<_>>(),
            )
            .field("acl", &self.acl)
            .field("create_chroot", &self.create_chroot)
            .field("tls", &self.tls)
            .field("ensemble_tick", &self.ensemble_tick)
            .field("entry_patterns", &self.entry_patterns)
            .finish()
    }
}
