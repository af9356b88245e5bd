//! The backend for a real ZooKeeper, over the crate zookeeper-client, which nothing outside this folder names.
//!
//! Beyond the crate: it sends a request when its future is created, but the future borrows the client, so [`session`]
//! drives it on the connections' thread ([`io`]); it reports a session's end by its own clock at 7/5 of the timeout,
//! where [`SessionStatus::held_until`] ends earlier; it does not tell the timeout that a reconnection has brought
//! ([`timeout_probe`]); it does not re-register persistent watches after a reconnection ([`watches`]); it does not
//! tell why a TLS handshake failed, and skips certificates that it cannot read ([`tls`]); it leaves small requests to
//! Nagle's algorithm ([`nodelay`]).

mod convert;
#[cfg(feature = "test-util")]
mod expire;
mod handshake;
mod io;
#[cfg_attr(not(target_os = "linux"), path = "zookeeper/no_nodelay.rs")]
mod nodelay;
mod requests;
mod session;
mod timeout_probe;
#[cfg_attr(not(feature = "tls"), path = "zookeeper/no_tls.rs")]
mod tls;
mod watches;

use std::fmt;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use zookeeper_client as zk;

use self::convert::{Acls, CREATE, RequestContext};
use self::io::{blocking, spawn};
use self::session::{Chroot, ZooKeeperSession};
use self::timeout_probe::TimeoutProbe;
use self::tls::Tls;
use super::protocol_probe::{self, WrongProtocol};
use super::sequence_limit::SequenceLimit;
use super::{Backend, ConnectOptions, Connector, DEFAULT_SESSION_TIMEOUT, SessionStatus, store_id};
use crate::acl::Acl;
use crate::clock::{BootInstant, Clock};
use crate::error::{Error, Result};
use crate::future::BoxFuture;
use crate::path::ZnodePath;
use crate::tls::{ClientTls, TlsError};
use crate::types::{CreateMode, SessionId, Zxid};

/// Pauses between two attempts to connect: each is twice as long as the last.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The servers of one ensemble, or a single server, with the chroot of its sessions.
#[derive(Debug)]
pub(crate) struct ZooKeeper(Arc<Servers>);

#[derive(Debug)]
struct Servers {
    hosts: String,
    chroot: ZnodePath,
    /// True if the URL asks for TLS.
    requires_tls: bool,
    clock: Clock,
    /// The sessions opened here, so that a test can expire one.
    #[cfg(feature = "test-util")]
    opened: parking_lot::Mutex<std::collections::HashMap<SessionId, Opened>>,
}

/// The secrets by which a session can be ended.
#[cfg(feature = "test-util")]
#[derive(Clone, Debug)]
struct Opened {
    info: zk::SessionInfo,
    tls: Option<Tls>,
}

impl Servers {
    /// Returns true if there is only one address.
    fn has_one_host(&self) -> bool {
        !self.hosts.contains(',')
    }

    /// Returns the URL.
    fn url(&self) -> String {
        let chroot = match self.chroot.is_root() {
            true => "",
            false => self.chroot.as_str(),
        };
        let tls = if self.requires_tls { "+tls" } else { "" };
        format!("zookeeper{tls}://{}{chroot}", self.hosts)
    }

    /// Returns the length of the chroot, in bytes, which every path on the wire begins with.
    fn prefix_bytes(&self) -> usize {
        match self.chroot.is_root() {
            true => 0,
            false => self.chroot.as_str().len(),
        }
    }
}

impl ZooKeeper {
    /// Returns the connector of these hosts, given as `host:port[,host:port…]`.
    pub(crate) fn new(hosts: &str, chroot: &ZnodePath, requires_tls: bool) -> Self {
        Self(Arc::new(Servers {
            hosts: hosts.to_owned(),
            chroot: chroot.clone(),
            requires_tls,
            clock: Clock::system(),
            #[cfg(feature = "test-util")]
            opened: parking_lot::Mutex::default(),
        }))
    }
}

impl Connector for ZooKeeper {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        let opening = Opening::new(self.0.clone(), options.clone());
        Box::pin(async move { Ok(Arc::new(opening?.open().await?) as Arc<dyn Backend>) })
    }

    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    #[cfg(feature = "test-util")]
    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        let status = backend.status().clone();
        let servers = self.0.clone();
        Box::pin(async move {
            let Some(opened) = servers.opened.lock().get(&status.id()).cloned() else {
                let why = format!("session {} was opened elsewhere", status.id());
                return Err(Error::BadArguments(why));
            };
            expire::expire(servers.hosts.clone(), opened, &status).await
        })
    }
}

/// Opening of one session.
struct Opening {
    servers: Arc<Servers>,
    options: ConnectOptions,
    tls: Option<Tls>,
    /// The finding, once the servers were asked which protocol they speak.
    wrong_protocol: OnceLock<Option<WrongProtocol>>,
}

impl Opening {
    fn new(servers: Arc<Servers>, options: ConnectOptions) -> Result<Self> {
        // Without an authority, the check of the options says so.
        let required = servers.requires_tls.then(ClientTls::new);
        let tls = options.tls.as_ref().or(required.as_ref());
        let tls = tls.map(|tls| Tls::new(tls, &servers.hosts, &servers.url()));
        Ok(Self {
            tls: tls.transpose()?,
            servers,
            options,
            wrong_protocol: OnceLock::new(),
        })
    }

    /// Retries until it succeeds, until the connect timeout, or until an error that a retry cannot change.
    async fn open(&self) -> Result<ZooKeeperSession> {
        let clock = &self.servers.clock;
        let timeout = self.options.connect_timeout;
        let deadline = clock.now().after(timeout);
        let mut reason = None;
        let mut warned = false;
        let mut pause = SHORTEST_PAUSE;
        let trying = async {
            loop {
                match self.open_once().await {
                    Err(Error::ConnectionLoss) => match self.failure_reason(deadline).await {
                        // With several hosts, another one may accept the certificate.
                        Refusal::Tls(error) if self.servers.has_one_host() => {
                            return Err(Error::Tls(error));
                        }
                        refusal => {
                            let why = refusal.to_string();
                            if refusal.is_down() && !std::mem::replace(&mut warned, true) {
                                warn_unreachable(&self.servers, &why);
                            }
                            reason = Some(why);
                        }
                    },
                    done => return done,
                }
                clock.sleep(pause).await;
                pause = LONGEST_PAUSE.min(2 * pause);
            }
        };
        match clock.until(deadline, trying).await {
            Some(opened) => opened,
            None => Err(Error::ConnectFailed {
                url: self.servers.url(),
                hosts: self.servers.hosts.clone(),
                timeout,
                reason: match reason {
                    Some(reason) => reason,
                    None => self.silence().await,
                },
                is_absent: false,
            }),
        }
    }

    /// Returns the reason where the first attempt was still under way at the end.
    async fn silence(&self) -> String {
        let clock = &self.servers.clock;
        let end = clock.now().after(protocol_probe::LONGEST);
        let reason = clock.until(end, self.failure_reason(end)).await;
        reason.map_or_else(|| "no answer".to_owned(), |reason| reason.to_string())
    }

    /// Makes one attempt at each server.
    async fn open_once(&self) -> Result<ZooKeeperSession> {
        // Read before the handshake is sent: the lease counts from here (invariant 6).
        let sent = self.servers.clock.now();
        let (connector, servers) = (self.connector(), self.servers.clone());
        let tls = self.tls.clone();
        let connecting = async move {
            match tls {
                None => connector.connect(&servers.hosts).await,
                Some(tls) => tls.connect(connector, &servers.hosts).await,
            }
        };
        // On the connections' thread: the crate spawns the task of its connection with the spawner of the thread that
        // polls this future, which an executor of the user's might starve.
        let client = match spawn(Box::pin(connecting)).await? {
            Ok(client) => client,
            Err(zk::Error::AuthFailed) => return Err(Error::AuthFailed),
            // All other errors may pass: `open` tries again until the connect timeout.
            Err(_) => return Err(Error::ConnectionLoss),
        };
        // Before the first requests, which would wait for an acknowledgement otherwise.
        nodelay::set_nodelay(&self.servers.hosts);
        let status = self.status(&client, sent).await;
        #[cfg(feature = "test-util")]
        self.servers.opened.lock().insert(
            status.id(),
            Opened {
                info: client.session().clone(),
                tls: self.tls.clone(),
            },
        );
        let client = self.enter_chroot(client, status.id()).await?;
        let store_id = self.store_id(&client, status.id()).await;
        Ok(ZooKeeperSession::new(
            client,
            status,
            TimeoutProbe {
                hosts: self.servers.hosts.clone(),
                tls: self.tls.clone(),
                auth: self.options.auth.clone(),
            },
            Chroot {
                store_id,
                prefix_bytes: self.servers.prefix_bytes(),
                sequence_limit: SequenceLimit::ZOOKEEPER,
            },
            self.options.connect_timeout,
        ))
    }

    fn connector(&self) -> zk::Connector {
        let timeout = self
            .options
            .session_timeout
            .unwrap_or(DEFAULT_SESSION_TIMEOUT);
        // Eagerly: an attempt fails after one round over the hosts, and `open` learns the reason before the next one.
        let connector = zk::Client::connector()
            .with_session_timeout(timeout)
            .with_fail_eagerly();
        let auth = self.options.auth.iter();
        auth.fold(connector, |connector, (scheme, secret)| {
            connector.with_auth(scheme, secret)
        })
    }

    /// Returns the reason of a failed attempt. The crate does not tell it, so each host is connected to again.
    async fn failure_reason(&self, deadline: BootInstant) -> Refusal {
        let (servers, tls) = (self.servers.clone(), self.tls.clone());
        // Not zero, which `TcpStream::connect_timeout` refuses.
        let left = deadline
            .since(servers.clock.now())
            .max(Duration::from_millis(1));
        let asking = move || {
            servers
                .hosts
                .split(',')
                .find_map(|host| refusal(host, tls.as_ref(), left))
        };
        let refusal = match blocking(asking).await {
            Ok(Some(refusal)) => refusal,
            Ok(None) => {
                Refusal::Other("the server accepted the connection, and gave no session".to_owned())
            }
            Err(error) => Refusal::Other(error.to_string()),
        };
        let Refusal::Other(_) = refusal else {
            return refusal;
        };
        match self.wrong_protocol().await {
            Some(WrongProtocol::Tls(error)) => Refusal::Tls(error),
            Some(WrongProtocol::Other(why)) => Refusal::Other(protocol_probe::refusal(why)),
            None => refusal,
        }
    }

    /// Asks the servers, once, which other protocol they speak.
    async fn wrong_protocol(&self) -> Option<WrongProtocol> {
        if let Some(known) = self.wrong_protocol.get() {
            return known.clone();
        }
        let (servers, is_tls) = (self.servers.clone(), self.tls.is_some());
        let asking = move || {
            let mut hosts = servers.hosts.split(',');
            hosts.find_map(|host| protocol_probe::wrong_protocol(host, is_tls))
        };
        let found = blocking(asking).await.ok().flatten();
        self.wrong_protocol.get_or_init(|| found).clone()
    }

    async fn status(&self, client: &zk::Client, sent: BootInstant) -> Arc<SessionStatus> {
        // If the configuration cannot be read (no permission, or a server before 3.5), the stricter rules of an ensemble
        // apply: they are correct for a single server, too.
        let config = client.get_config().await;
        let quorum_only = config.map_or(true, |(config, _)| is_ensemble(&config));
        let status = SessionStatus::new(
            SessionId(client.session_id().0),
            self.servers.clock.clone(),
            Some(client.session_timeout()),
            quorum_only,
            sent,
        );
        Arc::new(status.with_tick(self.options.ensemble_tick))
    }

    async fn enter_chroot(&self, client: zk::Client, session: SessionId) -> Result<zk::Client> {
        if self.servers.chroot.is_root() {
            return Ok(client);
        }
        let path = self.servers.chroot.as_str();
        let about = |what| RequestContext {
            what,
            path,
            version: None,
            session,
        };
        let found = client
            .check_stat(path)
            .await
            .map_err(|error| about("exists").error(error))?;
        if found.is_none() {
            if !self.options.create_chroot {
                return Err(Error::NoChroot {
                    path: path.to_owned(),
                    hosts: self.servers.hosts.clone(),
                });
            }
            let acls = Acls::new(&self.options.acl);
            let made = client
                .mkdir(path, &acls.options(CreateMode::Persistent))
                .await;
            made.map_err(|error| about(CREATE).error(error))?;
        }
        client
            .chroot(path)
            .map_err(|_| Error::Protocol(format!("the chroot {path} was refused")))
    }

    /// Returns the store's id, which the first client creates; `None` without the permission to.
    async fn store_id(&self, client: &zk::Client, session: SessionId) -> Option<String> {
        match read_or_create_id(client, &self.options.acl).await {
            Ok(id) => Some(id),
            Err(error) => {
                // Not an error: locks work without the id (a user may not be allowed to read or create it).
                let error = RequestContext {
                    what: "getData",
                    path: store_id::PATH,
                    version: None,
                    session,
                }
                .error(error);
                tracing::warn!(hosts = %self.servers.hosts, %error, "no store id: fencing tokens are not bound to this store, and each hand-over of a lock lists its queue");
                None
            }
        }
    }
}

async fn read_or_create_id(client: &zk::Client, acl: &Acl) -> Result<String, zk::Error> {
    let made = store_id::new_data();
    let acls = Acls::new(&store_id::readable(acl));
    // Two clients may create it at once: the one that finds `NodeExists` reads the other's.
    loop {
        match client.get_data(store_id::PATH).await {
            Ok((id, stat)) => return Ok(store_id::text(&id, Zxid(stat.czxid))),
            Err(zk::Error::NoNode) => {}
            Err(error) => return Err(error),
        }
        match client
            .create(
                store_id::PATH,
                made.as_bytes(),
                &acls.options(CreateMode::Persistent),
            )
            .await
        {
            Ok((stat, _)) => return Ok(store_id::text(made.as_bytes(), Zxid(stat.czxid))),
            Err(zk::Error::NodeExists) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns true if a configuration (`/zookeeper/config`) names more than one server.
fn is_ensemble(config: &[u8]) -> bool {
    let config = String::from_utf8_lossy(config);
    config
        .lines()
        .filter(|line| line.trim_start().starts_with("server."))
        .count()
        > 1
}

/// Reason for which a server gives no session.
#[derive(Debug)]
enum Refusal {
    /// A certificate, or one side speaks TLS and the other does not: a retry at this server cannot change that.
    Tls(TlsError),
    /// No connection can be made: no program listens there, or the host is unknown or unreachable.
    Down(String),
    Other(String),
}

impl Refusal {
    fn is_down(&self) -> bool {
        matches!(self, Self::Down(_))
    }
}

/// Logs that a server is down, once for each opening.
fn warn_unreachable(servers: &Servers, reason: &str) {
    let url = servers.url();
    tracing::warn!(url, reason, "cannot connect yet: still trying");
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls(error) => error.fmt(f),
            Self::Down(reason) | Self::Other(reason) => f.write_str(reason),
        }
    }
}

/// Returns the reason for which no connection to `host` can be made; `None` if one can.
fn refusal(host: &str, tls: Option<&Tls>, limit: Duration) -> Option<Refusal> {
    let down = |error: &dyn fmt::Display| Some(Refusal::Down(format!("{host}: {error}")));
    let addresses = match host.to_socket_addrs() {
        Ok(addresses) => addresses,
        Err(error) => return down(&error),
    };
    let mut refusal = down(&"the name has no IP address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => {
                return tls?.refusal(stream, host, limit);
            }
            Err(error) => refusal = down(&error),
        }
    }
    refusal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ensemble_is_more_than_one_server() {
        let one = "server.1=127.0.0.1:2888:3888:participant;0.0.0.0:2181\nversion=0";
        assert!(!is_ensemble(b""));
        assert!(!is_ensemble(one.as_bytes()));
        assert!(is_ensemble(
            format!("{one}\nserver.2=b:2888:3888").as_bytes()
        ));
    }

    #[test]
    fn a_refusal_names_the_host_and_the_reason() {
        let refused = refusal("127.0.0.1:1", None, Duration::from_secs(1))
            .unwrap()
            .to_string();
        assert!(
            refused.starts_with("127.0.0.1:1: ") && refused.contains("refused"),
            "{refused}"
        );
    }
}
