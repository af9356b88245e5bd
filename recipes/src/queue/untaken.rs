//! [`attended`]: a warning for a wait that was granted and is not polled.
//!
//! A wait that a task keeps without polling it, as a `select!` over `&mut lock()` does between its turns, does not take its
//! lock when its turn comes, and blocks every contender behind it. The wait itself cannot notice that: its waker does.

use std::mem::{replace, take};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use lockkeeper_store::{EntryName, Session, TickPlace, ZnodePath, spawn_detached};
use parking_lot::Mutex;

use super::contenders::in_order;
use super::order::holding;
use crate::error::Result;
use crate::metadata::EntryData;
use crate::reporter::label;

/// Ticks of the clock, a quarter of a second each, that pass between the wake and the warning: a second at least.
const TICKS: u8 = 5;

/// Most ticks between two looks at a wait that was not granted when it was woken: 40 seconds.
const MAX_TICKS: u8 = 160;

/// Entries at the head of a queue that are read to find the holders: there can be any number of readers.
const MAX_HEAD: usize = 64;

/// A contender, as the warning names it.
pub(crate) struct Contender {
    pub(super) session: Session,
    pub(super) queue: ZnodePath,
    pub(super) name: EntryName,
    pub(super) data: EntryData,
    /// `None` for a lock, which the first entries of its queue hold.
    pub(crate) permits: Option<Box<dyn Permits>>,
}

/// The permits that a contender for a semaphore wants.
pub(crate) trait Permits: Send + Sync {
    /// Returns the semaphore.
    fn path(&self) -> &ZnodePath;

    /// Returns the znode of a grant: the contender's entry, given if it is the first of the queue, once enough permits are
    /// free; or the first of its leases, if they exist.
    fn granted<'a>(
        &'a self,
        session: &'a Session,
        first: Option<ZnodePath>,
    ) -> Pin<Box<dyn Future<Output = Result<Option<ZnodePath>>> + Send + 'a>>;
}

/// Runs `wait`, and warns once if its contender is granted and the wait was not polled for a second after it was woken.
///
/// The first poll uses the caller's waker, so that a lock which is free costs nothing more.
pub(crate) fn attended<W, C>(wait: Pin<&mut W>, contender: C) -> Attended<'_, W, C>
where
    W: Future,
    C: FnOnce() -> Contender + Unpin,
{
    let state = Attendance::Unpolled(contender);
    Attended { wait, state }
}

/// The future of [`attended`]. No `async fn`, which would hold each of its arguments twice.
pub(crate) struct Attended<'a, W, C> {
    wait: Pin<&'a mut W>,
    state: Attendance<C>,
}

enum Attendance<C> {
    Unpolled(C),
    Waiting(Attention),
    Done,
}

impl<W, C> Future for Attended<'_, W, C>
where
    W: Future,
    C: FnOnce() -> Contender + Unpin,
{
    type Output = W::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<W::Output> {
        let Self { wait, state } = &mut *self;
        if let Attendance::Unpolled(_) = state {
            if let Poll::Ready(output) = wait.as_mut().poll(context) {
                return Poll::Ready(output);
            }
            if let Attendance::Unpolled(contender) = replace(state, Attendance::Done) {
                *state = Attendance::Waiting(Attention::of(contender()));
            }
        }
        let Attendance::Waiting(Attention { shared, waker }) = state else {
            unreachable!("it is polled again after its end");
        };
        shared.note_poll(context.waker());
        let polled = wait.as_mut().poll(&mut Context::from_waker(waker));
        if polled.is_ready() {
            *state = Attendance::Done;
        }
        polled
    }
}

/// The waker of one wait. Dropping it ends the watch over the wait.
struct Attention {
    shared: Arc<Shared>,
    waker: Waker,
}

struct Shared {
    contender: Contender,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Waker of the task; `None` once it was woken.
    task: Option<Waker>,
    /// Set from a wake until the next poll.
    unpolled: Option<Unpolled>,
    /// True once the warning was given, or the wait is over: a waker may outlive it.
    is_done: bool,
}

struct Unpolled {
    /// Ticks since the last wake that was not one, or the last look at the store.
    ticks: u8,
    /// Ticks from which on the wait is overdue.
    due: u8,
    /// Place at the next tick; `None` while the wait is overdue, until another wake.
    next: Option<TickPlace>,
}

impl Attention {
    fn of(contender: Contender) -> Self {
        let shared = Arc::new(Shared {
            contender,
            state: Mutex::default(),
        });
        let waker = shared.clone().into();
        Self { shared, waker }
    }
}

impl Drop for Attention {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.is_done = true;
        let former = (state.task.take(), state.unpolled.take());
        drop(state);
        drop(former);
    }
}

impl Shared {
    /// Notes that the task polls the wait with this waker.
    fn note_poll(&self, task: &Waker) {
        // Cloned and dropped outside the lock: a waker is the user's code.
        let task = Some(task.clone());
        let mut state = self.state.lock();
        let former = (replace(&mut state.task, task), state.unpolled.take());
        drop(state);
        drop(former);
    }

    /// Returns true, once, if the wait has not been polled since it was woken last.
    fn is_first_to_warn(&self) -> bool {
        let mut state = self.state.lock();
        let is_unpolled = state.unpolled.as_ref().is_some_and(|it| it.next.is_none());
        is_unpolled && !replace(&mut state.is_done, true)
    }

    /// Warns if the contender is granted, else looks again later: a wait that was woken without a grant, and not polled
    /// since, watches nothing that would wake it again. An error ends the attempt: the wait itself will meet it, too.
    async fn warn_if_granted(self: Arc<Self>) -> Result<()> {
        let Contender {
            session,
            queue,
            name,
            data,
            permits,
        } = &self.contender;
        let (names, _) = session.get_queue(queue, MAX_HEAD).await?;
        let own = name.to_string();
        let mut holders = holding(in_order(session, queue, &names)?).into_iter();
        let first = holders.find(|holder| holder.name().starts_with(&own));
        let (what, path, entry) = match permits {
            None => ("a lock was", queue, first),
            Some(permits) => {
                let granted = permits.granted(session, first).await?;
                ("permits were", permits.path(), granted)
            }
        };
        let Some(entry) = entry else {
            self.look_later();
            return Ok(());
        };
        // A wait that was polled since then has taken the lock.
        if !self.is_first_to_warn() {
            return Ok(());
        }
        tracing::warn!(
            %path,
            label = label(data),
            %entry,
            session = %session.id(),
            "{what} granted to a wait that is not polled, which blocks the others"
        );
        Ok(())
    }

    /// Has the clock's ticks look again, after twice the time, unless the wait was woken or polled meanwhile.
    fn look_later(self: Arc<Self>) {
        let clock = self.contender.session.clock();
        let mut state = self.state.lock();
        if let Some(unpolled) = state.unpolled.as_mut().filter(|it| it.next.is_none()) {
            unpolled.ticks = 0;
            unpolled.due = unpolled.due.saturating_mul(2).min(MAX_TICKS);
            unpolled.next = Some(clock.wake_at_next_tick(self.clone().into()));
        }
    }
}

/// Called by the store when something has happened to the wait, and by the clock's ticks from then on until the wait is
/// polled.
impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        let mut state = self.state.lock();
        let task = take(&mut state.task);
        if state.is_done {
            drop(state);
            return task.into_iter().for_each(Waker::wake);
        }
        let former = state.unpolled.take();
        let (ticks, due) = match &former {
            Some(Unpolled {
                ticks,
                due,
                next: Some(next),
            }) if next.has_passed() => (ticks + 1, *due),
            // Each event may be the grant.
            _ => (0, TICKS),
        };
        let is_overdue = ticks >= due;
        let clock = self.contender.session.clock();
        let next = (!is_overdue).then(|| clock.wake_at_next_tick(self.clone().into()));
        state.unpolled = Some(Unpolled { ticks, due, next });
        drop(state);
        task.into_iter().for_each(Waker::wake);
        if is_overdue {
            spawn_detached(async move {
                let _ = self.warn_if_granted().await;
            });
        }
    }
}
