//! [`Feed`]: news of the locks below a prefix, and of the connection to their store.
//!
//! After each loss of the connection all locks are read again, and only that makes what is shown count as up to date: the
//! first item of a new [`observe_locks`] has been read on the new connection.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Client, Error, LockChange, LockPrefix, ZnodePath, observe_locks};
use lockkeeper_store::{Session, SessionState};
use parking_lot::Mutex;
use tokio::sync::mpsc::Sender;

use super::grants::SeenGrants;
use crate::locks::names::escaped;
use crate::target::Target;

/// Interval at which the store is asked whether it is still there.
const BEAT: Duration = Duration::from_secs(2);

/// Time without an answer from which the store counts as silent.
pub(crate) const SILENCE: Duration = Duration::from_secs(6);

/// Pause before another attempt.
const PAUSE: Duration = Duration::from_secs(1);

/// News of a feed.
#[derive(Debug)]
pub(crate) enum News {
    /// The store can be reached, and the locks are being read.
    Reading,
    /// The locks: all, or those that have changed.
    Locks { change: LockChange, all: bool },
    /// The store has answered.
    Heard,
    /// The connection is lost, and the session may go on.
    Suspended,
    /// The store cannot be reached, with the reason where one is known.
    Lost(Option<String>),
}

/// The locks below a prefix of a store. Its client is another one after the store was replaced by a new one. A clone is
/// the same feed.
#[derive(Clone)]
pub(crate) struct Feed {
    /// The way to the store that has replaced the first; `None` for one that cannot be replaced.
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

    /// Tells of the locks, for as long as it is polled.
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
            // A client serves one store, whose tokens compare. A person who looks at a URL means what is there now.
            if matches!(error, Error::StoreChanged { .. })
                && let Some(target) = &self.target
                && let Ok(other) = target.connect().await
            {
                *self.client.lock() = other;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Tells of the locks until the session ends, or the store refuses to show them.
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
                    // In this order: what was read before a loss is not told after it.
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

/// Asks the store for a sign of life, again and again: a connection on which nothing comes may be dead.
async fn listen<T: From<News>>(session: &Session, to: &Sender<T>) {
    loop {
        if session.exists(&ZnodePath::root()).await.is_ok() {
            tell(to, News::Heard).await;
        }
        tokio::time::sleep(BEAT).await;
    }
}

/// Nobody listens any more when the command ends.
async fn tell<T: From<News>>(to: &Sender<T>, news: News) {
    let _ = to.send(news.into()).await;
}
