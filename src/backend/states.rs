//! [`StateStream`]: the changes of a session's state. Readers are woken in the order of their subscription.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::model::types::SessionState;
use crate::runtime::watch_channel::{WatchReceiver, WatchSender};

#[derive(Debug)]
pub(super) struct States(WatchSender<Latest>);

#[derive(Debug)]
struct Latest {
    state: SessionState,
    changes: u64,
    connections: u64,
}

impl States {
    pub(super) fn connected() -> Self {
        Self(WatchSender::new(Latest {
            state: SessionState::Connected,
            changes: 0,
            connections: 1,
        }))
    }

    pub(super) fn connections(&self) -> u64 {
        self.0.read(|latest| latest.connections)
    }

    /// Does nothing if the current state is final or the same.
    pub(super) fn set(&self, state: SessionState, publish: impl FnOnce()) {
        // `publish` runs under the channel's lock, before any reader is woken. So concurrent writers publish states in
        // order, and a woken reader finds the published state.
        self.0.modify_if(|latest| {
            if latest.state.is_final() || latest.state == state {
                return None;
            }
            latest.state = state;
            latest.changes += 1;
            latest.connections += u64::from(state == SessionState::Reconnected);
            publish();
            Some(())
        });
    }

    pub(super) fn stream(&self) -> StateStream {
        let receiver = self.0.subscribe();
        let (seen, done) = receiver.read(|latest| (latest.changes, latest.state.is_final()));
        StateStream {
            receiver,
            seen,
            done,
        }
    }
}

/// Stream of the changes of a session's state, from [`Session::states`](crate::Session::states).
///
/// A slow reader misses states that were overwritten, but never the latest state. The stream ends after a final state.
pub struct StateStream {
    receiver: WatchReceiver<Latest>,
    seen: u64,
    done: bool,
}

impl StateStream {
    /// Waits for the next change. Returns `None` after a final state.
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
        let seen = this.seen;
        let news =
            |latest: &Latest| (latest.changes != seen).then_some((latest.changes, latest.state));
        this.receiver.poll_pick(context, news).map(|news| {
            let (changes, state) = news?;
            this.seen = changes;
            this.done = state.is_final();
            Some(state)
        })
    }
}

impl fmt::Debug for StateStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateStream")
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

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
        drop(states);
        assert_eq!(poll(&mut stream), Poll::Ready(None));
    }
}
