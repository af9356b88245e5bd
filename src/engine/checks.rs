//! Checks of a whole store in memory, for the conversation fuzzer.

use super::Store;
use crate::core::Journal;

impl Store {
    /// Keeps every transaction for [`check_replay`](Self::check_replay). Call this before the first transaction.
    pub(crate) fn keep_transactions(&self) {
        self.0.state.lock().core.set_journal(Journal::All);
    }

    /// Checks every count of the core, and checks that replaying the kept transactions gives the same content.
    ///
    /// # Panics
    /// If a check fails.
    pub(crate) fn check_replay(&self) {
        self.0.state.lock().core.check_replay();
    }
}
