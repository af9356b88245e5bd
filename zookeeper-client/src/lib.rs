#![doc = include_str!("../README.md")]

mod convert;
mod entries;
mod requests;
mod session;
mod watches;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockkeeper_store::{
    Backend, BootInstant, BoxFuture, Client, Clock, ConnectOptions, Connector, Error, Result,
    SessionId, SessionStatus, read_or_create_store_id,
};
pub use zookeeper_client;
use zookeeper_client as zk;

use session::LentSession;

/// A [`Connector`] that lends the program's ZooKeeper client to Lockkeeper. All Lockkeeper sessions that it opens use
/// the client's single ZooKeeper session.
///
/// Several Lockkeeper clients may use one ZooKeeper client. Their locks contend as usual, although they share a
/// session. If the ZooKeeper client has a chroot, all paths are below it.
pub struct LentClient {
    client: zk::Client,
    smallest_timeout: Duration,
    clock: Clock,
}

impl LentClient {
    /// Lends a client, and keeps a clone of it.
    ///
    /// `smallest_timeout` is the shortest session timeout that any server of the ensemble grants to this client. You
    /// must state it, because a reconnection may lead to that server, and the crate does not report the new timeout.
    /// Locks are [lost](lockkeeper_store::Lease) if the session has not been proved alive for nine tenths of this
    /// timeout. If the [timeout](zk::Client::session_timeout) of the first connection is shorter, it is used instead.
    pub fn new(client: zk::Client, smallest_timeout: Duration) -> Self {
        Self {
            client,
            smallest_timeout,
            clock: Clock::system(),
        }
    }

    /// Returns a Lockkeeper client with the default options.
    ///
    /// # Errors
    /// Same as [`connect_with`](Self::connect_with).
    pub async fn connect(self) -> Result<Client> {
        self.connect_with(ConnectOptions::new()).await
    }

    /// Returns a Lockkeeper client.
    ///
    /// Only these options apply: the [access control list](ConnectOptions::acl), the [connect
    /// timeout](ConnectOptions::connect_timeout), the [tick](ConnectOptions::ensemble_tick) and the
    /// [patterns](ConnectOptions::entry_pattern).
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// - [`Error::NoNode`] if the client's chroot does not exist.
    /// - [`Error::BadArguments`] if the session has ended, the timeout is zero, or an option is set that only applies
    ///   to connections that Lockkeeper opens itself.
    /// - [`Error::ConnectFailed`] if the client is not connected within the connect timeout.
    pub async fn connect_with(self, options: ConnectOptions) -> Result<Client> {
        let target = self.name();
        Client::open(Arc::new(self), target, options).await
    }

    fn name(&self) -> String {
        format!(
            "the lent ZooKeeper client of session {}",
            session_id(&self.client)
        )
    }
}

impl Connector for LentClient {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        let opening = Opening {
            client: self.client.clone(),
            name: self.name(),
            smallest_timeout: self.smallest_timeout,
            clock: self.clock.clone(),
            options: options.clone(),
        };
        Box::pin(async move { Ok(Arc::new(opening.open().await?) as Arc<dyn Backend>) })
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }
}

impl fmt::Debug for LentClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentClient")
            .field("session", &session_id(&self.client))
            .field("smallest_timeout", &self.smallest_timeout)
            .finish_non_exhaustive()
    }
}

struct Opening {
    client: zk::Client,
    name: String,
    smallest_timeout: Duration,
    clock: Clock,
    options: ConnectOptions,
}

impl Opening {
    async fn open(&self) -> Result<LentSession> {
        self.check_options()?;
        let timeout = self.options.get_connect_timeout();
        let deadline = self.clock.now().after(timeout);
        match until(&self.clock, deadline, self.connected()).await {
            Some(opened) => opened,
            None => Err(Error::ConnectFailed {
                url: self.name.clone(),
                hosts: String::new(),
                timeout,
                reason: "the client has no connection".to_owned(),
                is_absent: false,
            }),
        }
    }

    fn check_options(&self) -> Result<()> {
        let options = &self.options;
        let refused = [
            (
                options.get_session_timeout().is_some(),
                "the session timeout",
            ),
            (options.get_auth().next().is_some(), "an identity"),
            (options.get_tls().is_some(), "TLS"),
            (options.get_create_chroot(), "the creation of the chroot"),
        ];
        if let Some((_, what)) = refused.into_iter().find(|(is_set, _)| *is_set) {
            return Err(Error::BadArguments(format!(
                "{what}, for {}: it is connected already, so set this where it connects",
                self.name
            )));
        }
        match self.smallest_timeout.is_zero() {
            true => Err(Error::BadArguments(format!(
                "a timeout of zero, for {}",
                self.name
            ))),
            false => Ok(()),
        }
    }

    async fn connected(&self) -> Result<LentSession> {
        // Read the time before the request is sent, because the lease starts at this time (invariant 6).
        let sent = self.clock.now();
        let config = self.client.get_config().await;
        self.check_alive()?;
        // If we cannot read the configuration (no permission, a server before 3.5, a lost reply), we use the stricter
        // rules of an ensemble. These rules are also correct for a single server.
        let quorum_only = config.map_or(true, |(config, _)| is_ensemble(&config));
        // The reply of an ensemble's server does not prove that the session is alive, so the lease is not valid until
        // the first proof.
        let proved = match quorum_only {
            true => BootInstant::default(),
            false => sent,
        };
        let status = SessionStatus::new(
            session_id(&self.client),
            self.clock.clone(),
            Some(self.client.session_timeout().min(self.smallest_timeout)),
            quorum_only,
            proved,
        );
        let status = Arc::new(status.with_tick(self.options.get_ensemble_tick()));
        let timeout = self.options.get_connect_timeout();
        let mut session = LentSession::new(self.client.clone(), status, timeout);
        match read_or_create_store_id(&session, self.options.get_acl()).await {
            Ok(id) => session.store_id = Some(id),
            Err(Error::NoNode { .. }) => {
                return Err(Error::NoNode {
                    path: self.client.path().to_owned(),
                });
            }
            Err(error) => {
                self.check_alive()?;
                // This is not an error, because locks work without the id. A user may have no permission to read or
                // create it.
                tracing::warn!(session = %session.status().id(), %error, "no store id: fencing tokens are not bound to this store, and each hand-over of a lock lists its queue");
            }
        }
        Ok(session)
    }

    /// Fails with [`Error::BadArguments`] once the session has ended. We do not return the error of that end, because
    /// it would make callers open another session.
    fn check_alive(&self) -> Result<()> {
        let state = self.client.state();
        match state.is_terminated() {
            true => Err(Error::BadArguments(format!(
                "{}: that session has ended ({state}), so connect and lend another client",
                self.name
            ))),
            false => Ok(()),
        }
    }
}

/// Returns true if a configuration (`/zookeeper/config`) contains more than one server.
fn is_ensemble(config: &[u8]) -> bool {
    let config = String::from_utf8_lossy(config);
    let servers = config
        .lines()
        .filter(|line| line.trim_start().starts_with("server."));
    servers.count() > 1
}

fn session_id(client: &zk::Client) -> SessionId {
    SessionId(client.session_id().0)
}

async fn until<T>(clock: &Clock, moment: BootInstant, work: impl Future<Output = T>) -> Option<T> {
    either(work, clock.sleep_until(moment)).await
}

async fn either<T>(work: impl Future<Output = T>, end: impl Future) -> Option<T> {
    let (mut work, mut end) = (pin!(work), pin!(end));
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        end.as_mut().poll(context).map(|_| None)
    })
    .await
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
}
