//! A watch channel, which holds the latest value and lets tasks wait for a condition on it.
//!
//! It differs from `tokio::sync::watch` in three properties that the locks need:
//! - Tasks wake in the order of their receivers. tokio wakes them in a random order, so a simulated run could not be
//!   replayed from its seed.
//! - Wakers run outside the lock, because they are user code. A panicking waker does not affect the others.
//! - Dropping a receiver in a forked child does not take the lock, which may stay locked there forever.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::runtime::future::wake_all;
use crate::runtime::process::is_forked;

#[derive(Debug, Default)]
struct Shared<T> {
    value: T,
    /// Wakers by receiver number, which is the order of waking.
    waiting: BTreeMap<u64, Waker>,
    receivers: u64,
    closed: bool,
}

/// The sending half, which owns the value. Dropping it closes the channel.
#[derive(Debug, Default)]
pub struct WatchSender<T>(Arc<Mutex<Shared<T>>>);

impl<T> WatchSender<T> {
    /// Creates a channel with an initial value.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new(Shared {
            value,
            waiting: BTreeMap::new(),
            receivers: 0,
            closed: false,
        })))
    }

    /// Reads the value under the channel's lock.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.0.lock().value)
    }

    /// Changes the value and wakes receivers.
    pub fn modify<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        modify(&self.0, |value| Some(change(value))).expect("it was changed")
    }

    /// Changes the value, and wakes receivers only if `change` returns `Some`.
    pub fn modify_if<R>(&self, change: impl FnOnce(&mut T) -> Option<R>) -> Option<R> {
        modify(&self.0, change)
    }

    /// Creates a receiver.
    pub fn subscribe(&self) -> WatchReceiver<T> {
        subscribe(&self.0)
    }

    /// Creates a handle that can wake receivers without keeping the channel open.
    pub fn notifier(&self) -> WatchNotifier<T> {
        WatchNotifier(self.0.clone())
    }
}

fn modify<T, R>(shared: &Mutex<Shared<T>>, change: impl FnOnce(&mut T) -> Option<R>) -> Option<R> {
    let mut locked = shared.lock();
    let changed = change(&mut locked.value)?;
    let waiting = std::mem::take(&mut locked.waiting);
    // Unlock first, because a waker may run a task in place, and that task may call this channel.
    drop(locked);
    wake_all(waiting.into_values());
    Some(changed)
}

fn subscribe<T>(shared: &Arc<Mutex<Shared<T>>>) -> WatchReceiver<T> {
    let mut locked = shared.lock();
    locked.receivers += 1;
    WatchReceiver {
        number: locked.receivers,
        shared: shared.clone(),
    }
}

impl<T> Drop for WatchSender<T> {
    fn drop(&mut self) {
        let mut shared = self.0.lock();
        shared.closed = true;
        let waiting = std::mem::take(&mut shared.waiting);
        drop(shared);
        wake_all(waiting.into_values());
    }
}

/// Wakes receivers whose condition depends on more than the channel's value.
#[derive(Debug)]
pub struct WatchNotifier<T>(Arc<Mutex<Shared<T>>>);

impl<T> WatchNotifier<T> {
    /// Wakes every waiting receiver, so that each checks its condition again.
    pub fn notify(&self) {
        modify(&self.0, |_| Some(()));
    }
}

/// The receiving half. A clone is a new receiver that wakes after the existing ones.
pub struct WatchReceiver<T> {
    number: u64,
    shared: Arc<Mutex<Shared<T>>>,
}

impl<T> WatchReceiver<T> {
    /// Reads the value under the channel's lock.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.shared.lock().value)
    }

    /// Polls until `pick` returns `Some`. Returns `Ready(None)` if `pick` returns `None` and the sender is gone.
    ///
    /// `pick` runs under the channel's lock, so no change is missed between the check and the registration.
    pub fn poll_pick<R>(
        &mut self,
        context: &mut Context<'_>,
        pick: impl FnOnce(&T) -> Option<R>,
    ) -> Poll<Option<R>> {
        // Clone and drop wakers outside the lock, because a waker may own receivers of this channel.
        let waker = context.waker().clone();
        let mut shared = self.shared.lock();
        if let Some(picked) = pick(&shared.value) {
            return Poll::Ready(Some(picked));
        }
        if shared.closed {
            return Poll::Ready(None);
        }
        let former = shared.waiting.insert(self.number, waker);
        drop(shared);
        drop(former);
        Poll::Pending
    }
}

impl<T> Clone for WatchReceiver<T> {
    fn clone(&self) -> Self {
        subscribe(&self.shared)
    }
}

impl<T> Drop for WatchReceiver<T> {
    fn drop(&mut self) {
        // In a forked child the lock may stay locked forever, because its owner may exist only in the parent.
        if is_forked() {
            return;
        }
        let former = self.shared.lock().waiting.remove(&self.number);
        drop(former);
    }
}

impl<T> fmt::Debug for WatchReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchReceiver").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    fn poll(receiver: &mut WatchReceiver<u32>, over: u32) -> Poll<Option<u32>> {
        let mut context = Context::from_waker(Waker::noop());
        receiver.poll_pick(&mut context, |value| (*value > over).then_some(*value))
    }

    #[test]
    fn a_receiver_sees_the_latest_value_and_ends_with_the_sender() {
        let sender = WatchSender::new(0);
        let mut receiver = sender.subscribe();
        assert_eq!(poll(&mut receiver, 0), Poll::Pending);
        sender.modify(|value| *value = 1);
        sender.modify(|value| *value = 2);
        assert_eq!(poll(&mut receiver, 0), Poll::Ready(Some(2)));
        drop(sender);
        assert_eq!(poll(&mut receiver, 1), Poll::Ready(Some(2)));
        assert_eq!(poll(&mut receiver, 2), Poll::Ready(None));
    }

    #[test]
    fn a_dropped_receiver_leaves_nothing() {
        let sender = WatchSender::new(0);
        drop({
            let mut receiver = sender.subscribe();
            assert_eq!(poll(&mut receiver, 0), Poll::Pending);
            receiver
        });
        assert!(sender.0.lock().waiting.is_empty());
    }

    struct Noting(AtomicUsize, Arc<AtomicUsize>);

    impl Wake for Noting {
        fn wake(self: Arc<Self>) {
            let turn = self.1.fetch_add(1, Ordering::Relaxed);
            self.0.store(turn, Ordering::Relaxed);
        }
    }

    #[test]
    fn receivers_are_woken_in_the_order_of_their_creation() {
        let (sender, turns) = (WatchSender::new(0), Arc::new(AtomicUsize::new(0)));
        let mut receivers: Vec<_> = (0..100).map(|_| sender.subscribe()).collect();
        let noting = || Arc::new(Noting(AtomicUsize::new(usize::MAX), turns.clone()));
        let woken: Vec<_> = (0..100).map(|_| noting()).collect();
        for (receiver, woken) in receivers.iter_mut().zip(&woken).rev() {
            let waker = Waker::from(woken.clone());
            let polled = receiver.poll_pick(&mut Context::from_waker(&waker), |_| None::<()>);
            assert!(polled.is_pending());
        }
        sender.modify(|value| *value = 1);
        let order: Vec<_> = woken
            .iter()
            .map(|woken| woken.0.load(Ordering::Relaxed))
            .collect();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
