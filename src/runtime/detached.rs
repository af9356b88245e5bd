//! [`spawn_detached`]: runs clean-up work on any executor or none.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

enum State {
    Idle(Work),
    /// A thread is polling the work. `again` is true if the task was woken during this poll.
    Polling {
        again: bool,
    },
    Done,
}

struct Task(Mutex<State>);

/// Runs `work` to completion without an executor. The calling thread polls it first. Later, each thread that wakes it
/// polls it again.
///
/// Use this for clean-up that outlives its caller, such as a dropped guard or a cancelled wait. `work` runs on the
/// thread that wakes it, so it should do little between two awaits.
///
/// ```
/// let (send, receive) = tokio::sync::oneshot::channel::<u8>();
/// lockkeeper_store::spawn_detached(async move { assert_eq!(receive.await, Ok(7)) });
/// send.send(7).unwrap(); // runs the rest of the work here and now
/// ```
pub fn spawn_detached(work: impl Future<Output = ()> + Send + 'static) {
    // tokio gives each task a budget of work between two yields. Once a task has used up its budget, tokio's channels
    // return pending and wake immediately. We poll within the current task's budget, so without this call we would loop
    // forever.
    let work = tokio::task::coop::unconstrained(work);
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
                // The replacement above set `again`, so the polling thread polls once more. No wake is lost, and no two
                // threads poll the work.
                State::Polling { .. } => return,
                State::Done => {
                    *state = State::Done;
                    return;
                }
            }
        };
        let waker = Waker::from(self.clone());
        // Poll without the lock, because the work may wake itself.
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
        spawn_detached(std::future::poll_fn(move |context| {
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

    #[test]
    fn work_is_done_in_a_task_that_has_used_up_its_budget() {
        let (ended, end) = std::sync::mpsc::channel();
        // Use another thread, because the work would loop forever if this test failed.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            runtime.unwrap().block_on(async {
                let (send, receive) = tokio::sync::oneshot::channel::<()>();
                let ended = ended.clone();
                spawn_detached(async move {
                    assert!(receive.await.is_err());
                    ended.send("work").unwrap();
                });
                use_up_the_budget().await;
                drop(send);
            });
            ended.send("task").unwrap();
        });
        let limit = std::time::Duration::from_secs(60);
        assert_eq!(end.recv_timeout(limit), Ok("work"));
        assert_eq!(end.recv_timeout(limit), Ok("task"));
    }

    async fn use_up_the_budget() {
        let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
        (0..1_000).for_each(|item| send.send(item).unwrap());
        std::future::poll_fn(|context| {
            while receive.poll_recv(context).is_ready() {}
            Poll::Ready(())
        })
        .await;
        assert!(!receive.is_empty(), "tokio grants more than is known");
    }
}
