//! [`Reporter`]: the way from the tasks of a worker to its parent, and back.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::oneshot;

use crate::report::Report;

pub(crate) struct Reporter {
    tell: Box<dyn Fn(&Report) + Send + Sync>,
    numbers: AtomicU64,
    /// Writes to resources that are not answered yet, by grant.
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

    /// Returns a number that no other grant or call has.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes to the resource with the token of a grant. Returns false if the token is refused.
    pub(crate) async fn write(&self, grant: u64) -> bool {
        let (answer, answered) = oneshot::channel();
        self.uses.lock().unwrap().insert(grant, answer);
        self.report(&Report::Use { grant });
        answered.await.unwrap_or(true)
    }

    /// Hands the resource's answer to the task that waits for it.
    pub(crate) fn used(&self, grant: u64, is_admitted: bool) {
        if let Some(answer) = self.uses.lock().unwrap().remove(&grant) {
            // The task may have given up.
            let _ = answer.send(is_admitted);
        }
    }

    /// Has each task do its last turn: all faults are over.
    pub(crate) fn finish(&self) {
        self.is_finishing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_finishing(&self) -> bool {
        self.is_finishing.load(Ordering::Relaxed)
    }
}
