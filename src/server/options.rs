//! [`ServerOptions`]: addresses, authentication and limits of a server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::access::{self, WordClients};
use super::audit::SharedSink;
use super::{AuditSink, ServerError};
use crate::model::error::{Error, Result};
use crate::model::identity::Identity;
use crate::model::size::MAX_FRAME_BYTES;
use crate::wire::LARGEST_FRAME_BYTES;
use crate::wire::admin::Whitelist;

/// Options of a [`Server`](super::Server). The defaults are safe: only this machine can connect, and every resource has
/// a limit.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    pub(super) listen: Option<SocketAddr>,
    pub(super) unix_listen: Option<PathBuf>,
    pub(super) unix_mode: u32,
    pub(super) watch_processes: bool,
    pub(super) words: Whitelist,
    pub(super) word_clients: WordClients,
    pub(super) audit: SharedSink,
    pub(super) require_auth: bool,
    /// If empty, every digest is accepted.
    pub(super) users: Vec<Identity>,
    pub(super) insecure: bool,
    pub(super) busy_poll: Duration,
    pub(super) limits: Limits,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<super::TlsOptions>,
    #[cfg(feature = "tls")]
    pub(super) tls_listen: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) connections: usize,
    /// `None` means three quarters of `connections`.
    pub(super) connections_per_address: Option<usize>,
    pub(super) half_open: usize,
    pub(super) handshake: Duration,
    pub(super) frame_bytes: usize,
    pub(super) in_flight: usize,
    pub(super) outgoing_bytes: usize,
    pub(super) all_outgoing_bytes: usize,
    pub(super) unfinished_bytes: usize,
}

const DEFAULT_MODE: u32 = 0o600;

const DEFAULT_PORT: u16 = 2181;

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: Some((IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT).into()),
            unix_listen: None,
            unix_mode: DEFAULT_MODE,
            watch_processes: true,
            words: Whitelist::default(),
            word_clients: WordClients::default(),
            audit: SharedSink::default(),
            require_auth: false,
            users: Vec::new(),
            insecure: false,
            busy_poll: Duration::ZERO,
            limits: Limits {
                connections: 16_384,
                connections_per_address: None,
                half_open: 1_024,
                handshake: Duration::from_secs(10),
                frame_bytes: LARGEST_FRAME_BYTES,
                in_flight: 1_024,
                outgoing_bytes: 16 << 20,
                all_outgoing_bytes: 1 << 30,
                unfinished_bytes: 256 << 20,
            },
            #[cfg(feature = "tls")]
            tls: None,
            #[cfg(feature = "tls")]
            tls_listen: None,
        }
    }
}

impl Limits {
    pub(super) fn connections_per_address(&self) -> usize {
        let most = self.connections;
        let default = most - most / 4;
        self.connections_per_address.unwrap_or(default)
    }
}

impl ServerOptions {
    /// Returns the defaults:
    ///
    /// - Address `127.0.0.1:2181`, no authentication required, only the four-letter word `srvr`.
    /// - At most 16,384 connections, at most three quarters of them from one address, and 1,024 of them half open.
    /// - 10 s for a handshake, frames of at most 1,048,575 bytes, 1,024 requests in flight per connection.
    /// - 16 MiB of unread replies per client and 1 GiB in total, 256 MiB of incomplete requests.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the address for TCP connections without TLS. For port 0, [`Server::local_addr`](super::Server::local_addr)
    /// returns the chosen port.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    /// Makes the server listen on a Unix socket in addition to the other addresses. The server replaces a socket file
    /// left behind by a killed server, and removes its own file when it stops. It does not start if another server
    /// listens on the socket, if the path is a file of another kind, or if the path is too long (107 bytes on Linux).
    ///
    /// Limits per address apply per user id instead. The user id also proves an identity such as `uid:1000`, which
    /// access control lists can name and which satisfies [`require_auth`](Self::require_auth). Linux reports the id
    /// 65534 (`nobody`) for all unknown users, so this id proves nothing.
    #[must_use]
    pub fn unix_listen(mut self, path: impl Into<PathBuf>) -> Self {
        self.unix_listen = Some(path.into());
        self
    }

    /// Sets the permissions of the Unix socket's file, such as `0o660`. Connecting requires write permission. The
    /// default `0o600` admits only the server's own user and root.
    #[must_use]
    pub fn unix_mode(mut self, mode: u32) -> Self {
        self.unix_mode = mode;
        self
    }

    /// Sets whether the session of a client on the Unix socket ends when the client's process exits (Linux only,
    /// default true). Otherwise the session ends with its timeout. A client can opt out with
    /// [`ConnectOptions::end_with_process`]. Each watched process needs one more open file.
    ///
    /// [`ConnectOptions::end_with_process`]: crate::ConnectOptions::end_with_process
    #[must_use]
    pub fn watch_processes(mut self, watch: bool) -> Self {
        self.watch_processes = watch;
        self
    }

    /// Serves only the Unix socket.
    #[must_use]
    pub fn unix_only(mut self) -> Self {
        self.listen = None;
        #[cfg(feature = "tls")]
        {
            (self.tls, self.tls_listen) = (None, None);
        }
        self
    }

    /// Sets the four-letter words that the server answers, such as `srvr,ruok` or `*` (ZooKeeper's
    /// `4lw.commands.whitelist`).
    ///
    /// # Errors
    /// [`Error::BadArguments`](crate::Error::BadArguments) for an unknown word.
    pub fn four_letter_words(mut self, words: &str) -> Result<Self> {
        self.words = Whitelist::parse(words).map_err(Error::BadArguments)?;
        Ok(self)
    }

    /// Sets the clients that may send four-letter words. `clients` lists addresses, networks and `unix` for the Unix
    /// socket, such as `127.0.0.1,::1,10.0.0.0/8,unix`. The default `*` means all clients.
    ///
    /// # Errors
    /// [`Error::BadArguments`](crate::Error::BadArguments) if the text has another form.
    pub fn four_letter_words_from(mut self, clients: &str) -> Result<Self> {
        self.word_clients = WordClients::parse(clients)?;
        Ok(self)
    }

    /// Sets the receiver of audit records. For example, a record says which client has deleted a znode, changed an
    /// access control list or failed to authenticate. There are no records of in-process actions, nor of locks released
    /// by the sessions that hold them.
    #[must_use]
    pub fn audit(mut self, sink: impl AuditSink) -> Self {
        self.audit = SharedSink(Some(Arc::new(sink)));
        self
    }

    /// Requires every client to authenticate (ZooKeeper's `enforce.auth`) with a digest, a client certificate or, over
    /// a Unix socket, the user id. If no [`user`](Self::user) is set, the server accepts any name and password, as
    /// ZooKeeper does. A digest then identifies a client, but proves nothing.
    ///
    /// A session without a proved identity ends with its connection.
    #[must_use]
    pub fn require_auth(mut self, require: bool) -> Self {
        self.require_auth = require;
        self
    }

    /// Adds a user as `user:base64(sha1(user:password))`, the form that ZooKeeper's tools print. If any user is set,
    /// the server accepts only the digests of the added users and of the store's super user.
    ///
    /// # Errors
    /// [`Error::BadArguments`](crate::Error::BadArguments) if the text has another form.
    pub fn user(mut self, digest: &str) -> Result<Self> {
        self.users.push(access::user(digest)?);
        Ok(self)
    }

    /// Allows the server to listen on an address that other machines can reach, even if no client has to authenticate.
    #[must_use]
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = insecure;
        self
    }

    /// Sets the limit of connections. At the limit, the server closes new connections immediately.
    #[must_use]
    pub fn max_connections(mut self, limit: usize) -> Self {
        self.limits.connections = limit;
        self
    }

    /// Sets the limit of connections from one IPv4 address, one 64-bit network of IPv6, or one user of the Unix socket.
    /// The default is three quarters of all connections.
    #[must_use]
    pub fn max_connections_per_address(mut self, limit: usize) -> Self {
        self.limits.connections_per_address = Some(limit);
        self
    }

    /// Sets the limit of half-open connections, which still lack a session or a required proof of identity. When a new
    /// connection would exceed the limit, the server closes the oldest half-open connection of the address that has the
    /// most of them. So an attacker with fewer addresses than this limit cannot keep out a client with another address.
    /// IPv6 addresses with the same first 64 bits count as one address.
    #[must_use]
    pub fn max_half_open(mut self, limit: usize) -> Self {
        self.limits.half_open = limit.max(1);
        self
    }

    /// Sets the time limit for a client to open a session and, if required, to prove an identity. The longest limit is
    /// ten years.
    #[must_use]
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        // A longer timeout could overflow the computation of a deadline.
        self.limits.handshake = timeout.min(Duration::from_secs(10 * 365 * 24 * 3_600));
        self
    }

    /// Allowed range of [`max_frame_bytes`](Self::max_frame_bytes), in bytes.
    pub const FRAME_BYTES: RangeInclusive<usize> = 1 << 10..=MAX_FRAME_BYTES;

    /// Sets the limit of a client's frame, in bytes. The server closes a connection that sends a longer frame. It does
    /// not start if the limit is outside [`FRAME_BYTES`](Self::FRAME_BYTES).
    #[must_use]
    pub fn max_frame_bytes(mut self, limit: usize) -> Self {
        self.limits.frame_bytes = limit;
        self
    }

    /// Sets the limit of unanswered requests of one connection. Further requests wait in the connection's socket.
    #[must_use]
    pub fn max_in_flight(mut self, limit: usize) -> Self {
        self.limits.in_flight = limit.max(1);
        self
    }

    /// Sets the memory limit for incomplete requests of all connections together, in bytes, at least 4 MiB. The first
    /// 16 KiB of each connection are not counted. Above the limit, the server closes the connection with the oldest
    /// incomplete request.
    #[must_use]
    pub fn max_unfinished_bytes(mut self, limit: usize) -> Self {
        self.limits.unfinished_bytes = limit.max(4 << 20);
        self
    }

    /// Sets the limit of unread replies and events of one client, in bytes, at least 64 KiB. Above the limit, the
    /// server closes the client's connection. The session stays until its timeout.
    #[must_use]
    pub fn max_outgoing_bytes(mut self, limit: usize) -> Self {
        self.limits.outgoing_bytes = limit.max(64 << 10);
        self
    }

    /// Sets the limit of unread replies and events of all clients together, in bytes. Requests that wait behind unread
    /// replies count too. Above the limit, the server closes the connections whose clients have left bytes unread for
    /// the longest time. Their sessions stay until their timeouts.
    #[must_use]
    pub fn max_all_outgoing_bytes(mut self, limit: usize) -> Self {
        self.limits.all_outgoing_bytes = limit;
        self
    }

    /// Sets how long the server polls its connections before a thread of its runtime sleeps, at most 10 ms. The
    /// default, zero, disables polling. If requests follow each other within that time, as with a contended lock,
    /// polling saves waking a sleeping core for each request. Polling uses up to one core, and takes time from other
    /// tasks on the same thread.
    ///
    /// `lockkeeper serve` polls for up to 100 µs on machines with more than one core.
    #[must_use]
    pub fn busy_poll(mut self, limit: Duration) -> Self {
        self.busy_poll = limit;
        self
    }

    pub(super) fn check(&self) -> Result<(), ServerError> {
        if !Self::FRAME_BYTES.contains(&self.limits.frame_bytes) {
            return Err(ServerError::FrameLimit {
                bytes: self.limits.frame_bytes,
                expected: Self::FRAME_BYTES,
            });
        }
        self.check_exposure(self.listen, false)?;
        #[cfg(feature = "tls")]
        self.check_tls(self.tls.as_ref())?;
        if let Some(path) = self.unix_listen.as_ref().filter(|_| self.unix_mode > 0o777) {
            return Err(ServerError::UnixSocket {
                path: path.clone(),
                reason: format!(
                    "{:#o} is no file mode: expected at most 0o777",
                    self.unix_mode
                ),
            });
        }
        match self.unix_listen.is_some() || self.addresses().next().is_some() {
            true => Ok(()),
            false => Err(ServerError::NoAddress),
        }
    }

    fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        #[cfg(feature = "tls")]
        let secured = self.tls_listen;
        #[cfg(not(feature = "tls"))]
        let secured = None;
        self.listen.into_iter().chain(secured)
    }

    /// `asks_clients` is true if clients need a certificate at this address.
    pub(super) fn check_exposure(
        &self,
        address: Option<SocketAddr>,
        asks_clients: bool,
    ) -> Result<(), ServerError> {
        let exposed = address.filter(|address| !address.ip().is_loopback());
        match exposed {
            Some(address) if !asks_clients && !self.require_auth && !self.insecure => {
                Err(ServerError::Exposed { address })
            }
            _ => Ok(()),
        }
    }
}
