//! Client of ZooKeeper's protocol: the backend for stores that other processes serve (`lockkeeper://`, `zookeeper://`).
//!
//! [`session`] implements the protocol without IO, with the help of [`codec`] and [`watches`]. [`link`] holds a session
//! and its socket behind one mutex, so that any thread may send and receive. [`driver`] connects, reads and runs the
//! timers.

mod chroot;
mod codec;
mod driver;
mod link;
mod session;
pub(crate) mod socket;
mod stream;
#[cfg_attr(not(feature = "tls"), path = "served/no_tls.rs")]
mod tls;
mod watches;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;

use self::link::{Failure, Link};
use self::session::SessionOptions;
#[cfg(feature = "simulation")]
pub(crate) use self::session::fuzz;
use self::socket::Endpoint;
use self::tls::Tls;
use super::protocol_probe::{WrongProtocol, refusal};
use crate::backend::{
    Backend, ConnectOptions, Connector, DEFAULT_SESSION_TIMEOUT, FLUSH_LIMIT, Flushed,
    LAST_DROP_LIMIT, SessionStatus, read_or_create_store_id,
};
use crate::model::error::{Error, Result, start_a_server};
use crate::model::identity::Secret;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Create, Reply, Request, Response, unexpected};
use crate::model::types::CreateMode;
use crate::runtime::clock::Clock;
use crate::runtime::future::BoxFuture;
use crate::runtime::process::ProcessIdentity;
use crate::runtime::process::is_forked;
use crate::tls::ClientTls;

#[derive(Debug)]
pub(crate) struct Served(Arc<ServerAddress>);

#[derive(Debug)]
struct ServerAddress {
    endpoint: Endpoint,
    url: String,
    hosts: String,
    chroot: ZnodePath,
    clock: Clock,
    #[cfg(feature = "test-util")]
    opened: parking_lot::Mutex<Vec<std::sync::Weak<Link>>>,
}

impl Served {
    pub(crate) fn new(endpoint: Endpoint, chroot: &ZnodePath, url: String) -> Self {
        Self::on_clock(endpoint, chroot, url, Clock::system())
    }

    pub(crate) fn on_clock(
        endpoint: Endpoint,
        chroot: &ZnodePath,
        url: String,
        clock: Clock,
    ) -> Self {
        Self(Arc::new(ServerAddress {
            hosts: endpoint.to_string(),
            endpoint,
            url,
            chroot: chroot.clone(),
            clock,
            #[cfg(feature = "test-util")]
            opened: parking_lot::Mutex::default(),
        }))
    }
}

impl Connector for Served {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        let opening = Opening {
            server: self.0.clone(),
            options: options.clone(),
        };
        Box::pin(async move { Ok(Arc::new(opening.open().await?) as Arc<dyn Backend>) })
    }

    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    #[cfg(feature = "test-util")]
    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        let (status, server) = (backend.status().clone(), self.0.clone());
        Box::pin(async move {
            let opened = server.opened.lock().clone();
            let mut links = opened.iter().filter_map(std::sync::Weak::upgrade);
            let is_its = |link: &Arc<Link>| link.status().map(|it| it.id()) == Some(status.id());
            let Some(link) = links.find(is_its) else {
                let why = format!("session {} was opened elsewhere", status.id());
                return Err(Error::BadArguments(why));
            };
            let mut changes = status.states();
            while !status.state().is_final() {
                // The request may have been lost with its connection, so send it again after each change of state.
                link.expire();
                changes.next().await;
            }
            Ok(())
        })
    }
}

struct Opening {
    server: Arc<ServerAddress>,
    options: ConnectOptions,
}

impl Opening {
    async fn open(self) -> Result<ServedSession> {
        let clock = &self.server.clock;
        let deadline = clock.now().after(self.options.connect_timeout);
        let mut session = ServedSession::begin(&self)?;
        let link = &session.link.clone();
        let opening = async {
            self.opened(link).await?;
            self.learn_members(link).await?;
            self.enter_chroot(link).await?;
            self.store_id(&session).await
        };
        session.store_id = match clock.until(deadline, opening).await {
            Some(opened) => opened?,
            None => return Err(self.failed(link).await),
        };
        Ok(session)
    }

    async fn opened(&self, link: &Arc<Link>) -> Result<()> {
        let mut failures = 0;
        loop {
            if link.status().is_some() {
                return Ok(());
            }
            match link.failure() {
                // Fail only if there is a single server. If there are several, another server may have a valid
                // certificate.
                Some(Failure::Tls(error)) if link.names.len() == 1 => {
                    return Err(Error::Tls(error));
                }
                Some(Failure::Down { reason, is_absent }) => {
                    failures += 1;
                    // Warn only after as many failures as there are servers, because one failed server among several is
                    // no reason to warn.
                    if failures == link.names.len() {
                        let url = &self.server.url;
                        let is_absent = is_absent && self.options.tls.is_none();
                        let advice = start_a_server(is_absent, url, &self.server.hosts);
                        tracing::warn!(url, reason, "cannot connect yet: still trying{advice}");
                    }
                }
                _ => {}
            }
            link.progress.notified().await;
        }
    }

    /// Checks whether a server without our extension is a single server, because then any of its answers proves that
    /// the session is alive. Assumes an ensemble if the server's configuration cannot be read.
    async fn learn_members(&self, link: &Arc<Link>) -> Result<()> {
        let Some(status) = link.status().filter(|status| status.quorum_only()) else {
            return Ok(());
        };
        // Read the configuration before the chroot is set, because the configuration's path is outside of the chroot.
        let read = Request::GetData {
            path: ZnodePath::new("/zookeeper/config")?,
            watch: false,
        };
        match retried(link, read).await {
            Ok(Reply::Data { data, .. }) if !names_several(&data) => status.set_single_server(),
            Err(error) if link.is_over() || link.is_refused() => return Err(error),
            _ => {}
        }
        Ok(())
    }

    async fn failed(&self, link: &Link) -> Error {
        let failure = match link.failure() {
            Some(failure) => Some(failure),
            None => match driver::wrong_protocol(link).await {
                Some(WrongProtocol::Tls(error)) => return Error::Tls(error),
                Some(WrongProtocol::Other(why)) => Some(Failure::Other(refusal(why))),
                None => None,
            },
        };
        let is_plain = self.options.tls.is_none();
        Error::ConnectFailed {
            is_absent: is_plain
                && matches!(
                    failure,
                    Some(Failure::Down {
                        is_absent: true,
                        ..
                    })
                ),
            url: self.server.url.clone(),
            hosts: self.server.hosts.clone(),
            timeout: self.options.connect_timeout,
            reason: match failure {
                None => "no answer".to_owned(),
                Some(Failure::Tls(error)) => error.to_string(),
                Some(Failure::Down { reason, .. } | Failure::Other(reason)) => reason,
            },
        }
    }

    async fn enter_chroot(&self, link: &Arc<Link>) -> Result<()> {
        let chroot = &self.server.chroot;
        if chroot.is_root() {
            return Ok(());
        }
        let exists = Request::Exists {
            path: chroot.clone(),
            watch: false,
        };
        let exists = match retried(link, exists).await? {
            Reply::Exists { stat, .. } => stat.is_some(),
            _ => return unexpected("exists"),
        };
        if !exists {
            if !self.options.create_chroot {
                return Err(Error::NoChroot {
                    path: chroot.to_string(),
                    hosts: self.server.hosts.clone(),
                });
            }
            self.create_all(link, chroot).await?;
        }
        link.set_chroot(chroot);
        Ok(())
    }

    async fn create_all(&self, link: &Arc<Link>, path: &ZnodePath) -> Result<()> {
        let mut missing = vec![path.clone()];
        while let Some(path) = missing.last() {
            let create = Request::Create(Create {
                path: path.clone(),
                data: Bytes::new(),
                mode: CreateMode::Persistent,
                acl: self.options.acl.clone(),
            });
            match retried(link, create).await {
                Ok(_) | Err(Error::NodeExists { .. }) => {
                    missing.pop();
                }
                Err(Error::NoNode { .. }) => {
                    let parent = path.parent().filter(|parent| !parent.is_root());
                    let path = path.to_string();
                    missing.push(parent.ok_or(Error::NoNode { path })?);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn store_id(&self, session: &ServedSession) -> Result<Option<String>> {
        let link = &session.link;
        match read_or_create_store_id(session, &self.options.acl).await {
            Ok(id) => Ok(Some(id)),
            // The session itself reports only that it has ended, so report the refused identity as the cause.
            Err(_) if link.is_refused() => Err(Error::AuthFailed),
            Err(error) if link.is_over() => Err(error),
            Err(error) => {
                tracing::warn!(hosts = %self.server.hosts, %error, "no store id: fencing tokens are not bound to this store");
                Ok(None)
            }
        }
    }
}

fn names_several(config: &[u8]) -> bool {
    let config = String::from_utf8_lossy(config);
    let servers = config
        .lines()
        .filter(|line| line.trim_start().starts_with("server."));
    servers.count() > 1
}

/// Sends a request again after each lost connection, so the request must be idempotent.
async fn retried(link: &Arc<Link>, request: Request) -> Result<Reply> {
    loop {
        match link.submit(request.clone()).await {
            Err(_) if link.is_refused() => return Err(Error::AuthFailed),
            Err(Error::ConnectionLoss) => {}
            reply => return reply,
        }
    }
}

pub(super) struct ServedSession {
    link: Arc<Link>,
    store_id: Option<String>,
    prefix_bytes: usize,
}

impl ServedSession {
    fn begin(opening: &Opening) -> Result<Self> {
        let Opening { server, options } = opening;
        // A `+tls` URL without TLS options gets empty options, for which `Tls::new` reports the missing authority.
        let required = server.endpoint.requires_tls.then(ClientTls::new);
        let tls = options.tls.as_ref().or(required.as_ref());
        if tls.is_some() && !server.endpoint.is_network {
            let why = "TLS over a Unix socket: leave the option out, the connection is within this machine";
            return Err(Error::BadArguments(why.into()));
        }
        let names = server.endpoint.names.clone();
        let tls = tls.map(|tls| Tls::new(tls, &names, &server.url));
        let auth = options.auth.iter();
        let auth = auth.map(|(scheme, secret)| (scheme.clone(), Secret::new(secret.clone())));
        let terms = SessionOptions {
            timeout: options.session_timeout.unwrap_or(DEFAULT_SESSION_TIMEOUT),
            close_timeout: options.connect_timeout,
            auth: auth.collect(),
            process: (options.end_with_process && server.endpoint.ends_with_process)
                .then(ProcessIdentity::own)
                .flatten(),
            longest_pause: server.endpoint.longest_pause,
            is_plain: server.endpoint.is_plain,
            tick: options.ensemble_tick,
            servers: names.len(),
            seed: server.endpoint.dialer.seed(),
        };
        let clock = server.clock.clone();
        let link = Link::new(server.endpoint.clone(), tls.transpose()?, terms, clock);
        #[cfg(feature = "test-util")]
        {
            let mut opened = server.opened.lock();
            opened.retain(|link| link.strong_count() > 0);
            opened.push(Arc::downgrade(&link));
        }
        driver::start(link.clone(), Handle::try_current().ok())?;
        Ok(Self {
            link,
            store_id: None,
            prefix_bytes: match server.chroot.is_root() {
                true => 0,
                false => server.chroot.as_str().len(),
            },
        })
    }
}

impl Backend for ServedSession {
    fn submit(&self, request: Request) -> Response {
        self.link.submit(request)
    }

    fn status(&self) -> &Arc<SessionStatus> {
        self.link.status().expect("it is given out once it is open")
    }

    fn store_id(&self) -> Option<&str> {
        self.store_id.as_deref()
    }

    fn prefix_bytes(&self) -> usize {
        self.prefix_bytes
    }

    fn flush(&self, limit: Duration) -> Flushed {
        self.link.flush(limit)
    }

    fn read_elsewhere(&self) {
        self.link.read_elsewhere();
    }
}

impl Drop for ServedSession {
    /// Waits a limited time until closeSession is written, because the process may exit right after the drop.
    fn drop(&mut self) {
        if is_forked() {
            return;
        }
        self.link.abandon();
        self.link.flush(LAST_DROP_LIMIT + FLUSH_LIMIT);
    }
}

impl fmt::Debug for ServedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServedSession")
            .field(&self.link.status())
            .finish()
    }
}
