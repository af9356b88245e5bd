//! [`connect`] and the [`Client`] that it returns.

use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::task::coop;

use crate::backend::{Backend, ConnectOptions, Connector, Flushed, LAST_DROP_LIMIT};
#[cfg(feature = "client")]
use crate::client::served::Served;
#[cfg(feature = "client")]
use crate::client::served::socket::Endpoint;
use crate::client::session::Session;
use crate::client::target::{ServerKind, Target, TargetKind};
use crate::engine::Store;
use crate::model::error::{Error, Result, TargetError};
use crate::model::path::ZnodePath;
use crate::model::types::HumanDuration;
use crate::runtime::clock::Clock;

/// Connects to the store at a URL, with the default options.
///
/// # Errors
/// [`Error::Target`] for a bad URL. [`Error::ConnectFailed`] if no server answers within the connect timeout.
/// [`Error::NoChroot`] if the URL's chroot does not exist. [`Error::Forked`] if this process was forked, without exec,
/// from a process that had already used this library.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let client = lockkeeper_store::connect("memory:").await?;
/// # client.close().await?;
/// # Ok::<(), lockkeeper_store::Error>(()) }).unwrap();
/// ```
pub async fn connect<T>(target: T) -> Result<Client>
where
    T: TryInto<Target>,
    T::Error: Into<TargetError>,
{
    connect_with(target, ConnectOptions::new()).await
}

/// Connects to the store at a URL.
///
/// # Errors
/// The errors of [`connect`]. [`Error::BadArguments`] for invalid options. [`Error::Tls`] if a certificate cannot be
/// used or is refused.
pub async fn connect_with<T>(target: T, options: ConnectOptions) -> Result<Client>
where
    T: TryInto<Target>,
    T::Error: Into<TargetError>,
{
    Error::if_forked()?;
    let target = target
        .try_into()
        .map_err(|error| Error::Target(error.into()))?;
    // Open the store on another thread, because recovery reads the whole log and would block the caller's executor.
    if let TargetKind::File { path } = &target.0 {
        let store = Store::file_aside(path.clone()).await?;
        return store.connect_with(options).await;
    }
    Client::open(connector(&target)?, target.to_string(), options).await
}

pub(crate) fn connector(target: &Target) -> Result<Arc<dyn Connector>> {
    match &target.0 {
        TargetKind::Memory { name } => Ok(Store::named(name).connector()),
        TargetKind::File { path } => Ok(Store::file(path)?.connector()),
        TargetKind::Served {
            kind: ServerKind::Etcd,
            hosts,
            chroot,
            tls,
        } => etcd(target, hosts, *tls, chroot),
        #[cfg(feature = "client")]
        TargetKind::Served {
            kind,
            hosts,
            chroot,
            tls,
        } => {
            let endpoint = Endpoint::tcp(hosts.clone(), *tls, *kind == ServerKind::ZooKeeper);
            Ok(Arc::new(Served::new(endpoint, chroot, target.to_string())))
        }
        #[cfg(all(feature = "client", unix))]
        TargetKind::ServedUnix {
            path,
            chroot,
            ends_with_process,
        } => {
            let endpoint = Endpoint::unix(path.clone(), *ends_with_process);
            Ok(Arc::new(Served::new(endpoint, chroot, target.to_string())))
        }
        #[cfg(all(feature = "client", not(unix)))]
        TargetKind::ServedUnix { path, .. } => Err(Error::Target(TargetError::BadPart {
            url: target.to_string(),
            part: "socket",
            text: path.display().to_string(),
            reason: "this system has no Unix sockets: use lockkeeper://",
        })),
        #[cfg(not(feature = "client"))]
        TargetKind::Served { .. } | TargetKind::ServedUnix { .. } => {
            Err(Error::Target(TargetError::FeatureMissing {
                url: target.to_string(),
                feature: "client",
            }))
        }
    }
}

#[cfg(feature = "etcd")]
fn etcd(
    target: &Target,
    hosts: &[String],
    requires_tls: bool,
    chroot: &ZnodePath,
) -> Result<Arc<dyn Connector>> {
    use crate::client::etcd::Etcd;
    let (hosts, url) = (hosts.to_vec(), target.to_string());
    Ok(Arc::new(Etcd::new(hosts, requires_tls, chroot, url)))
}

#[cfg(not(feature = "etcd"))]
fn etcd(target: &Target, _: &[String], _: bool, _: &ZnodePath) -> Result<Arc<dyn Connector>> {
    Err(Error::Target(TargetError::FeatureMissing {
        url: target.to_string(),
        feature: "etcd",
    }))
}

impl Store {
    /// Opens a client with the default options.
    ///
    /// # Errors
    /// [`Error::LimitReached`] when there are too many sessions.
    pub async fn connect(&self) -> Result<Client> {
        self.connect_with(ConnectOptions::new()).await
    }

    /// Opens a client.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect), and [`Error::BadArguments`] for invalid options.
    pub async fn connect_with(&self, options: ConnectOptions) -> Result<Client> {
        Client::open(self.connector(), self.target().to_owned(), options).await
    }
}

/// A client of one store. It opens a new [`Session`] when the last session has ended, so recipes keep working. Clones
/// share the same client.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    target: String,
    connector: Arc<dyn Connector>,
    options: ConnectOptions,
    /// The first session. While it is alive, callers get it without locking `current`. Most clients never open another
    /// session.
    first: Session,
    current: Mutex<Current>,
    /// Held while a session is opened, so that concurrent callers open only one session.
    opening: tokio::sync::Mutex<()>,
    store_id: OnceLock<String>,
}

struct Current {
    session: Session,
    closed: bool,
}

impl Client {
    /// Opens a client and its first session, for custom stores and wrappers. `target` names the store in errors.
    ///
    /// # Errors
    /// The connector's errors, and [`Error::BadArguments`] for invalid options.
    pub async fn open(
        connector: Arc<dyn Connector>,
        target: String,
        options: ConnectOptions,
    ) -> Result<Self> {
        Error::if_forked()?;
        options.check()?;
        let backend = connector.open(&options).await?;
        let store_id = OnceLock::new();
        if let Some(id) = backend.store_id() {
            let _ = store_id.set(id.to_owned());
        }
        let session = Session::configured(backend, &options);
        Ok(Self(Arc::new(Inner {
            target,
            connector,
            first: session.clone(),
            current: Mutex::new(Current {
                session,
                closed: false,
            }),
            options,
            opening: tokio::sync::Mutex::new(()),
            store_id,
        })))
    }

    /// Returns the store's URL.
    pub fn target(&self) -> &str {
        &self.0.target
    }

    /// Returns the id of the store that issued this client's fencing tokens. `None` if the store has no id.
    pub fn store_id(&self) -> Option<&str> {
        self.0.store_id.get().map(String::as_str)
    }

    /// Returns the clock of the client's sessions.
    pub fn clock(&self) -> &Clock {
        self.0.connector.clock()
    }

    /// Returns the current session's number of [pending clean-ups](Session::pending_cleanups).
    pub fn pending_cleanups(&self) -> usize {
        self.current_session().pending_cleanups()
    }

    /// Returns the last session, even if it has ended.
    pub fn current_session(&self) -> Session {
        self.0.current.lock().session.clone()
    }

    /// Returns the current session, or opens a new one if it has ended.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// The errors of [`connect`]. [`Error::SessionClosed`] after [`close`](Self::close). [`Error::StoreChanged`] if the
    /// URL now leads to another store.
    pub async fn session(&self) -> Result<Session> {
        // Yield to other tasks now and then, because a caller may loop over calls that are always ready.
        coop::consume_budget().await;
        match self.live_session()? {
            Some(session) => Ok(session),
            // Boxed, because reopening is rare and would make every caller's future larger.
            None => Box::pin(self.reopen()).await,
        }
    }

    async fn reopen(&self) -> Result<Session> {
        let _one_at_a_time = self.0.opening.lock().await;
        // Another caller may have opened a session while we waited for the lock.
        if let Some(session) = self.live_session()? {
            return Ok(session);
        }
        let backend = self.0.connector.open(&self.0.options).await?;
        self.check_store_id(&backend)?;
        let session = Session::configured(backend, &self.0.options);
        tracing::info!(target_store = %self.0.target, session = %session.id(), "session opened");
        let mut current = self.0.current.lock();
        // `close` ran in the meantime. Returning here drops the new session, which closes it.
        if current.closed {
            return Err(Error::SessionClosed {
                session: current.session.id(),
            });
        }
        current.session = session.clone();
        Ok(session)
    }

    /// Returns the current session if it is alive, without opening another one.
    ///
    /// # Errors
    /// [`Error::SessionClosed`] after [`close`](Self::close). [`Error::Forked`] in a forked process.
    pub fn live_session(&self) -> Result<Option<Session>> {
        Error::if_forked()?;
        if self.0.first.status().is_alive() {
            return Ok(Some(self.0.first.clone()));
        }
        let current = self.0.current.lock();
        if current.closed {
            return Err(Error::SessionClosed {
                session: current.session.id(),
            });
        }
        let session = &current.session;
        Ok(session.status().is_alive().then(|| session.clone()))
    }

    /// Refuses a different store, because fencing tokens of two stores cannot be compared.
    fn check_store_id(&self, backend: &Arc<dyn Backend>) -> Result<()> {
        let Some(found) = backend.store_id() else {
            return Ok(());
        };
        let expected = self.0.store_id.get_or_init(|| found.to_owned());
        if expected == found {
            return Ok(());
        }
        Err(Error::StoreChanged {
            target: self.0.target.clone(),
            expected: expected.clone(),
            found: found.to_owned(),
        })
    }

    /// Closes the session, which releases its locks immediately. The client opens no other session after this call.
    ///
    /// # Errors
    /// [`Error::ConnectionLoss`] if the store cannot be reached. The locks are then released only when the session
    /// expires.
    pub async fn close(&self) -> Result<()> {
        let session = {
            let mut current = self.0.current.lock();
            // Set the flag before closing the session. Otherwise another caller could open a new session in between.
            current.closed = true;
            current.session.clone()
        };
        session.close().await
    }

    /// Returns the connector, for wrappers and tests.
    pub fn connector(&self) -> &Arc<dyn Connector> {
        &self.0.connector
    }
}

impl Drop for Inner {
    /// Waits a limited time for unsent clean-ups, because the last handle is often dropped as the process exits.
    fn drop(&mut self) {
        let session = &self.current.get_mut().session;
        // Do not wait if the flush was skipped or timed out, because waiting would only delay the exit of the process.
        if session.flush() != Flushed::Written || session.pending_cleanups() == 0 {
            return;
        }
        // On a single-threaded runtime, this thread also reads the replies. It is about to block, so let another thread
        // read them.
        session.backend().read_elsewhere();
        if !session.status().wait_for_cleanups(LAST_DROP_LIMIT) {
            let (session, limit) = (session.id(), LAST_DROP_LIMIT);
            tracing::warn!(%session, limit = %HumanDuration(limit), "deletes of lock entries not written in time");
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("target", &self.0.target)
            .field("session", &self.current_session())
            .finish()
    }
}
