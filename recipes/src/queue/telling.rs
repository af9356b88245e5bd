//! What a contender tells of its wait, and how the wait ends.

use std::time::Duration;

use lockkeeper_store::ZnodePath;

use super::turn::{Held, Terms, Waiting};
use crate::error::{LockError, Result};
use crate::events::{LockEvent, PreviousHolder};
use crate::token::FencingToken;

impl Waiting<'_> {
    /// Notes that somebody is ahead: the queue's limit, the events, the time of the wait.
    pub(crate) fn told_ahead(
        &mut self,
        by: &ZnodePath,
        count: Option<usize>,
        terms: &Terms,
    ) -> Result<()> {
        // Read too early: before its turn came.
        self.entry.alongside = None;
        if let (None, Some(limit), Some(ahead)) = (self.since, terms.queue_limit, count)
            && ahead > limit
        {
            let path = self.entry.parent.clone();
            return Err(LockError::QueueFull { path, ahead, limit });
        }
        if let Some(progress) = &terms.progress {
            // Without a number there is one at least: the entry that blocks.
            progress.note(self.entry.parent, count.unwrap_or(1));
        }
        self.previous = PreviousHolder::Unknown;
        let first = self.since.is_none();
        if self.entry.events.is_some() {
            let position = count.unwrap_or(1);
            if first {
                self.entry.put(|| LockEvent::Queued {
                    position,
                    ahead: by.clone(),
                });
            } else if self.position != Some(position) {
                self.entry.put(|| LockEvent::Advanced { position });
            }
            self.position = Some(position);
            self.since
                .get_or_insert_with(|| self.entry.session.clock().now());
        }
        Ok(())
    }

    /// Makes a holding of it. Only for one whose turn it is.
    pub(crate) fn hold(&mut self, token: FencingToken) -> Held {
        self.tell_acquired(token, self.previous);
        Held {
            token,
            lapses: self.lapses,
            mark: self.mark,
            path: self.entry.take_path(),
        }
    }

    /// Leaves the queue, in which a grant has deleted this entry's node already: its leases are
    /// held instead of it. Answers how many lapses the session had then.
    pub(crate) fn granted(mut self, token: FencingToken) -> u64 {
        // Who left the queue before has got permits: that says nothing of who gave some back.
        let previous = match self.previous {
            PreviousHolder::Free => PreviousHolder::Free,
            _ => PreviousHolder::Unknown,
        };
        self.tell_acquired(token, previous);
        self.entry.take_path();
        self.lapses
    }

    fn tell_acquired(&self, token: FencingToken, previous: PreviousHolder) {
        let clock = self.entry.session.clock();
        self.entry.put(|| LockEvent::Acquired {
            fencing_token: token,
            waited: self
                .since
                .map_or(Duration::ZERO, |since| clock.now().since(since)),
            previous,
        });
    }
}
