//! [`StateStream`]: a watch channel of a session's state, whose readers are woken in the order in which they were
//! created.
//!
//! Not tokio's watch channel: its order of waking is random, and faults must replay from their seeds.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use parking_lot::Mutex;

use crate::fork;
use crate::types::SessionState;
use crate::wake::wake_all;

/// Sender's side: the state of a session, written by its backend.
#[derive(Debug)]
pub(super) struct States(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    state: SessionState,
    /// Number of changes.
    changes: u64,
    /// Number of connections so far.
    connections: u64,
    /// Wakers of the readers that wait, by the number of the stream.
    waiting: BTreeMap<u64, Waker>,
    streams: u64,
    /// True once the sender has been dropped.
    gone: bool,
}

impl States {
    /// Returns the state of a session that has just been connected.
    pub(super) fn connected() -> Self {
        Self(Arc::new(Mutex::new(Shared {
            state: SessionState::Connected,
            changes: 0,
            connections: 1,
            waiting: BTreeMap::new(),
            streams: 0,
            gone: false,
        })))
    }

    pub(super) fn connections(&self) -> u64 {
        self.0.lock().connections
    }

    /// Writes a new state, calls `publish`, and wakes the readers. A final state is never overwritten.
    pub(super) fn set(&self, state: SessionState, publish: impl FnOnce()) {
        let mut shared = self.0.lock();
        if shared.state.is_final() || shared.state == state {
            return;
        }
        shared.state = state;
        shared.changes += 1;
        shared.connections += u64::from(state == SessionState::Reconnected);
        publish();
        let waiting = std::mem::take(&mut shared.waiting);
        drop(shared);
        wake_all(waiting.into_values());
    }

    pub(super) fn stream(&self) -> StateStream {
        let mut shared = self.0.lock();
        shared.streams += 1;
        StateStream {
            number: shared.streams,
            seen: shared.changes,
            done: shared.state.is_final(),
            shared: self.0.clone(),
        }
    }
}

impl Drop for States {
    fn drop(&mut self) {
        let mut shared = self.0.lock();
        shared.gone = true;
        let waiting = std::mem::take(&mut shared.waiting);
        drop(shared);
        wake_all(waiting.into_values());
    }
}

/// Stream of a session's changes of state. See [`SessionStatus::states`](super::SessionStatus::states).
///
/// A slow reader misses states that were overwritten, never the latest. The stream ends after a final state.
pub struct StateStream {
    shared: Arc<Mutex<Shared>>,
    number: u64,
    /// Number of changes that it has returned or skipped.
    seen: u64,
    done: bool,
}

impl StateStream {
    /// Waits for the next change; `None` after a final state.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<SessionState> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for StateStream {
    type Item = SessionState;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<SessionState>> {
        let this = &mut *self;
        if this.done {
            return Poll::Ready(None);
        }
        // Wakers are neither cloned nor dropped under the lock: one may own a stream of this session, whose drop
        // takes it.
        let waker = context.waker().clone();
        let mut shared = this.shared.lock();
        if shared.changes != this.seen {
            this.seen = shared.changes;
            this.done = shared.state.is_final();
            return Poll::Ready(Some(shared.state));
        }
        if shared.gone {
            return Poll::Ready(None);
        }
        let former = shared.waiting.insert(this.number, waker);
        drop(shared);
        drop(former);
        Poll::Pending
    }
}

impl Drop for StateStream {
    fn drop(&mut self) {
        // In the child of a fork, the lock may be held by a thread that does not exist there.
        if fork::is_forked() {
            return;
        }
        let former = self.shared.lock().waiting.remove(&self.number);
        drop(former);
    }
}

impl fmt::Debug for StateStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateStream")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(stream: &mut StateStream) -> Poll<Option<SessionState>> {
        Pin::new(stream).poll_next(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_stream_tells_the_latest_and_ends_after_the_last() {
        let states = States::connected();
        let mut stream = states.stream();
        assert_eq!(poll(&mut stream), Poll::Pending);
        states.set(SessionState::Suspended, || ());
        states.set(SessionState::Reconnected, || ());
        assert_eq!(
            poll(&mut stream),
            Poll::Ready(Some(SessionState::Reconnected))
        );
        assert_eq!(states.connections(), 2);
        states.set(SessionState::Expired, || ());
        states.set(SessionState::Closed, || ());
        assert_eq!(poll(&mut stream), Poll::Ready(Some(SessionState::Expired)));
        assert_eq!(poll(&mut stream), Poll::Ready(None));
        assert_eq!(poll(&mut states.stream()), Poll::Ready(None));
    }

    #[test]
    fn a_stream_ends_with_its_session_and_leaves_nothing_when_dropped() {
        let states = States::connected();
        let mut stream = states.stream();
        drop({
            let mut other = states.stream();
            assert_eq!(poll(&mut other), Poll::Pending);
            other
        });
        assert!(states.0.lock().waiting.is_empty());
        drop(states);
        assert_eq!(poll(&mut stream), Poll::Ready(None));
    }
}
