//! Those who wait, in an order that is known, and those who hold.

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::meter::Meter;
use crate::subjects::{Side, Subject};

/// Those who wait, all through one session, and those who hold.
pub(crate) struct Line<S: Subject> {
    subject: S,
    waiting: JoinSet<()>,
    held: Vec<S::Held>,
    grant: mpsc::UnboundedSender<(Side, S::Held)>,
    granted: mpsc::UnboundedReceiver<(Side, S::Held)>,
}

impl<S: Subject> Line<S> {
    /// So many who hold, and nobody who waits.
    pub(crate) async fn held_by(subject: &S, holders: usize) -> Self {
        let (grant, granted) = mpsc::unbounded_channel();
        let mut held = Vec::new();
        for _ in 0..holders {
            held.push(subject.take(Side::Write).await);
        }
        Self {
            subject: subject.clone(),
            waiting: JoinSet::new(),
            held,
            grant,
            granted,
        }
    }

    /// So many more begin to wait on this side.
    pub(crate) async fn queue_up(&mut self, side: Side, count: usize) {
        for _ in 0..count {
            let (subject, grant) = (self.subject.clone(), self.grant.clone());
            self.waiting.spawn(async move {
                let held = subject.take(side).await;
                // When the line has ended nobody wants it any more.
                let _ = grant.send((side, held));
            });
            // Tasks run in the order of their spawning, and so do the requests of one session.
            tokio::task::yield_now().await;
        }
    }

    /// The first or the last so many of those who hold let go, and the next so many are granted it.
    pub(crate) async fn hand_over(
        &mut self,
        leaving: Leaving,
        next: (Side, usize),
        meter: &mut Meter<'_>,
    ) {
        let leave = match leaving {
            Leaving::OldestFirst(count) => self.held.drain(..count).collect(),
            Leaving::NewestFirst => {
                self.held.reverse();
                std::mem::take(&mut self.held)
            }
        };
        for held in leave {
            S::leave(held).await;
            if matches!(leaving, Leaving::NewestFirst) {
                // Each departure is seen before the next: the most that they can cost.
                meter.read().await;
            }
        }
        for _ in 0..next.1 {
            let (side, held) = self.granted.recv().await.expect("the line holds a sender");
            assert_eq!(side, next.0, "the queue is fair");
            self.held.push(held);
        }
        // Readers hear of their grants in any order.
        self.held.sort_by_key(S::token);
    }

    /// Nobody waits any more.
    pub(crate) async fn end(mut self) {
        self.waiting.shutdown().await;
    }
}

/// Holders that release before a hand-over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leaving {
    /// So many, at once.
    OldestFirst(usize),
    /// All, one after the other.
    NewestFirst,
}
