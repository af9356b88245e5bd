//! [`drive`]: clean-up that goes on by itself, on any executor or none.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

enum State {
    /// Waiting for a wake.
    Idle(Work),
    /// Being polled; `again` tells whether a wake came meanwhile.
    Polling {
        again: bool,
    },
    Done,
}

struct Task(Mutex<State>);

/// Runs `work` to its end on whatever thread wakes it, the first time on this one.
///
/// For clean-up that must happen after its caller has gone (a dropped guard, a cancelled wait):
/// it needs no executor, so it works under all of them, and in virtual time it is deterministic.
/// `work` should do little between two awaits, since it borrows the thread that woke it.
///
/// ```
/// let (send, receive) = tokio::sync::oneshot::channel::<u8>();
/// lockkeeper_store::drive(async move { assert_eq!(receive.await, Ok(7)) });
/// send.send(7).unwrap(); // runs the rest of the work here and now
/// ```
pub fn drive(work: impl Future<Output = ()> + Send + 'static) {
    Arc::new(Task(Mutex::new(State::Idle(Box::pin(work))))).wake();
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let mut work = {
            let mut state = self.0.lock();
            match std::mem::replace(&mut *state, State::Polling { again: true }) {
                State::Idle(work) => {
                    *state = State::Polling { again: false };
                    work
                }
                State::Polling { .. } => return,
                State::Done => {
                    *state = State::Done;
                    return;
                }
            }
        };
        let waker = Waker::from(self.clone());
        loop {
            let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
            let mut state = self.0.lock();
            if polled == Poll::Ready(()) {
                *state = State::Done;
                return;
            }
            if matches!(*state, State::Polling { again: true }) {
                *state = State::Polling { again: false };
                continue;
            }
            *state = State::Idle(work);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_while_polling_polls_again() {
        let (send, receive) = std::sync::mpsc::channel();
        let mut left = 3;
        drive(std::future::poll_fn(move |context| {
            if left == 0 {
                send.send(()).unwrap();
                return Poll::Ready(());
            }
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }));
        receive.try_recv().unwrap();
    }
}
