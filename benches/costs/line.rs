//! [`Line`]: holders of a lock, and waiters in a known order.

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use lockkeeper::LockGuard;

use crate::common::recipes::{self, BenchLock, Side};
use crate::meter::Meter;

/// Holders and waiters in a single session.
pub(crate) struct Line<S: BenchLock> {
    subject: S,
    waiting: JoinSet<()>,
    held: Vec<S::Held>,
    grant: mpsc::UnboundedSender<(Side, S::Held)>,
    granted: mpsc::UnboundedReceiver<(Side, S::Held)>,
}

impl<S: BenchLock> Line<S> {
    pub(crate) async fn held_by(subject: &S, holders: usize) -> Self {
        let (grant, granted) = mpsc::unbounded_channel();
        let mut held = Vec::new();
        for _ in 0..holders {
            held.push(subject.take(Side::Write).await.expect("granted"));
        }
        Self {
            subject: subject.clone(),
            waiting: JoinSet::new(),
            held,
            grant,
            granted,
        }
    }

    pub(crate) async fn queue_up(&mut self, side: Side, count: usize) {
        for _ in 0..count {
            let (subject, grant) = (self.subject.clone(), self.grant.clone());
            self.waiting.spawn(async move {
                let held = subject.take(side).await.expect("granted");
                // The line has ended if the receiver is gone.
                let _ = grant.send((side, held));
            });
            // Tasks run in the order of spawning, and so do the requests of one session.
            tokio::task::yield_now().await;
        }
    }

    /// Releases the oldest or the newest holders, and waits for the next grants.
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
            held.release().await.expect("released");
            if matches!(leaving, Leaving::NewestFirst) {
                // Let each departure be seen before the next, which is the most that they can cost.
                meter.read().await;
            }
        }
        for _ in 0..next.1 {
            let (side, held) = self.granted.recv().await.expect("the line holds a sender");
            assert_eq!(side, next.0, "the queue is fair");
            self.held.push(held);
        }
        // The tasks of several readers are woken in any order.
        self.held.sort_by_key(recipes::token);
    }

    pub(crate) async fn end(mut self) {
        self.waiting.shutdown().await;
    }
}

/// Holders that release before a hand-over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leaving {
    /// The given number, together.
    OldestFirst(usize),
    /// All, one after the other.
    NewestFirst,
}
