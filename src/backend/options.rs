//! [`ConnectOptions`]: timeouts, credentials and defaults of a client's sessions.

use std::fmt;
use std::time::Duration;

use super::DEFAULT_TICK;
use crate::model::acl::Acl;
use crate::model::error::{Error, Result};
use crate::model::types::{HumanDuration, MAX_SESSION_TIMEOUT};
use crate::tls::ClientTls;

/// Options of a [client](crate::Client). They apply to the client's first session, and to every session that replaces a
/// lost one.
///
/// A [`Connector`](crate::Connector) reads the options with the methods that start with `get_`.
///
/// The setters do not check their arguments. Connecting fails with [`Error::BadArguments`] if an option is out of
/// bounds. The `Debug` output leaves out secrets.
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
    /// Returns the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long the store keeps the session without a sign of life from the client. When the session ends, the
    /// store deletes its locks and other ephemeral znodes. With a short timeout, a dead client's locks become free
    /// soon. With a long timeout, the session survives longer pauses of the process and longer network outages.
    ///
    /// The default is 15 s. A store of this process (`memory:`, `file:`) has no timeout by default, so a session ends
    /// only when its client ends it.
    ///
    /// The store replaces a timeout outside its bounds with the nearest allowed one. The bounds are 4 s to 40 s by
    /// default, and 2 to 20 ticks for ZooKeeper. [`SessionStatus::timeout`](crate::SessionStatus::timeout) returns the
    /// result. Connecting fails with [`Error::BadArguments`] if the timeout is below 1 ms or above 2,147,483,647 ms
    /// (24.8 days).
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = Some(timeout);
        self
    }

    /// Sets the time for which the client tries to connect before it fails with [`Error::ConnectFailed`] (10 s by
    /// default). The time applies to the first session, and again to each replacement of a lost session. Closing a
    /// session also waits at most this long for the server's answer.
    ///
    /// If a server accepted the connection but stayed silent until the end, the client spends up to 4 s more to find
    /// out which other protocol the server speaks.
    ///
    /// The bounds are the same as for [`session_timeout`](Self::session_timeout). A store of this process ignores this
    /// timeout.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Adds an identity that each session proves to the store. For the scheme `digest`, the secret is `user:password`.
    ///
    /// Connecting fails with [`Error::AuthFailed`] if the store refuses the proof or does not know the scheme. A store
    /// of this process knows only the scheme `digest`. It accepts any password, because it has no list of users. On etcd,
    /// an identity is a user of etcd. A session has at most one there, with the scheme `digest`.
    #[must_use]
    pub fn auth(mut self, scheme: impl Into<String>, secret: impl Into<Vec<u8>>) -> Self {
        self.auth.push((scheme.into(), secret.into()));
        self
    }

    /// Sets the access control list of the znodes that recipes and typed methods create. The default list allows
    /// everything to every client. Existing znodes keep their lists.
    ///
    /// All clients of a lock need the permissions to read, create and delete below the lock's path. A list with the
    /// scheme `auth` stands for the session's identities. If the session has no identity (see [`auth`](Self::auth)),
    /// the store refuses each create with [`Error::InvalidAcl`]. etcd has no such lists, so connecting to it with a list
    /// fails with [`Error::Unimplemented`].
    #[must_use]
    pub fn acl(mut self, acl: Acl) -> Self {
        self.acl = acl;
        self
    }

    /// Creates the znodes of the chroot (the path at the end of a `lockkeeper://` or `zookeeper://` URL) if they are
    /// missing. They are persistent and get the access control list set by [`acl`](Self::acl). Without this option,
    /// connecting fails with [`Error::NoChroot`] if the chroot does not exist.
    #[must_use]
    pub fn create_chroot(mut self) -> Self {
        self.create_chroot = true;
        self
    }

    /// Connects to servers only with TLS, even if the URL does not ask for TLS. A URL that asks for TLS
    /// (`lockkeeper+tls://`, `zookeeper+tls://`) needs this option, because the option names the certificate authority
    /// that verifies the server. A store of this process ignores this option.
    ///
    /// Connecting fails with [`Error::Tls`] if a certificate or key cannot be used. It also fails with this error if
    /// the URL's only server does not speak TLS, refuses the client's certificate, or presents an untrusted
    /// certificate. In a build without the feature `tls`, connecting fails with [`Error::Target`].
    #[must_use]
    pub fn tls(mut self, tls: ClientTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets whether a session over a Unix socket (`lockkeeper+unix://`) ends immediately when the process that opened
    /// it exits. The default is true, so a killed process's locks are free within a millisecond. Pass false in a
    /// process that hands its session to another process. The URL parameter `?end_with_process=false` has the same
    /// effect.
    ///
    /// The exit of a child process, a closed connection, a stopped process (`SIGSTOP`) and an exec do not end the
    /// session. The server watches the process only on Linux, and only if the process is in the server's pid namespace,
    /// is connected directly, and is visible to the server in /proc. Otherwise the session ends after its timeout.
    #[must_use]
    pub fn end_with_process(mut self, end: bool) -> Self {
        self.end_with_process = end;
        self
    }

    /// Sets the tick (`tickTime`) of a ZooKeeper ensemble (2 s by default, like ZooKeeper's). The tick has no effect on
    /// sessions at a single server.
    ///
    /// Set the tick to the servers' value. If it is shorter, a client may consider a lock held after losing it. If it
    /// is longer, the first lock after an idle time is granted later. The bounds are the same as for
    /// [`session_timeout`](Self::session_timeout).
    #[must_use]
    pub fn ensemble_tick(mut self, tick: Duration) -> Self {
        self.ensemble_tick = tick;
        self
    }

    /// Adds a pattern of contenders' names, for a queue that is shared with a client library whose names the recipes do
    /// not know. An ephemeral child is a contender if its name ends in `before_number` followed by a sequence number.
    /// The empty pattern matches every name that ends in a sequence number.
    ///
    /// The names that this library, Curator, kazoo, go-zookeeper and ZooKeeper's own lock use are built in. All clients
    /// of a queue need the same patterns. A client that does not recognize a contender may acquire the lock while that
    /// contender holds it.
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

    /// Returns the schemes and secrets added with [`auth`](Self::auth), in the order of the calls.
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

    /// Returns the TLS options set with [`tls`](Self::tls).
    pub fn get_tls(&self) -> Option<&ClientTls> {
        self.tls.as_ref()
    }

    /// Returns the [`ensemble_tick`](Self::ensemble_tick).
    pub fn get_ensemble_tick(&self) -> Duration {
        self.ensemble_tick
    }

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
        // A digit at the end of the pattern would be read as part of the sequence number, so the pattern could match no
        // name.
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

/// ZooKeeper's protocol has timeouts in whole milliseconds. A shorter timeout would be sent as 0, and a server reads 0
/// as a request for its own minimum.
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
