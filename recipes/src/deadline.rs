//! [`CallDeadline`]: the deadline of a whole call, and its timeout error.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockkeeper_store::{BootInstant, Client, SessionState, ZnodePath};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::{LockError, Result};
use crate::select::{Either, select};

/// Deadline of a call. The timeout starts when this value is created.
pub(crate) struct CallDeadline {
    client: Client,
    timeout: Option<Timeout>,
}

struct Timeout {
    after: Duration,
    end: BootInstant,
    progress: Progress,
}

impl CallDeadline {
    pub(crate) fn new(client: &Client, timeout: Option<(Duration, Progress)>) -> Self {
        Self {
            client: client.clone(),
            timeout: timeout.map(|(after, progress)| Timeout {
                after,
                end: client.clock().now().after(after),
                progress,
            }),
        }
    }

    /// Runs `work` until the deadline. A timeout error names `lock` and contains the number of contenders ahead in
    /// `queue`.
    pub(crate) async fn run<T>(
        &self,
        lock: &ZnodePath,
        queue: &ZnodePath,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match self.race(work).await {
            Some(outcome) => outcome,
            None => Err(self.error(lock, queue)),
        }
    }

    /// Runs `work` until the deadline. Returns `None` if the deadline passes first.
    pub(crate) async fn race<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let Some(timeout) = &self.timeout else {
            return Some(work.await);
        };
        // `select` polls the work first, so a lock that is granted exactly at the deadline counts as granted.
        let passed = async {
            match timeout.after.is_zero() {
                true => self.one_attempt(&timeout.progress).await,
                false => self.client.clock().sleep_by_ticks_until(timeout.end).await,
            }
            // Set `is_over` before dropping `work`, because the drop reads it to report a timeout and not a cancelled
            // wait.
            timeout.progress.end();
        };
        // Boxed to keep the futures of waits without a deadline small.
        match Box::pin(select(work, passed)).await {
            Either::Left(output) => Some(output),
            Either::Right(()) => None,
        }
    }

    /// Waits until the single attempt that a zero timeout allows has failed. The attempt fails when the call waits for
    /// another contender or loses the connection.
    async fn one_attempt(&self, progress: &Progress) {
        let session = self.client.current_session();
        let mut states = session.states();
        let disconnected = async {
            let mut state = Some(session.state());
            while state != Some(SessionState::Suspended) {
                match state {
                    Some(_) => state = states.next().await,
                    None => pending().await,
                }
            }
        };
        select(progress.blocked(), disconnected).await;
    }

    pub(crate) fn error(&self, lock: &ZnodePath, queue: &ZnodePath) -> LockError {
        // Without a connection, the last count may be outdated, so the error contains no count.
        let is_connected = self.client.current_session().state().is_connected();
        let timeout = self.timeout.as_ref();
        LockError::Timeout {
            path: lock.clone(),
            after: timeout.map(|it| it.after).unwrap_or_default(),
            ahead: timeout
                .and_then(|it| it.progress.ahead(queue))
                .filter(|_| is_connected),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Number of contenders ahead, as last read, for each of the call's queues.
    ahead: Mutex<Vec<(ZnodePath, usize)>>,
    is_over: AtomicBool,
    blocked: Notify,
}

impl Progress {
    pub(crate) fn note(&self, queue: &ZnodePath, ahead: usize) {
        let mut queues = self.0.ahead.lock();
        match queues.iter_mut().find(|(known, _)| known == queue) {
            Some((_, last)) => *last = ahead,
            None => queues.push((queue.clone(), ahead)),
        }
        self.note_wait();
    }

    pub(crate) fn note_wait(&self) {
        self.0.blocked.notify_one();
    }

    async fn blocked(&self) {
        self.0.blocked.notified().await;
    }

    fn end(&self) {
        self.0.is_over.store(true, Ordering::Release);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_over.load(Ordering::Acquire)
    }

    fn ahead(&self, queue: &ZnodePath) -> Option<usize> {
        let queues = self.0.ahead.lock();
        let seen = queues.iter().find(|(known, _)| known == queue);
        seen.map(|(_, ahead)| *ahead)
    }
}
