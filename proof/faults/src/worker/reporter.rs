//! [`Reporter`]: the communication between the tasks of a worker and its parent.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::oneshot;

use crate::report::Report;

pub(crate) struct Reporter {
    tell: Box<dyn Fn(&Report) + Send + Sync>,
    numbers: AtomicU64,
    /// Unanswered writes to resources, by grant.
    uses: Mutex<HashMap<u64, oneshot::Sender<bool>>>,
    is_finishing: AtomicBool,
}

impl Reporter {
    pub(crate) fn new(tell: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        Self {
            tell: Box::new(tell),
            numbers: AtomicU64::new(0),
            uses: Mutex::default(),
            is_finishing: AtomicBool::new(false),
        }
    }

    pub(crate) fn report(&self, report: &Report) {
        (self.tell)(report);
    }

    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes to the resource with the token of a grant. Returns `false` if the token is refused.
    pub(crate) async fn write(&self, grant: u64) -> bool {
        let (answer, answered) = oneshot::channel();
        self.uses.lock().unwrap().insert(grant, answer);
        self.report(&Report::Use { grant });
        answered.await.unwrap_or(true)
    }

    /// Passes the resource's answer to the waiting task.
    pub(crate) fn used(&self, grant: u64, is_admitted: bool) {
        if let Some(answer) = self.uses.lock().unwrap().remove(&grant) {
            // The task may have given up.
            let _ = answer.send(is_admitted);
        }
    }

    /// Lets each task do its last turn, because all faults are over.
    pub(crate) fn finish(&self) {
        self.is_finishing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_finishing(&self) -> bool {
        self.is_finishing.load(Ordering::Relaxed)
    }
}
