//! [`ConnectOptions`]: timeouts, credentials and defaults of a client's sessions.

use std::fmt;
use std::time::Duration;

use super::DEFAULT_TICK;
use crate::model::acl::Acl;
use crate::model::error::{Error, Result};
use crate::model::types::{HumanDuration, MAX_SESSION_TIMEOUT};
use crate::tls::ClientTls;

/// Options of a [client](crate::Client). They apply to its first session, and to each one that replaces a lost session.
///
/// A [`Connector`](crate::Connector) reads them with the methods that start with `get_`.
///
/// The methods check nothing. Connecting fails with [`Error::BadArguments`] if an option is out of bounds. Secrets are
/// options, never part of a URL, and the `Debug` output leaves them out.
///
/// ```
/// use std::time::Duration;
/// use lockkeeper_store::{Acl, ConnectOptions, connect_with};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let options = ConnectOptions::new()
///     .session_timeout(Duration::from_secs(10)) // a dead client's locks are free after 10 s
///     .auth("digest", "orders:PASSWORD")
///     .acl(Acl::creator_all());                 // only this identity may use the znodes
/// let client = connect_with("memory:", options).await?;
/// # client.close().await?;
/// # Ok::<(), lockkeeper_store::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct ConnectOptions {
    pub(crate) session_timeout: Option<Duration>,
    pub(crate) connect_timeout: Duration,
    pub(crate) auth: Vec<(String, Vec<u8>)>,
    pub(crate) acl: Acl,
    pub(crate) create_chroot: bool,
    pub(crate) tls: Option<ClientTls>,
    pub(crate) end_with_process: bool,
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
            end_with_process: true,
            ensemble_tick: DEFAULT_TICK,
            entry_patterns: Vec::new(),
        }
    }
}

impl ConnectOptions {
    /// Returns the defaults: a session timeout of 15 s (none in a store of this process), 10 s to connect, no
    /// credentials, open access control lists, no TLS, and no creation of a missing chroot.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long the store waits for a sign of life before it ends the session, which deletes the session's locks
    /// and other ephemeral znodes. A short timeout frees a dead client's locks soon. A long one survives longer pauses
    /// of the process and outages of the network.
    ///
    /// The default is 15 s. In a store of this process (`memory:`, `file:`) it is no timeout, so the session ends only
    /// with its client.
    ///
    /// The store replaces a timeout outside its bounds (by default 4 s to 40 s, for a ZooKeeper 2 to 20 ticks) by the
    /// nearest one allowed. [`SessionStatus::timeout`](crate::SessionStatus::timeout) returns the result, in whole
    /// milliseconds. Connecting fails with [`Error::BadArguments`] below 1 ms and above 2,147,483,647 ms (24.8 days).
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = Some(timeout);
        self
    }

    /// Sets how long the client tries to connect before it gives up with [`Error::ConnectFailed`] (10 s by default).
    /// This applies to the first session, and again to each replacement of a lost session. Until then, servers that
    /// refuse or do not answer are tried again every 100 ms. If a server has accepted the connection and is silent, the
    /// client then probes for at most 4 s which other protocol it speaks. Closing a session waits for the answer up to
    /// the same timeout.
    ///
    /// The same bounds as for [`session_timeout`](Self::session_timeout) apply. A store of this process ignores it.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Adds an identity that each session proves, as the scheme `digest` with the secret `user:password`. Access
    /// control lists can name it, and a server may require one.
    ///
    /// Connecting fails with [`Error::AuthFailed`] if the store refuses the proof or does not know the scheme. A store
    /// of this process knows only `digest`, and accepts any password because it has no list of users.
    #[must_use]
    pub fn auth(mut self, scheme: impl Into<String>, secret: impl Into<Vec<u8>>) -> Self {
        self.auth.push((scheme.into(), secret.into()));
        self
    }

    /// Sets the access control list of the znodes that recipes and typed methods create. By default everything is
    /// allowed to every client. Existing znodes keep their lists.
    ///
    /// All clients of a lock need the permissions to read, create and delete below its path. A list with the scheme
    /// `auth` needs [`auth`](Self::auth). Without an identity the store refuses each create with [`Error::InvalidAcl`].
    #[must_use]
    pub fn acl(mut self, acl: Acl) -> Self {
        self.acl = acl;
        self
    }

    /// Creates missing znodes of the chroot (the path at the end of a `lockkeeper://` or `zookeeper://` URL), as
    /// persistent znodes with the list of [`acl`](Self::acl). Without this option connecting fails with
    /// [`Error::NoChroot`].
    #[must_use]
    pub fn create_chroot(mut self) -> Self {
        self.create_chroot = true;
        self
    }

    /// Connects to servers only with TLS, even if the URL does not ask for it (`lockkeeper+tls://`,
    /// `zookeeper+tls://`). A URL that does needs this option, because it has the authority that verifies the server.
    /// Has no effect on a store of this process.
    ///
    /// Connecting fails with [`Error::Tls`] if a certificate or key cannot be used, or if the only server of the URL
    /// does not speak TLS, refuses the certificate, or presents an untrusted one. It fails with [`Error::Target`] in a
    /// build without the feature `tls`.
    #[must_use]
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets whether a session over a Unix socket (`lockkeeper+unix://`) ends immediately when the process that opened
    /// it exits, for whatever reason. The default is true, and a killed process's locks are free within a millisecond.
    /// If false, they are free when the session's timeout has passed. Use this for a process that hands its session to
    /// another one. The URL parameter `?end_with_process=false` has the same effect.
    ///
    /// The exit of children, a closed connection, a stopped process (`SIGSTOP`) and an exec do not end the session. The
    /// server watches only a process that it can identify: on Linux, in the same pid namespace, connected directly, and
    /// visible to it in /proc. In any other case the timeout counts.
    #[must_use]
    pub fn end_with_process(mut self, end: bool) -> Self {
        self.end_with_process = end;
        self
    }

    /// Sets the tick (`tickTime`) of a ZooKeeper ensemble, 2 s by default like ZooKeeper's. Has no effect on a single
    /// server.
    ///
    /// A follower reports to the leader twice per tick which sessions are alive. So a write is known to have reached
    /// the leader only a tick after its answer, or a quarter of the session's timeout if that is less
    /// ([`SessionStatus::held_until`]).
    ///
    /// Set it to the servers' value. With a shorter tick a session may believe in locks that it has lost. With a longer
    /// one, the first lock after idling is granted later. The same bounds as for
    /// [`session_timeout`](Self::session_timeout) apply.
    ///
    /// [`SessionStatus::held_until`]: crate::SessionStatus::held_until
    #[must_use]
    pub fn ensemble_tick(mut self, tick: Duration) -> Self {
        self.ensemble_tick = tick;
        self
    }

    /// Adds a pattern of contenders' names, for queues that are shared with a library whose names the recipes do not
    /// know. An ephemeral child is a contender if its name ends in `before_number` and a sequence number. The empty
    /// pattern matches every numbered name. Can be called several times.
    ///
    /// The names of this library, Curator, kazoo, go-zookeeper and ZooKeeper's own lock are built in. Every client of a
    /// queue needs the same patterns, because a client that does not recognize a contender acquires the lock at the
    /// same time.
    ///
    /// Connecting fails with [`Error::BadArguments`] if a pattern contains a `/` or ends in a digit.
    #[must_use]
    pub fn entry_pattern(mut self, before_number: impl Into<String>) -> Self {
        self.entry_patterns.push(before_number.into());
        self
    }

    /// Returns the [`session_timeout`](Self::session_timeout), or `None` for the store's default.
    pub fn get_session_timeout(&self) -> Option<Duration> {
        self.session_timeout
    }

    /// Returns the [`connect_timeout`](Self::connect_timeout).
    pub fn get_connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Returns the schemes and secrets of [`auth`](Self::auth), in the order of their addition.
    pub fn get_auth(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let auth = self.auth.iter();
        auth.map(|(scheme, secret)| (scheme.as_str(), secret.as_slice()))
    }

    /// Returns the [`acl`](Self::acl).
    pub fn get_acl(&self) -> &Acl {
        &self.acl
    }

    /// Returns true if [`create_chroot`](Self::create_chroot) was called.
    pub fn get_create_chroot(&self) -> bool {
        self.create_chroot
    }

    /// Returns the options of [`tls`](Self::tls).
    pub fn get_tls(&self) -> Option<&ClientTls> {
        self.tls.as_ref()
    }

    /// Returns the [`ensemble_tick`](Self::ensemble_tick).
    pub fn get_ensemble_tick(&self) -> Duration {
        self.ensemble_tick
    }

    /// Checks durations and patterns.
    ///
    /// # Errors
    /// [`Error::BadArguments`] for the first that is out of bounds.
    pub(crate) fn check(&self) -> Result<()> {
        let session = self
            .session_timeout
            .map(|timeout| ("session timeout", timeout));
        let others = [
            ("connect timeout", self.connect_timeout),
            ("ensemble's tick", self.ensemble_tick),
        ];
        for (what, length) in session.into_iter().chain(others) {
            if !(SHORTEST_TIMEOUT..=MAX_SESSION_TIMEOUT).contains(&length) {
                return Err(Error::BadArguments(format!(
                    "the {what} of {length}: expected {} to {}",
                    HumanDuration(SHORTEST_TIMEOUT),
                    HumanDuration(MAX_SESSION_TIMEOUT),
                    length = HumanDuration(length)
                )));
            }
        }
        // A digit before the number would be read as part of it, so the pattern could match no name.
        let is_unfit = |pattern: &&String| {
            pattern.contains('/') || pattern.ends_with(|last: char| last.is_ascii_digit())
        };
        match self.entry_patterns.iter().find(is_unfit) {
            None => Ok(()),
            Some(pattern) => Err(Error::BadArguments(format!(
                "the entry pattern \"{pattern}\": expected the part of a name before its number, without `/` and \
                 without a digit at its end",
                pattern = pattern.escape_debug()
            ))),
        }
    }
}

/// ZooKeeper's protocol has timeouts in whole milliseconds. A shorter one would be sent as 0, which a server reads as
/// its own minimum.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);

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
            .field("end_with_process", &self.end_with_process)
            .field("ensemble_tick", &self.ensemble_tick)
            .field("entry_patterns", &self.entry_patterns)
            .finish()
    }
}
