//! [`Progress`]: how far a wait has come, for the error of one that ends with its timeout.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{Client, ZnodePath};
use parking_lot::Mutex;

use crate::error::LockError;

/// Contenders ahead in each queue that a wait stands in, as they were last seen. A clone is the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<Mutex<Vec<(ZnodePath, usize)>>>);

impl Progress {
    pub(crate) fn note(&self, queue: &ZnodePath, ahead: usize) {
        let mut queues = self.0.lock();
        match queues.iter_mut().find(|(known, _)| known == queue) {
            Some((_, last)) => *last = ahead,
            None => queues.push((queue.clone(), ahead)),
        }
    }

    /// The error of a wait at `path`, which stands in the queue at `queue`.
    pub(crate) fn timed_out(
        &self,
        client: &Client,
        path: &ZnodePath,
        queue: &ZnodePath,
        after: Duration,
    ) -> LockError {
        let queues = self.0.lock();
        let seen = queues.iter().find(|(known, _)| known == queue);
        // What was seen before the connection was lost is no answer.
        let answers = client.current_session().state().is_connected();
        LockError::Timeout {
            path: path.clone(),
            after,
            ahead: seen.map(|(_, ahead)| *ahead).filter(|_| answers),
        }
    }
}
