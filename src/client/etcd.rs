//! Backend for etcd (`etcd://`).
//!
//! A session is a lease, and a queue entry is a key attached to this lease. The key's create revision is both the
//! entry's sequence number and its fencing token. [`requests`] maps the recipes' requests to etcd calls, and [`keys`]
//! maps paths to keys.

mod channel;
mod keys;
mod messages;
mod requests;
mod session;
mod watches;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use tokio::time::Instant;

use self::channel::{Members, Tls};
use self::keys::Keys;
use self::messages::{Authenticate, LeaseGrant};
use self::session::{EtcdSession, Opening, Pacing, on_thread};
use crate::backend::{
    Backend, ConnectOptions, Connector, DEFAULT_SESSION_TIMEOUT, read_or_create_store_id,
};
use crate::model::acl::Acl;
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::runtime::clock::Clock;
use crate::runtime::future::BoxFuture;
use crate::tls::ClientTls;

/// Longest session timeout. A new leader restarts each lease with its full TTL, so no lease ends early. If etcd writes
/// lease checkpoints (every five minutes), a longer lease can restart with only the rest of its TTL.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(300);

const NO_LISTS: &str = "access control lists, which etcd has by prefix (etcdctl role)";

#[derive(Clone)]
pub(crate) struct Etcd {
    hosts: Vec<String>,
    requires_tls: bool,
    chroot: ZnodePath,
    url: String,
    clock: Clock,
    /// Highest revision that this client has seen.
    revision: Arc<AtomicI64>,
}

impl Etcd {
    pub(crate) fn new(
        hosts: Vec<String>,
        requires_tls: bool,
        chroot: &ZnodePath,
        url: String,
    ) -> Self {
        Self {
            hosts,
            requires_tls,
            chroot: chroot.clone(),
            url,
            clock: Clock::system(),
            revision: Arc::default(),
        }
    }

    async fn open(self, options: ConnectOptions) -> Result<Arc<dyn Backend>> {
        if *options.get_acl() != Acl::open() {
            return Err(Error::Unimplemented { what: NO_LISTS });
        }
        let (ttl, user) = (lease_time(&options)?, user(&options)?);
        // A `+tls` URL without TLS options gets empty options, for which `Tls::new` reports the missing authority.
        let required = self.requires_tls.then(ClientTls::new);
        let tls = options.tls.as_ref().or(required.as_ref());
        let tls = tls.map(|tls| Tls::new(tls, &self.hosts)).transpose()?;
        let limit = options.get_connect_timeout();
        let end = Instant::now() + limit;
        let members = Members::new(self.hosts.clone(), tls, user);
        let (mut reason, mut pacing) = (String::new(), Pacing::default());
        loop {
            let now = Instant::now();
            let start = now + pacing.pause(now);
            if start >= end {
                return Err(Error::ConnectFailed {
                    url: self.url,
                    hosts: self.hosts.join(", "),
                    timeout: limit,
                    reason,
                    is_absent: false,
                });
            }
            tokio::time::sleep_until(start).await;
            let (members, keys) = (members.clone(), Keys::new(&self.chroot));
            let clock = self.clock.clone();
            let opening = async {
                let session =
                    EtcdSession::open(members, keys, ttl, clock, self.revision.clone()).await?;
                let identified = identified(session, &options).await;
                identified.map_err(Opening::Final)
            };
            match tokio::time::timeout_at(end, opening).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(Opening::Final(error))) => return Err(error),
                Ok(Err(Opening::Replaced { before, now })) => {
                    return Err(Error::StoreChanged {
                        target: self.url,
                        expected: format!("a revision of at least {before}"),
                        found: format!("revision {now}"),
                    });
                }
                Ok(Err(Opening::Failed(why))) => reason = why,
                Err(_) if reason.is_empty() => reason = format!("no answer within {limit:?}"),
                Err(_) => {}
            }
        }
    }
}

/// Sets the session's store id, which consists of a key's value and create revision. The cluster's id is not
/// sufficient, because it does not change when the data is wiped.
async fn identified(
    mut session: EtcdSession,
    options: &ConnectOptions,
) -> Result<Arc<dyn Backend>> {
    session.store_id = Some(read_or_create_store_id(&session, options.get_acl()).await?);
    Ok(Arc::new(session))
}

/// Returns the session's timeout, rounded up to whole seconds, because etcd grants leases in seconds.
fn lease_time(options: &ConnectOptions) -> Result<Duration> {
    let wanted = options
        .get_session_timeout()
        .unwrap_or(DEFAULT_SESSION_TIMEOUT);
    if wanted > LONGEST_TIMEOUT {
        return Err(Error::BadArguments(format!(
            "a session timeout of {wanted:?}: on etcd it is at most {LONGEST_TIMEOUT:?}"
        )));
    }
    let LeaseGrant { ttl } = LeaseGrant::rounded_up(wanted);
    Ok(Duration::from_secs(ttl.unsigned_abs()))
}

/// Returns the user of etcd that the options name.
fn user(options: &ConnectOptions) -> Result<Option<Authenticate>> {
    let mut identities = options.get_auth();
    let Some((scheme, secret)) = identities.next() else {
        return Ok(None);
    };
    let secret = std::str::from_utf8(secret).unwrap_or_default();
    match (secret.split_once(':'), identities.next()) {
        (Some((name, password)), None) if scheme == "digest" => Ok(Some(Authenticate {
            name: name.to_owned(),
            password: password.to_owned(),
        })),
        _ => Err(Error::BadArguments(
            "on etcd a session has at most one identity, of the scheme digest: user:password"
                .to_owned(),
        )),
    }
}

impl Connector for Etcd {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        let (etcd, options) = (self.clone(), options.clone());
        Box::pin(on_thread(etcd.open(options)))
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    #[cfg(feature = "test-util")]
    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        let (etcd, lease) = (self.clone(), backend.status().id());
        let status = backend.status().clone();
        Box::pin(on_thread(async move {
            session::revoke(Members::new(etcd.hosts, None, None), lease.0).await?;
            let mut states = status.states();
            while !status.state().is_final() && states.next().await.is_some() {}
            Ok(())
        }))
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Etcd({})", self.url)
    }
}
