//! [`AccessOptions`]: a server's users, super user and four-letter words. [`Server::reload_access`] replaces them while
//! the server runs.
//!
//! A replacement is atomic, so no connection sees half of it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::auth::Policy;
use super::peer::PeerAddress;
use super::{Server, ServerOptions};
use crate::model::error::{Error, Result};
use crate::model::identity::{Identity, Network};
use crate::wire::admin::Whitelist;

/// Options of a server that can be replaced while it runs.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use lockkeeper_store::{AccessOptions, Server, ServerOptions, Store};
///
/// let options = ServerOptions::new().listen("127.0.0.1:0".parse()?).require_auth(true);
/// let server = Server::bind(&Store::memory(), options).await?;
/// let access = AccessOptions::new()
///     .user("orders:RNaA5vGj6VI4/HDC9/IRG5UrexI=")?
///     .four_letter_words("srvr,ruok")?;
/// // Disconnects all clients that have proved an identity other than `orders`. They cannot authenticate again.
/// server.reload_access(access);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct AccessOptions {
    users: Vec<Identity>,
    superuser: Option<Identity>,
    words: Whitelist,
    word_clients: WordClients,
}

impl AccessOptions {
    /// Returns the defaults: any user is accepted, there is no super user, and clients may send only the four-letter
    /// word `srvr`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a user, like [`ServerOptions::user`].
    ///
    /// # Errors
    /// [`Error::BadArguments`](crate::Error::BadArguments) if the text has another form.
    pub fn user(mut self, digest: &str) -> Result<Self> {
        self.users.push(user(digest)?);
        Ok(self)
    }

    /// Sets the super user, like [`StoreOptions::super_digest`](crate::StoreOptions::super_digest).
    ///
    /// # Errors
    /// [`Error::BadArguments`](crate::Error::BadArguments) if the text has another form.
    pub fn super_digest(mut self, digest: &str) -> Result<Self> {
        self.superuser = Some(user(digest)?);
        Ok(self)
    }

    /// Sets the four-letter words that are answered, like [`ServerOptions::four_letter_words`].
    ///
    /// # Errors
    /// [`Error::BadArguments`](crate::Error::BadArguments) for an unknown word.
    pub fn four_letter_words(mut self, words: &str) -> Result<Self> {
        self.words = Whitelist::parse(words).map_err(Error::BadArguments)?;
        Ok(self)
    }

    /// Sets the clients whose four-letter words are answered, like [`ServerOptions::four_letter_words_from`].
    ///
    /// # Errors
    /// [`Error::BadArguments`](crate::Error::BadArguments) if the text has another form.
    pub fn four_letter_words_from(mut self, clients: &str) -> Result<Self> {
        self.word_clients = WordClients::parse(clients)?;
        Ok(self)
    }
}

pub(super) fn user(digest: &str) -> Result<Identity> {
    Identity::written_digest(digest).ok_or_else(|| {
        Error::BadArguments("a user is given as user:base64(sha1(user:password))".into())
    })
}

/// Addresses of the clients whose four-letter words are answered. `None` means all clients.
#[derive(Clone, Debug, Default)]
pub(super) struct WordClients(Option<Vec<WordClient>>);

#[derive(Clone, Debug)]
enum WordClient {
    Network(Arc<Network>),
    Unix,
}

impl WordClients {
    pub(super) fn parse(text: &str) -> Result<Self> {
        if text.trim() == "*" {
            return Ok(Self(None));
        }
        let client = |text: &str| {
            match text.trim() {
            "unix" => Ok(WordClient::Unix),
            network => Network::parse(network)
                .map(|network| WordClient::Network(Arc::new(network)))
                .ok_or_else(|| {
                    Error::BadArguments(format!(
                        "\"{network}\" is no client: expected an address or a network, as 10.0.0.0/8, unix for the Unix \
                         socket, or * for all", network = network.escape_debug()))
                }),
        }
        };
        let clients = text.split(',').filter(|part| !part.trim().is_empty());
        Ok(Self(Some(clients.map(client).collect::<Result<_>>()?)))
    }

    fn has(&self, peer: PeerAddress) -> bool {
        let Some(clients) = &self.0 else { return true };
        let address: Option<IpAddr> = match peer {
            PeerAddress::Tcp(address) => Some(address.ip().to_canonical()),
            PeerAddress::Unix(_) => None,
        };
        clients.iter().any(|client| match (client, address) {
            (WordClient::Network(network), Some(address)) => network.has(address),
            (WordClient::Unix, None) => true,
            _ => false,
        })
    }
}

pub(super) struct Access {
    policy: RwLock<Arc<Policy>>,
    generation: AtomicU64,
    /// Prevents two concurrent replacements from mixing.
    replacing: Mutex<()>,
}

impl Access {
    pub(super) fn new(options: &ServerOptions, superuser: Option<Identity>) -> Self {
        let policy = Policy {
            generation: 0,
            requires_auth: options.require_auth,
            users: options.users.clone(),
            superuser,
            words: options.words.clone(),
            word_clients: options.word_clients.clone(),
        };
        Self {
            policy: RwLock::new(Arc::new(policy)),
            generation: AtomicU64::new(0),
            replacing: Mutex::default(),
        }
    }

    pub(super) fn policy(&self) -> Arc<Policy> {
        self.policy.read().clone()
    }

    pub(super) fn is_current(&self, generation: u64) -> bool {
        self.generation.load(Ordering::Acquire) == generation
    }
}

impl Policy {
    pub(super) fn answers_words_of(&self, peer: PeerAddress) -> bool {
        self.word_clients.has(peer)
    }
}

impl Server {
    /// Replaces the users, super user and four-letter words for all clients.
    ///
    /// Existing sessions keep their locks. If a connection has proved an identity that is removed, the server closes
    /// the connection before it executes the connection's next request. The client's session then ends with its
    /// timeout, or immediately with [`kick`](Self::kick).
    pub fn reload_access(&self, access: AccessOptions) {
        let shared = &self.shared;
        let replacing = shared.access.replacing.lock();
        let former = shared.access.policy();
        let generation = former.generation + 1;
        // Update the store first, so that the former super user's credentials grant nothing from here on.
        shared.remote.set_superuser(access.superuser.clone());
        *shared.access.policy.write() = Arc::new(Policy {
            generation,
            requires_auth: former.requires_auth,
            users: access.users,
            superuser: access.superuser,
            words: access.words,
            word_clients: access.word_clients,
        });
        // Store the generation after the policy and with `Release`, so that a connection that sees this generation also
        // sees its policy.
        shared
            .access
            .generation
            .store(generation, Ordering::Release);
        drop(replacing);
        // Wake idle connections. Otherwise they would not notice the new policy before their next event.
        for connection in shared.table.each() {
            connection.wake();
        }
    }
}
