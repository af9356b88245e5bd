//! [`Feed`]: updates on the locks below a prefix and on the connection to their store.
//!
//! After each connection loss, a new call of [`observe_locks`] reads all locks again. The view is outdated until this
//! call returns its first item, which was read over the new connection.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, Error, LockChange, LockPrefix, ZnodePath, observe_locks};
use lockkeeper_store::{Session, SessionState};
use parking_lot::Mutex;
use tokio::sync::mpsc::Sender;

use super::grants::SeenGrants;
use crate::locks::names::escaped;
use crate::target::Target;

const BEAT: Duration = Duration::from_secs(2);

/// Time without an answer after which we regard the store as silent.
pub(crate) const SILENCE: Duration = Duration::from_secs(6);

const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) enum News {
    /// The store is reachable, and all locks are being read.
    Reading,
    /// Changed locks, or all locks if `all` is true.
    Locks { change: LockChange, all: bool },
    /// The store has answered.
    Heard,
    /// The connection is lost, but the session may continue.
    Suspended,
    /// The store is unreachable, with the reason if known.
    Lost(Option<String>),
}

/// The locks below a prefix. Clones share the client. If the store is replaced by a new one, so is the client.
#[derive(Clone)]
pub(crate) struct Feed {
    /// Settings for the connection to a new store. `None` if the store cannot be replaced.
    target: Option<Target>,
    client: Arc<Mutex<Client>>,
    prefix: LockPrefix,
}

impl Feed {
    pub(crate) fn new(target: Option<Target>, client: Client, prefix: LockPrefix) -> Self {
        let client = Arc::new(Mutex::new(client));
        Self {
            target,
            client,
            prefix,
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.client.lock().clone()
    }

    pub(crate) fn prefix(&self) -> &LockPrefix {
        &self.prefix
    }

    pub(crate) async fn watch<T: From<News>>(self, to: Sender<T>) {
        let mut grants = SeenGrants::default();
        loop {
            let client = self.client();
            let error = match self.follow(&client, &mut grants, &to).await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            let why = match &error {
                Error::ConnectionLoss | Error::SessionExpired { .. } => None,
                error => Some(escaped(&error.to_string())),
            };
            tell(&to, News::Lost(why)).await;
            // Connect a new client to the new store, because a client works with only one store.
            if matches!(error, Error::StoreChanged { .. })
                && let Some(target) = &self.target
                && let Ok(other) = target.connect().await
            {
                *self.client.lock() = other;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn follow<T: From<News>>(
        &self,
        client: &Client,
        grants: &mut SeenGrants,
        to: &Sender<T>,
    ) -> Result<std::convert::Infallible, Error> {
        let session = client.session().await?;
        let mut states = session.states();
        let expired = || Error::SessionExpired {
            session: session.id(),
        };
        let beats = listen(&session, to);
        tokio::pin!(beats);
        loop {
            while session.state() == SessionState::Suspended {
                tell(to, News::Suspended).await;
                states.next().await.ok_or_else(expired)?;
            }
            if session.state().is_final() {
                return Err(expired());
            }
            tell(to, News::Reading).await;
            let mut changes = observe_locks(client, self.prefix.clone())?;
            let mut all = true;
            loop {
                tokio::select! {
                    // Check the state first. Otherwise a change that was read before a connection loss could be
                    // reported after the loss.
                    biased;
                    state = states.next() => {
                        state.ok_or_else(expired)?;
                        break;
                    }
                    change = changes.next() => {
                        let mut change = change.unwrap_or(Err(Error::ConnectionLoss))?;
                        grants.complete(&mut change, all, client.clock().unix_ms());
                        tell(to, News::Locks { change, all }).await;
                        all = false;
                    }
                    () = &mut beats => {}
                }
            }
        }
    }
}

/// Sends a request periodically and reports the answers, because a silent connection may be dead.
async fn listen<T: From<News>>(session: &Session, to: &Sender<T>) {
    loop {
        if session.exists(&ZnodePath::root()).await.is_ok() {
            tell(to, News::Heard).await;
        }
        tokio::time::sleep(BEAT).await;
    }
}

async fn tell<T: From<News>>(to: &Sender<T>, news: News) {
    let _ = to.send(news.into()).await;
}
