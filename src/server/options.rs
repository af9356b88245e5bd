//! [`ServerOptions`]: where a server listens, whom it lets in, and how much of everything.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::ServerError;
use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::size::MAX_FRAME_BYTES;
use crate::wire::LARGEST_FRAME_BYTES;
use crate::wire::admin::Whitelist;

/// How a store is served. Safe as it is: this machine only, and limits on everything.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// `None`: TLS alone.
    pub(super) listen: Option<SocketAddr>,
    pub(super) words: Whitelist,
    pub(super) require_auth: bool,
    /// Whose digests count; empty: anybody's.
    pub(super) users: Vec<Identity>,
    pub(super) insecure: bool,
    pub(super) limits: Limits,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<super::TlsOptions>,
    #[cfg(feature = "tls")]
    pub(super) tls_listen: Option<SocketAddr>,
}

/// How much of each there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) connections: usize,
    /// `None`: three quarters of all, so that one address leaves places to others.
    pub(super) connections_per_address: Option<usize>,
    pub(super) half_open: usize,
    pub(super) handshake: Duration,
    pub(super) frame_bytes: usize,
    pub(super) in_flight: usize,
    pub(super) outgoing_bytes: usize,
    pub(super) all_outgoing_bytes: usize,
    pub(super) unfinished_bytes: usize,
}

/// ZooKeeper's port.
const DEFAULT_PORT: u16 = 2181;

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: Some((IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT).into()),
            words: Whitelist::default(),
            require_auth: false,
            users: Vec::new(),
            insecure: false,
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
    /// The defaults: `127.0.0.1:2181`; the four-letter word `srvr` alone; no proof of identity asked for; at most
    /// 16,384 connections, from one address three quarters of all, 1,024 of them half open; 10 s for a handshake;
    /// frames of at most 1,048,575 bytes; 1,024 requests taken up at once from one connection; 16 MiB
    /// that a client has not read, and 1 GiB that all of them have not; 256 MiB of requests that have not come to their end.
    pub fn new() -> Self {
        Self::default()
    }

    /// The address to listen on; port 0 takes a free one, which
    /// [`Server::local_addr`](super::Server::local_addr) tells.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(address);
        self
    }

    /// The four-letter words that are answered, as in ZooKeeper's `4lw.commands.whitelist`: `srvr,ruok` or `*`.
    ///
    /// # Errors
    /// [`Error::BadArguments`](crate::Error::BadArguments) for a word that there is not.
    pub fn four_letter_words(mut self, words: &str) -> Result<Self> {
        self.words = Whitelist::parse(words).map_err(Error::BadArguments)?;
        Ok(self)
    }

    /// Lets only those do anything who have proved who they are (ZooKeeper's `enforce.auth`): with the
    /// digest of a name and password, or by a client certificate. Without [`user`](Self::user) any
    /// name and password do, as with ZooKeeper: they then only say who is who.
    ///
    /// A session for which nobody has proved an identity ends with its connection.
    #[must_use]
    pub fn require_auth(mut self, require: bool) -> Self {
        self.require_auth = require;
        self
    }

    /// Somebody whose digest counts, as `user:base64(sha1(user:password))`, the form that ZooKeeper's
    /// tools print. With any, no other digest does, but for the store's super user's.
    ///
    /// # Errors
    /// [`Error::BadArguments`](crate::Error::BadArguments) for what has not this form.
    pub fn user(mut self, digest: &str) -> Result<Self> {
        let user = Identity::written_digest(digest).ok_or_else(|| {
            Error::BadArguments("a user stands as user:base64(sha1(user:password))".into())
        })?;
        self.users.push(user);
        Ok(self)
    }

    /// Lets the server listen on an address that others can reach, although it asks nobody who they are.
    #[must_use]
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = insecure;
        self
    }

    /// How many connections there may be at once. One more is closed at once.
    #[must_use]
    pub fn max_connections(mut self, limit: usize) -> Self {
        self.limits.connections = limit;
        self
    }

    /// Limit of connections from one address, of IPv6 from one network of 64 bits; three quarters of all unless set.
    #[must_use]
    pub fn max_connections_per_address(mut self, limit: usize) -> Self {
        self.limits.connections_per_address = Some(limit);
        self
    }

    /// Limit of connections that are half open: that have no session yet, or no proof of identity where that is
    /// required. When another comes, the oldest of the address that has most of them is closed (of an IPv6 address the
    /// first 64 bits count), so that fewer addresses than this limit cannot keep out a client of another one.
    #[must_use]
    pub fn max_half_open(mut self, limit: usize) -> Self {
        self.limits.half_open = limit.max(1);
        self
    }

    /// How long a connection has until it has a session (and, where that is asked for, an identity).
    #[must_use]
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.limits.handshake = timeout;
        self
    }

    /// The limits that [`max_frame_bytes`](Self::max_frame_bytes) takes: what is longer, no store could keep.
    pub const FRAME_BYTES: RangeInclusive<usize> = 1 << 10..=MAX_FRAME_BYTES;

    /// The longest frame that a client may send, in bytes, within [`FRAME_BYTES`](Self::FRAME_BYTES): with any
    /// other limit the server does not start. A longer frame closes its connection.
    #[must_use]
    pub fn max_frame_bytes(mut self, limit: usize) -> Self {
        self.limits.frame_bytes = limit;
        self
    }

    /// How many requests of one connection are taken up at once; the others wait in its socket.
    #[must_use]
    pub fn max_in_flight(mut self, limit: usize) -> Self {
        self.limits.in_flight = limit.max(1);
        self
    }

    /// Limit of the bytes held of requests whose end has not come, of all connections together; up to 16 KiB of
    /// each connection are not counted. Beyond it the connection is closed whose request has been coming
    /// for longest.
    #[must_use]
    pub fn max_unfinished_bytes(mut self, limit: usize) -> Self {
        self.limits.unfinished_bytes = limit.max(4 << 20);
        self
    }

    /// How many bytes of answers and events may wait for a client to read them. Beyond this its
    /// connection is closed; its session goes on, for its timeout.
    #[must_use]
    pub fn max_outgoing_bytes(mut self, limit: usize) -> Self {
        self.limits.outgoing_bytes = limit.max(64 << 10);
        self
    }

    /// Limit of the bytes of answers and events that wait for all clients together to read them, and of requests that
    /// wait for that. Beyond this connections are closed, first those that have left their bytes unread for longest: never
    /// one that reads what it asks for. Their sessions go on, for their timeouts.
    #[must_use]
    pub fn max_all_outgoing_bytes(mut self, limit: usize) -> Self {
        self.limits.all_outgoing_bytes = limit;
        self
    }

    /// Checks that nobody gets in who should not, that options which belong together are given
    /// together, and that a store can keep what the limits let in.
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
        match self.addresses().next() {
            Some(_) => Ok(()),
            None => Err(ServerError::NoAddress),
        }
    }

    /// All addresses to listen on.
    fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        #[cfg(feature = "tls")]
        let secured = self.tls_listen;
        #[cfg(not(feature = "tls"))]
        let secured = None;
        self.listen.into_iter().chain(secured)
    }

    /// `asks_clients`: whether whoever connects there needs a certificate.
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
