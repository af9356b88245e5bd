//! News from the store: the locks as they change, and the state of the connection.
//!
//! After each loss of the connection all locks are read again, and only that makes the screen count as up to date: the
//! first item of a new [`observe_locks`] has been read on the new connection.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper::{Client, Error, LockPrefix, Revoker, ZnodePath, lock_queue, observe_locks};
use lockkeeper_store::{Session, SessionState};
use tokio::sync::mpsc::Sender;

use super::state::{Input, Revocation};
use crate::locks::described;
use crate::locks::names::{escaped, lock_name};
use crate::revoke;
use crate::target::Target;

/// Interval at which the store is asked whether it is still there.
const BEAT: Duration = Duration::from_secs(2);

/// Pause before another attempt, and between two readings of an open queue.
const PAUSE: Duration = Duration::from_secs(1);

/// An open queue is left in peace for this many times as long as it took to be read.
const PAUSE_FACTOR: u32 = 10;

/// The store that is watched. Its client is another one after the store was replaced by a new one.
#[derive(Clone)]
pub(super) struct Store {
    target: Target,
    client: Arc<Mutex<Client>>,
    prefix: LockPrefix,
    tell: Sender<Input>,
}

impl Store {
    pub(super) fn new(
        target: Target,
        client: Client,
        prefix: LockPrefix,
        tell: Sender<Input>,
    ) -> Self {
        let client = Arc::new(Mutex::new(client));
        Self {
            target,
            client,
            prefix,
            tell,
        }
    }

    pub(super) fn client(&self) -> Client {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody listens any more when the command ends.
    async fn tell(&self, input: Input) {
        let _ = self.tell.send(input).await;
    }

    /// Tells of the locks, for as long as it is polled.
    pub(super) async fn watch(self) {
        loop {
            let client = self.client();
            let error = match self.follow(&client).await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            let why = match &error {
                Error::ConnectionLoss | Error::SessionExpired { .. } => None,
                error => Some(escaped(&error.to_string())),
            };
            self.tell(Input::Lost(why)).await;
            // A client serves one store, whose tokens compare. A person who looks at a URL means what is there now.
            if matches!(error, Error::StoreChanged { .. })
                && let Ok(other) = self.target.connect().await
            {
                *self.lock() = other;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Tells of the locks until the session ends, or the store refuses to show them.
    async fn follow(&self, client: &Client) -> Result<std::convert::Infallible, Error> {
        let session = client.session().await?;
        let mut states = session.states();
        let expired = || Error::SessionExpired {
            session: session.id(),
        };
        let beats = self.listen(&session);
        tokio::pin!(beats);
        loop {
            while session.state() == SessionState::Suspended {
                self.tell(Input::Lost(None)).await;
                states.next().await.ok_or_else(expired)?;
            }
            if session.state().is_final() {
                return Err(expired());
            }
            self.tell(Input::Reading).await;
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
                        let change = change.unwrap_or(Err(Error::ConnectionLoss))?;
                        self.tell(Input::Locks { change, all }).await;
                        all = false;
                    }
                    () = &mut beats => {}
                }
            }
        }
    }

    /// Asks the store for a sign of life, again and again: a connection on which nothing comes may be dead.
    async fn listen(&self, session: &Session) {
        loop {
            if session.exists(&ZnodePath::root()).await.is_ok() {
                self.tell(Input::Heard).await;
            }
            tokio::time::sleep(BEAT).await;
        }
    }

    /// Tells of the queue of a lock, for as long as it is polled.
    pub(super) async fn watch_queue(self, lock: ZnodePath) {
        loop {
            let began = Instant::now();
            let queue = match lock_queue(&self.client(), &lock).await {
                // The line of the connection tells of these.
                Err(Error::ConnectionLoss | Error::SessionExpired { .. }) => None,
                queue => Some(queue.map_err(|error| error.to_string())),
            };
            if let Some(queue) = queue {
                let lock = lock.clone();
                self.tell(Input::Queue { lock, queue }).await;
            }
            let took = began.elapsed();
            tokio::time::sleep(PAUSE.max(took * PAUSE_FACTOR)).await;
        }
    }

    /// Asks the holder that was confirmed, or takes the lock from it; from nobody else.
    pub(super) async fn revoke(self, revocation: Revocation) {
        let holder = &revocation.holder;
        let revoker = Revoker::new(&self.client()).by(revoke::user("top"));
        let (reached, did) = match revocation.force {
            true => (
                revoke::take(&revoker, std::slice::from_ref(holder)).await,
                "removed",
            ),
            false => (revoke::ask_entry(&revoker, holder).await, "asked"),
        };
        let name = escaped(&lock_name(&revocation.lock));
        let text = match reached {
            Ok(reached) if reached.is_empty() => {
                format!("{name}: that holder has left by itself: nothing was done")
            }
            Ok(_) => format!("{name}: {did} {}", described(holder)),
            Err(error) => format!("{name}: {}", escaped(&error.to_string())),
        };
        self.tell(Input::Done(text)).await;
    }
}
