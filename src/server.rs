//! The ZooKeeper server: [`Server`] serves a store to other processes with ZooKeeper's protocol, over TCP, TLS or a
//! Unix socket.
//!
//! Start reading at `connection.rs`, which shows how a request is served.

mod access;
mod admin;
mod audit;
mod auth;
mod busy_poll;
mod connection;
mod connection_entry;
mod connection_table;
mod drain;
mod error;
#[cfg(feature = "simulation")]
pub(crate) mod fuzz;
mod handshake;
mod listener;
mod log_throttle;
#[cfg(feature = "simulation")]
mod member;
#[cfg(feature = "metrics")]
mod metrics;
mod options;
mod peer;
#[cfg_attr(
    not(any(target_os = "linux", target_os = "android")),
    path = "server/no_process_watch.rs"
)]
mod process_watch;
mod protocol;
mod readiness;
mod request_counters;
mod sessions;
#[cfg(feature = "simulation")]
mod simulated;
mod stats;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod transport;
mod turn;
mod unfinished;
mod unix_socket;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use self::access::Access;
pub use self::access::AccessOptions;
use self::admin::{Admin, ListenAddresses};
use self::audit::Audit;
pub use self::audit::{AuditEvent, AuditOutcome, AuditRecord, AuditSink};
use self::auth::Penalties;
use self::busy_poll::BusyPoll;
use self::connection_entry::CloseRequest;
use self::connection_table::{ConnectionTable, TableLimits};
use self::drain::Drain;
pub use self::error::ServerError;
use self::listener::{Listener, ListenerKind, accept, listen};
#[cfg(feature = "simulation")]
pub(crate) use self::member::{MAX_FRAME_BYTES, MemberProtocol};
#[cfg(feature = "metrics")]
pub use self::metrics::register_process_metrics;
use self::options::Limits;
pub use self::options::ServerOptions;
use self::peer::PeerAddress;
use self::process_watch::{NotWatched, ProcessWatch};
pub use self::readiness::{NotReady, ServerMonitor};
pub use self::sessions::{KickOutcome, SessionInfo};
use self::stats::Sources;
#[cfg(feature = "tls")]
pub use self::tls::TlsOptions;
use self::turn::TurnLength;
use self::unfinished::Unfinished;
use self::unix_socket::SocketFile;
pub use self::unix_socket::SocketListener;
use crate::engine::{Remote, Store};
use crate::runtime::clock::Clock;

/// A server for any ZooKeeper client. The program that runs the server can also use the store in-process.
///
/// Dropping the server closes all connections immediately. [`shutdown`](Self::shutdown) first answers the requests that
/// have arrived. In both cases the sessions stay in the store.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use lockkeeper_store::{Server, ServerOptions, Store};
///
/// let store = Store::memory();
/// let here = store.connect().await?;
/// let options = ServerOptions::new().listen("127.0.0.1:0".parse()?);
/// let server = Server::bind(&store, options).await?;
/// if let Some(address) = server.local_addr() {
///     println!("any ZooKeeper client finds it at {address}");
/// }
/// server.shutdown().await;
/// # here.close().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[must_use = "dropping a server closes its connections"]
pub struct Server {
    plain: Option<SocketAddr>,
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
    unix: Option<SocketFile>,
    #[cfg(feature = "tls")]
    tls: Option<tls::TlsListener>,
}

const MAX_DRAIN_TIME: Duration = Duration::from_secs(5);

impl Server {
    /// Starts a server on the current tokio runtime, which must have IO and time enabled.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub async fn bind(store: &Store, options: ServerOptions) -> Result<Self, ServerError> {
        // Check the options before listening, so that a forbidden address is never open, not even for a moment.
        options.check()?;
        Handle::try_current().map_err(|_| ServerError::NoRuntime)?;
        let plain = options.listen.map(listen).transpose()?;
        #[cfg(feature = "tls")]
        let (secured, tls) = tls::TlsListener::listen(&options)?.unzip();
        let addresses = ListenAddresses {
            plain: plain.as_ref().map(|(_, address)| *address),
            #[cfg(feature = "tls")]
            tls: tls.as_ref().map(|tls| tls.address),
            #[cfg(not(feature = "tls"))]
            tls: None,
        };
        // Open the Unix socket last, so that a failed TCP listener leaves no socket file behind.
        let unix = options.unix_listen.as_deref();
        let unix = unix.map(|path| unix_socket::listen(path, options.unix_mode));
        let (unix_listener, unix) = unix.transpose()?.unzip();
        let shared = Arc::new(shared_state(store, options, addresses)?);
        shared.follow_processes();
        let mut server = Self {
            plain: addresses.plain,
            shared,
            tasks: Vec::new(),
            unix,
            #[cfg(feature = "tls")]
            tls,
        };
        #[cfg(feature = "tls")]
        if let Some((listener, secured)) = secured.zip(server.tls.as_ref()) {
            tracing::info!(address = %secured.address, "serving TLS");
            let kind = ListenerKind::Tls(secured.acceptor.clone());
            server.open(Listener::Tcp(listener, kind));
        }
        if let Some((listener, address)) = plain {
            tracing::info!(%address, "serving");
            server.open(Listener::Tcp(listener, ListenerKind::Plain));
        }
        if let Some((listener, file)) = unix_listener.zip(server.unix.as_ref()) {
            tracing::info!(path = %file.path().display(), "serving a Unix socket");
            server.open(Listener::Unix(listener));
        }
        server.poll_busily();
        if server.shared.audit.is_on() {
            let audit = server.shared.audit.clone();
            server.tasks.push(tokio::spawn(audit.sum_up()));
        }
        Ok(server)
    }

    fn open(&mut self, listener: Listener) {
        let accepting = tokio::spawn(accept(listener, self.shared.clone()));
        self.tasks.push(accepting);
    }

    fn poll_busily(&mut self) {
        let polling = self.shared.busy_poll.clone();
        if polling.is_enabled() {
            let polling = async move { polling.run().await };
            self.tasks.push(tokio::spawn(polling));
        }
    }

    /// Returns the address for TCP connections without TLS, or `None` if the server has none.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.plain
    }

    /// Returns the absolute path of the Unix socket, or `None` if the server has none.
    pub fn unix_path(&self) -> Option<&Path> {
        self.unix.as_ref().map(SocketFile::path)
    }

    /// Waits until the server has had no connection for `time` and its store has no session. A server that was started
    /// on demand can then be shut down. If a client connects before the shutdown, its connection is closed, and the
    /// client must start a new server.
    ///
    /// Cancel safe.
    pub async fn idle(&self, time: Duration) {
        let Shared { table, store, .. } = &*self.shared;
        loop {
            // Read the number of arrivals before checking for connections, so that a connection that arrives after the
            // check changes the number.
            let arrivals = table.arrivals();
            if table.connections() > 0 {
                table.emptied().await;
                continue;
            }
            store.clock().sleep(time).await;
            // A session without a connection may still hold locks until its timeout.
            if table.arrivals() == arrivals && store.counts().sessions == 0 {
                return;
            }
        }
    }

    /// Stops the server. It accepts no more connections, answers the requests that have arrived, and closes all
    /// connections after at most 5 s. The sessions stay in the store, so clients can reattach to them through another
    /// server of the store.
    ///
    /// Not cancel safe. Dropping the future closes all connections immediately.
    pub async fn shutdown(mut self) {
        self.stop_accepting();
        // The table now refuses new connections, including accepted ones that a listener has not added yet.
        self.shared.table.close(CloseRequest::Shutdown);
        let drained = tokio::time::timeout(MAX_DRAIN_TIME, self.shared.table.emptied()).await;
        if drained.is_err() {
            let connections = self.shared.table.connections();
            let reason = "the clients do not read their replies";
            tracing::warn!(connections, reason, "connections cut off at shutdown");
            self.shared.table.close(CloseRequest::Now);
            self.shared.table.emptied().await;
        }
        self.shared.audit.finish();
    }

    fn stop_accepting(&mut self) {
        // Remove the socket file while the socket still listens, as `SocketFile` requires.
        drop(self.unix.take());
        for task in &self.tasks {
            task.abort();
        }
    }
}

struct Shared {
    store: Store,
    remote: Remote,
    limits: Limits,
    access: Access,
    audit: Arc<Audit>,
    drain: Drain,
    admin: Admin,
    #[cfg(feature = "metrics")]
    sources: Arc<Sources>,
    table: Arc<ConnectionTable>,
    unfinished: Arc<Unfinished>,
    penalties: Penalties,
    busy_poll: Arc<BusyPoll>,
    /// One permit per thread of the runtime. A connection whose requests exceed one turn needs a permit for each
    /// further turn, so other connections wait for at most one turn.
    further_turns: Arc<Semaphore>,
    turn_length: TurnLength,
    /// One permit per watched process, because each watch needs an open file. `None` if the server watches no
    /// processes.
    process_watches: Option<Arc<Semaphore>>,
}

impl Shared {
    fn clock(&self) -> &Clock {
        self.store.clock()
    }

    /// Ends the sessions whose client processes exited while no server was running, and watches the other client
    /// processes.
    fn follow_processes(&self) {
        let Some(permits) = &self.process_watches else {
            return;
        };
        for (session, process) in self.remote.unattended() {
            match ProcessWatch::recorded(process, permits) {
                Ok(watch) => drop(tokio::spawn(watch.follow(session))),
                Err(NotWatched::Exited) => session.end(),
                Err(reason) => {
                    tracing::debug!(pid = process.pid, %reason, "process not watched: the timeout counts");
                }
            }
        }
    }

    /// Counts a failed proof of identity. The returned future completes when the server may report the failure.
    fn penalty(&self, address: PeerAddress) -> impl Future<Output = ()> + Send + use<> {
        let clock = self.clock();
        clock.sleep(self.penalties.add(address, clock.now()))
    }
}

fn shared_state(
    store: &Store,
    options: ServerOptions,
    addresses: ListenAddresses,
) -> Result<Shared, ServerError> {
    let limits = options.limits;
    let table = TableLimits {
        connections: limits.connections,
        per_address: limits.connections_per_address(),
        half_open: limits.half_open,
    };
    let table = ConnectionTable::new(table, store.clock().clone());
    let unfinished = Arc::new(Unfinished::new(limits.unfinished_bytes, limits.connections));
    let remote = store.attach()?;
    let remote = remote.limiting_unread(limits.all_outgoing_bytes);
    let threads = Handle::try_current().map_or(1, |runtime| runtime.metrics().num_workers());
    let sources = Arc::new(Sources {
        store: store.clone(),
        table: table.clone(),
        unfinished: unfinished.clone(),
    });
    Ok(Shared {
        store: store.clone(),
        limits,
        access: Access::new(&options, remote.superuser()),
        audit: Arc::new(Audit::new(options.audit.0, store.clock().clone())),
        drain: Drain::default(),
        admin: Admin::new(sources.clone(), addresses),
        #[cfg(feature = "metrics")]
        sources,
        unfinished,
        penalties: Penalties::default(),
        busy_poll: Arc::new(BusyPoll::new(options.busy_poll)),
        turn_length: TurnLength::default(),
        further_turns: Arc::new(Semaphore::new(threads)),
        process_watches: options.watch_processes.then(|| {
            Arc::new(Semaphore::new(
                limits.connections.min(Semaphore::MAX_PERMITS),
            ))
        }),
        table,
        remote,
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_accepting();
        self.shared.table.close(CloseRequest::Now);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("plain", &self.plain)
            .field("unix", &self.unix_path())
            .finish()
    }
}
