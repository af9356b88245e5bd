//! The thread of all connections to ZooKeeper, `lockkeeper-io`, and the barrier by which drops wait for it.

use std::cell::Cell;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_executor::Executor;
use tokio::sync::oneshot;

use crate::backend::Flushed;
use crate::error::{Error, Result};
use crate::fork;
use crate::future::BoxFuture;
use crate::types::HumanDuration;

thread_local! {
    /// True on the thread of the connections.
    static IS_THIS_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Returns the executor of the connections: one thread, started at the first connect, which a busy executor of the
/// user cannot starve, so users may run any executor. It waits for the network itself (`async_io::block_on`): a reply
/// wakes no other thread on its way.
///
/// All tasks that follow a session's state run here as well. The executor is first in, first out, and a connection
/// waits for the network between two changes of state; so the task that publishes a state has run before the next
/// change.
fn executor() -> &'static Executor<'static> {
    static EXECUTOR: OnceLock<Executor<'static>> = OnceLock::new();
    static THREAD: OnceLock<()> = OnceLock::new();
    let executor = EXECUTOR.get_or_init(Executor::new);
    THREAD.get_or_init(|| {
        let run = || {
            IS_THIS_THREAD.set(true);
            // zookeeper-client's own tasks run here as well.
            let _spawner = spawns_core::enter(&Spawner);
            async_io::block_on(executor.run(pending::<()>()));
        };
        let thread = std::thread::Builder::new()
            .name("lockkeeper-io".into())
            .spawn(run);
        thread.expect("the system refuses a thread");
    });
    executor
}

/// Runs zookeeper-client's tasks on this executor.
struct Spawner;

impl spawns_core::Spawn for Spawner {
    fn spawn(&self, task: spawns_core::Task) {
        executor()
            .spawn(Guarded(Box::into_pin(task.future)))
            .detach();
    }
}

/// Runs `work` on the thread of the connections.
pub(super) fn spawn<T: Send + 'static>(work: BoxFuture<T>) -> Task<T> {
    Task(Some(executor().spawn(Guarded(work))))
}

/// The last barrier that the thread did not pass in time.
static OVERDUE: Mutex<Option<Receiver<()>>> = Mutex::new(None);

/// Blocks until the connections have taken up all requests that were sent to them before, for at most `limit`. A
/// connection writes requests in the turn in which it takes them up, as far as its socket accepts them.
///
/// Correct because the executor is first in, first out, and a request wakes its connection's task. If that task is
/// running at that moment, it is queued again when it is done: behind the barrier's first turn, before its second.
pub(super) fn flush(limit: Duration) -> Flushed {
    if !can_wait() {
        return Flushed::Skipped;
    }
    // The sender is dropped, not used: so a barrier that the executor drops counts as passed, too.
    let (pass, passed) = channel::<()>();
    let barrier = async move {
        next_turn().await;
        drop(pass);
    };
    executor().spawn(barrier).detach();
    match passed.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => {
            // Kept: once this barrier is passed, the thread has made progress, and drops wait again.
            *OVERDUE.lock().unwrap_or_else(PoisonError::into_inner) = Some(passed);
            tracing::warn!(limit = %HumanDuration(limit), "requests not written in time");
            Flushed::TimedOut
        }
        _ => Flushed::Written,
    }
}

/// Returns false if waiting for the connections' thread would be useless: on that thread itself, in the child of a fork,
/// which does not have it, and while it is known to be blocked. So of a thousand guards that are dropped then, only the
/// first waits.
pub(super) fn can_wait() -> bool {
    if IS_THIS_THREAD.get() || fork::is_forked() {
        return false;
    }
    let mut overdue = OVERDUE.lock().unwrap_or_else(PoisonError::into_inner);
    match overdue.as_ref().map(Receiver::try_recv) {
        Some(Err(TryRecvError::Empty)) => false,
        _ => {
            *overdue = None;
            true
        }
    }
}

/// Lets all ready tasks have their turn.
async fn next_turn() {
    let mut is_next = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_next, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Runs blocking work on a new thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (answer, answered) = oneshot::channel();
    let thread = std::thread::Builder::new().spawn(move || answer.send(work()));
    thread.map_err(|error| Error::Protocol(format!("the system refuses a thread: {error}")))?;
    answered.await.map_err(|_| panicked())
}

/// A task on the connections' thread. Dropping it detaches it.
pub(super) struct Task<T>(Option<async_executor::Task<Result<T>>>);

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let task = self.0.as_mut().expect("only dropping takes the task");
        Pin::new(task).poll(context)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

/// A future whose panic becomes its error: the thread is shared by all sessions, which must survive it.
struct Guarded<T>(Pin<Box<dyn Future<Output = T> + Send>>);

impl<T> Future for Guarded<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Polled no more after a panic: the task ends, so no broken state is seen.
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(_) => Poll::Ready(Err(panicked())),
        }
    }
}

fn panicked() -> Error {
    Error::Protocol("the client library panicked".to_owned())
}
