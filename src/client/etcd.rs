//! Backend for etcd (`etcd://`).
//!
//! A session is a lease. An entry of a queue is a key that is attached to the lease. The key's create revision is both
//! the entry's number and its fencing token. [`requests`] maps the recipes' requests to etcd's calls, and [`keys`] maps
//! paths to keys.

mod channel;
mod keys;
mod messages;
mod requests;
mod session;
mod watches;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use self::channel::Members;
use self::keys::Keys;
use self::session::{EtcdSession, Opening, on_thread};
use crate::backend::{
    Backend, ConnectOptions, Connector, DEFAULT_SESSION_TIMEOUT, read_or_create_store_id,
};
use crate::model::error::{Error, Result};
use crate::model::path::ZnodePath;
use crate::runtime::clock::Clock;
use crate::runtime::future::BoxFuture;

/// Longest session timeout. A new leader restarts each lease with its full time, so no lease ends early. If etcd writes
/// lease checkpoints (every five minutes), a longer lease can restart with less than its full time.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Pause between two attempts to open a session.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(crate) struct Etcd {
    hosts: Vec<String>,
    chroot: ZnodePath,
    url: String,
    clock: Clock,
}

impl Etcd {
    pub(crate) fn new(hosts: Vec<String>, chroot: &ZnodePath, url: String) -> Self {
        Self {
            hosts,
            chroot: chroot.clone(),
            url,
            clock: Clock::system(),
        }
    }

    async fn open(self, options: ConnectOptions) -> Result<Arc<dyn Backend>> {
        let ttl = lease_time(&options)?;
        let limit = options.get_connect_timeout();
        let end = tokio::time::Instant::now() + limit;
        let mut reason = String::new();
        loop {
            let members = Members::new(self.hosts.clone());
            let hosts = members.hosts();
            let opening =
                EtcdSession::open(members, Keys::new(&self.chroot), ttl, self.clock.clone());
            match tokio::time::timeout_at(end, opening).await {
                Ok(Ok(session)) => return identified(session, &options).await,
                Ok(Err(Opening::Final(error))) => return Err(error),
                Ok(Err(Opening::Failed(why))) => reason = why,
                Err(_) => {}
            }
            if tokio::time::Instant::now() + PAUSE >= end {
                return Err(Error::ConnectFailed {
                    url: self.url,
                    hosts,
                    timeout: limit,
                    reason,
                    is_absent: false,
                });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Adds the store's id, which consists of the text in a key and this key's create revision. The cluster's id is not
/// sufficient, because it stays the same after the data was wiped.
async fn identified(
    mut session: EtcdSession,
    options: &ConnectOptions,
) -> Result<Arc<dyn Backend>> {
    session.store_id = Some(read_or_create_store_id(&session, options.get_acl()).await?);
    Ok(Arc::new(session))
}

/// Returns the session's timeout, rounded up to whole seconds, because etcd grants leases in seconds.
fn lease_time(options: &ConnectOptions) -> Result<Duration> {
    if options.get_auth().next().is_some() {
        let what = "identities at etcd";
        return Err(Error::Unimplemented { what });
    }
    let wanted = options
        .get_session_timeout()
        .unwrap_or(DEFAULT_SESSION_TIMEOUT);
    let seconds = wanted.as_secs() + u64::from(wanted.subsec_nanos() > 0);
    let ttl = Duration::from_secs(seconds);
    match ttl > LONGEST_TIMEOUT {
        true => Err(Error::BadArguments(format!(
            "a session timeout of {wanted:?}: at etcd it is at most {LONGEST_TIMEOUT:?}"
        ))),
        false => Ok(ttl),
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
            session::revoke(Members::new(etcd.hosts), lease.0).await?;
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
