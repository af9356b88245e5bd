//! [`attended`]: warns about a wait that was granted the lock but is not polled.
//!
//! A task may keep a wait without polling it, for example in a `select!` over `&mut lock()`. When such a wait is
//! granted the lock, it blocks every contender behind it. The store still wakes the wait, so the wait's waker can count
//! the time until the next poll.

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

/// Number of clock ticks (a quarter of a second each) between the wake and the warning.
const TICKS: u8 = 5;

/// Maximum number of ticks between two checks of the store (40 seconds).
const MAX_TICKS: u8 = 160;

const MAX_HEAD: usize = 64;

pub(crate) struct Contender {
    pub(super) session: Session,
    pub(super) queue: ZnodePath,
    pub(super) name: EntryName,
    pub(super) data: EntryData,
    /// `None` for a lock, because its holders are the first entries of its queue.
    pub(crate) permits: Option<Box<dyn Permits>>,
}

pub(crate) trait Permits: Send + Sync {
    fn path(&self) -> &ZnodePath;

    /// Returns the contender's first lease if it exists. Otherwise, if enough permits are free, returns `first` (the
    /// contender's entry if it is the first in the queue), because the wait then only has to be polled.
    fn granted<'a>(
        &'a self,
        session: &'a Session,
        first: Option<ZnodePath>,
    ) -> Pin<Box<dyn Future<Output = Result<Option<ZnodePath>>> + Send + 'a>>;
}

/// Polls `wait`. Logs one warning if the contender is granted the lock but `wait` is not polled for a second after a
/// wake.
///
/// The first poll uses the caller's waker, so a free lock has no extra cost.
pub(crate) fn attended<W, C>(wait: Pin<&mut W>, contender: C) -> Attended<'_, W, C>
where
    W: Future,
    C: FnOnce() -> Contender + Unpin,
{
    let state = Attendance::Unpolled(contender);
    Attended { wait, state }
}

/// Not an `async fn`, because that would store each argument twice.
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
    task: Option<Waker>,
    /// `Some` from a wake until the next poll.
    unpolled: Option<Unpolled>,
    /// True once we have warned or the wait is over. A waker that outlives the wait then does nothing.
    is_done: bool,
}

struct Unpolled {
    ticks: u8,
    due: u8,
    /// Registration for the next tick. `None` while the wait is overdue, until it is woken again.
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
    fn note_poll(&self, task: &Waker) {
        // Clone and drop wakers outside the lock, because they are user code.
        let task = Some(task.clone());
        let mut state = self.state.lock();
        let former = (replace(&mut state.task, task), state.unpolled.take());
        drop(state);
        drop(former);
    }

    fn is_first_to_warn(&self) -> bool {
        let mut state = self.state.lock();
        let is_unpolled = state.unpolled.as_ref().is_some_and(|it| it.next.is_none());
        is_unpolled && !replace(&mut state.is_done, true)
    }

    /// Warns if the contender has been granted the lock. If not, checks again later, because no watch wakes this check.
    /// The caller may ignore an error, because the wait itself will get it too.
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

/// The store calls this waker when the wait may have been granted the lock. After that, clock ticks call the waker
/// until the wait is polled.
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
            // This wake is not a tick but an event, which may be the grant. Start to count again.
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
