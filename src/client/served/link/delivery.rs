//! Delivery of replies, events and changes of state, in the session's order and without holding its mutex.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};

use super::Link;
use crate::backend::SessionStatus;
use crate::client::served::session::{End, Opened};
use crate::model::error::{Error, Result};
use crate::model::protocol::{Reply, SharedReply};
use crate::model::types::SessionState;
use crate::model::watch::{WatchCell, WatchUpdate, WatchedEvent};
use crate::runtime::future::wake;

#[derive(Default)]
pub(super) struct DeliveryQueue {
    pub(super) items: VecDeque<Delivery>,
    is_busy: bool,
}

pub(super) enum Delivery {
    Reply(Arc<ReplyCell>, Result<Reply>),
    Event(Arc<WatchCell>, WatchedEvent),
    Interrupted(Arc<WatchCell>),
    Unwatched(Arc<WatchCell>),
    Opened(Opened),
    Suspended,
    Ended(End, Vec<Arc<WatchCell>>),
}

#[derive(Default)]
pub(in super::super) struct ReplyCell {
    pub(super) reply: Mutex<Option<Result<Reply>>>,
    waker: AtomicWaker,
}

impl Link {
    /// Delivers all queued items. Returns immediately if another thread, or a function further up the stack, is already
    /// delivering.
    pub(super) fn deliver(self: &Arc<Self>) {
        let mut queue = self.delivery.lock();
        if std::mem::replace(&mut queue.is_busy, true) {
            return;
        }
        while let Some(delivery) = queue.items.pop_front() {
            MutexGuard::unlocked(&mut queue, || {
                // If a panic propagated, `is_busy` would stay set and the session would deliver nothing more. We end
                // the session instead, because the receiver of this item may otherwise wait forever.
                if catch_unwind(AssertUnwindSafe(|| self.carry_out(delivery))).is_err() {
                    self.give_up();
                }
            });
        }
        queue.is_busy = false;
    }

    fn carry_out(&self, delivery: Delivery) {
        match delivery {
            Delivery::Reply(cell, reply) => {
                *cell.reply.lock() = Some(reply);
                cell.waker.take().into_iter().for_each(wake);
            }
            Delivery::Event(cell, event) => {
                cell.put(WatchUpdate::Event(event));
                cell.wake();
            }
            Delivery::Interrupted(cell) => {
                cell.interrupt();
                cell.wake();
            }
            Delivery::Unwatched(cell) => {
                cell.end(Error::ConnectionLoss);
                cell.wake();
            }
            Delivery::Opened(opened) => self.opened(opened),
            Delivery::Suspended => {
                if let Some(status) = self.status() {
                    // The next connection may negotiate another timeout.
                    status.unsettle_timeout();
                    status.set_state(SessionState::Suspended);
                }
            }
            Delivery::Ended(end, cells) => self.ended(end, cells),
        }
    }

    fn opened(&self, opened: Opened) {
        let Opened {
            id,
            timeout,
            sent,
            tick,
        } = opened;
        let Some(status) = self.status() else {
            let clock = self.clock.clone();
            let status = SessionStatus::new(id, clock, Some(timeout), tick.is_some(), sent);
            let status = status.with_tick(tick.unwrap_or_default());
            let _ = self.status.set(Arc::new(status));
            self.progress.notify_one();
            return;
        };
        // Extend the lease before publishing the state, because a waiter that the new state wakes reads the lease.
        status.prove(sent);
        status.set_timeout(timeout);
        status.set_state(SessionState::Reconnected);
    }

    fn ended(&self, end: End, cells: Vec<Arc<WatchCell>>) {
        if let Some(status) = self.status() {
            status.set_state(match end {
                End::Expired | End::AuthFailed => SessionState::Expired,
                End::Closed => SessionState::Closed,
            });
            if let Some(error) = status.end() {
                for cell in cells {
                    cell.end(error.clone());
                    cell.wake();
                }
            }
        }
        self.progress.notify_one();
    }
}

impl SharedReply for ReplyCell {
    fn poll_take(&self, context: &mut Context<'_>) -> Poll<Result<Reply>> {
        if let Some(reply) = self.reply.lock().take() {
            return Poll::Ready(reply);
        }
        self.waker.register(context.waker());
        // The reply may have arrived before the waker was registered.
        self.reply.lock().take().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::client::served::link::tests::new_link;
    use crate::runtime::clock::Clock;

    struct PanickingWaker;

    impl Wake for PanickingWaker {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }

    struct PanickingSubscriber;

    impl Subscriber for PanickingSubscriber {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            panic!("a subscriber that panics");
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_panic_ends_the_session_and_holds_no_reply_back() {
        let link = new_link(Clock::new_virtual());
        let replies: [Arc<ReplyCell>; 3] = Default::default();
        let deliver = |reply: &Arc<ReplyCell>| {
            let delivery = Delivery::Reply(reply.clone(), Ok(Reply::Done));
            link.delivery.lock().items.push_back(delivery);
        };
        replies[0].waker.register(&Arc::new(PanickingWaker).into());
        deliver(&replies[0]);
        deliver(&replies[1]);
        tracing::subscriber::with_default(PanickingSubscriber, || {
            let _ = catch_unwind(AssertUnwindSafe(|| link.deliver()));
        });
        deliver(&replies[2]);
        link.deliver();
        for reply in replies {
            assert!(reply.reply.lock().is_some(), "a reply is held back");
        }
        assert!(
            link.is_over(),
            "a caller that missed a delivery would wait for ever"
        );
    }
}
