//! [`FuturesUnordered`]: several futures in one task, which yields their outputs in the order of their completion.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use lockkeeper_store::wake;
use parking_lot::Mutex;

/// Several futures, each of which is polled only when it was woken itself: a wake costs the same however many wait.
///
/// As that of the crate futures, but for a fixed set, and without unsafe code.
pub(crate) struct FuturesUnordered<F> {
    children: Vec<Option<Child<F>>>,
    left: usize,
    ready: Arc<Ready>,
}

struct Child<F> {
    future: Pin<Box<F>>,
    woken: Arc<Woken>,
}

/// Futures that were woken, and the waker of the task that polls them.
#[derive(Default)]
struct Ready(Mutex<(VecDeque<usize>, Option<Waker>)>);

/// One child's waker.
struct Woken {
    index: usize,
    is_queued: AtomicBool,
    ready: Arc<Ready>,
}

impl<F: Future> FuturesUnordered<F> {
    pub(crate) fn new(futures: impl IntoIterator<Item = F>) -> Self {
        let ready = Arc::new(Ready::default());
        let children = futures.into_iter().enumerate().map(|(index, future)| {
            let woken = Arc::new(Woken {
                index,
                is_queued: AtomicBool::new(true),
                ready: ready.clone(),
            });
            let future = Box::pin(future);
            Some(Child { future, woken })
        });
        let children: Vec<_> = children.collect();
        ready.0.lock().0.extend(0..children.len());
        Self {
            left: children.len(),
            children,
            ready,
        }
    }

    /// Returns the next output with the index of its future; `None` when all are done. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<(usize, F::Output)> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Returns the index of the first future that is not done.
    pub(crate) fn first_left(&self) -> Option<usize> {
        self.children.iter().position(Option::is_some)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, F::Output)>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let waker = context.waker().clone();
        let former = self.ready.0.lock().1.replace(waker);
        // Not under the lock: dropping the last clone of a waker may drop a task, which may wake a child in turn.
        drop(former);
        // Only as many as are ready now: a child that wakes itself at once must not keep the thread from other tasks.
        let mut turns = self.ready.0.lock().0.len();
        while turns > 0 {
            turns -= 1;
            let Some(index) = self.ready.0.lock().0.pop_front() else {
                break;
            };
            let Some(child) = &mut self.children[index] else {
                continue;
            };
            // Before the poll: a wake in the middle of it must queue the child again.
            child.woken.is_queued.store(false, Ordering::SeqCst);
            let waker = Waker::from(child.woken.clone());
            let polled = child.future.as_mut().poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(output) = polled {
                self.children[index] = None;
                self.left -= 1;
                return Poll::Ready(Some((index, output)));
            }
        }
        Poll::Pending
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        if self.is_queued.swap(true, Ordering::SeqCst) {
            return;
        }
        let waker = {
            let mut ready = self.ready.0.lock();
            ready.0.push_back(self.index);
            ready.1.take()
        };
        waker.into_iter().for_each(wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_executor::block_on;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn outcomes_come_in_the_order_in_which_they_are_ready() {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..4).map(|_| oneshot::channel()).unzip();
        let mut together = FuturesUnordered::new(receivers);
        let order = [2, 0, 3, 1];
        let mut senders: Vec<_> = senders.into_iter().map(Some).collect();
        for index in order {
            senders[index].take().unwrap().send(index).unwrap();
            assert_eq!(block_on(together.next()), Some((index, Ok(index))));
        }
        assert_eq!(block_on(together.next()), None);
    }

    #[test]
    fn only_who_is_woken_is_polled() {
        let polls = AtomicUsize::new(0);
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..100).map(|_| oneshot::channel::<()>()).unzip();
        let counted = receivers.into_iter().map(|mut receiver| {
            let polls = &polls;
            poll_fn(move |context| {
                polls.fetch_add(1, Ordering::Relaxed);
                Pin::new(&mut receiver).poll(context)
            })
        });
        let mut together = FuturesUnordered::new(counted);
        let mut context = Context::from_waker(Waker::noop());
        assert!(together.poll_next(&mut context).is_pending());
        for sender in senders {
            sender.send(()).unwrap();
            assert!(together.poll_next(&mut context).is_ready());
        }
        assert_eq!(polls.into_inner(), 200);
    }

    #[test]
    fn one_that_wakes_itself_does_not_keep_the_thread() {
        let busy = poll_fn(|context: &mut Context<'_>| {
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        let mut together = FuturesUnordered::new([busy]);
        let mut context = Context::from_waker(Waker::noop());
        assert!(together.poll_next(&mut context).is_pending());
        assert_eq!(together.first_left(), Some(0));
    }

    /// A waker, as that of a task which owns what another child waits for.
    struct Owner(#[expect(dead_code, reason = "it is only dropped")] oneshot::Sender<()>);

    impl Wake for Owner {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_waker_that_is_replaced_may_wake_a_child_as_it_is_dropped() {
        let (ended, end) = std::sync::mpsc::channel();
        // A thread of its own: a deadlock never comes back.
        std::thread::spawn(move || {
            let (sender, receiver) = oneshot::channel();
            let mut together = FuturesUnordered::new([receiver]);
            let waker = Waker::from(Arc::new(Owner(sender)));
            let polled = together.poll_next(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            drop(waker);
            // Takes the waker's place, and with it goes the sender.
            let polled = together.poll_next(&mut Context::from_waker(Waker::noop()));
            ended.send(polled.is_ready()).unwrap();
        });
        let limit = std::time::Duration::from_secs(20);
        assert_eq!(end.recv_timeout(limit), Ok(true), "it waits for itself");
    }
}
