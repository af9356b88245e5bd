//! [`Store`]: the embedded store. A thin shell around the pure core: one lock, the clock, the
//! watchers' cells, and the timer.

#[cfg(feature = "file")]
mod durable;
mod embedded;
#[cfg(any(test, feature = "server"))]
mod facts;
#[cfg(feature = "file")]
mod file;
#[cfg(all(feature = "file", any(test, feature = "server")))]
mod kept;
mod options;
mod outbox;
mod pause;
#[cfg(any(test, feature = "server"))]
mod remote;
#[cfg(any(test, feature = "server"))]
mod stalls;
#[cfg(test)]
mod tests;
#[cfg(all(not(feature = "file"), any(test, feature = "server")))]
mod unkept;
mod unread;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

#[cfg(feature = "file")]
pub use self::options::Durability;
pub use self::options::StoreOptions;

#[cfg(feature = "server")]
pub(crate) use self::facts::{Listed, Room};
#[cfg(feature = "server")]
pub(crate) use self::outbox::{Ending, Message, Outbox, Taken};
#[cfg(feature = "server")]
pub(crate) use self::remote::{Ask, Connection, Remote};

use self::embedded::Embedded;
#[cfg(not(feature = "server"))]
use self::outbox::{Ending, Outbox};
use self::unread::Unread;
use crate::backend::{Backend, ConnectOptions, Connector, SessionStatus};
use crate::clock::{BootInstant, Clock};
use crate::core::{Core, Effects, End, Fired, Now, SessionRef, WatchKey};
use crate::error::Result;
use crate::fork;
use crate::future::BoxFuture;
use crate::identity::{Identities, Identity};
use crate::random::{hex, random};
#[cfg(any(test, feature = "server"))]
use crate::types::Zxid;
use crate::types::{SessionId, SessionState};
use crate::watch::{Unwatch, WatchCell};

/// A coordination store in this program. A clone is the same store; it lives as long as a handle,
/// a client or a session of it does.
///
/// Sessions have no timeout, unless [`ConnectOptions::session_timeout`] gives them one. Tokens
/// (zxids) start above the wall clock, so that they grow over restarts of the program.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = lockkeeper_store::Store::memory();
/// let (one, other) = (store.connect().await?, store.connect().await?);
/// assert_eq!(one.store_id(), other.store_id());
/// # Ok::<(), lockkeeper_store::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Store(Arc<Engine>);

/// What is behind a [`Store`].
struct Engine {
    /// Its URL.
    target: String,
    id: String,
    clock: Clock,
    state: Mutex<State>,
    #[cfg(feature = "file")]
    files: Option<file::Files>,
}

/// What the one lock guards.
struct State {
    core: Core,
    effects: Effects,
    /// The watchers' cells, by the index of their watch.
    cells: Vec<Option<Arc<WatchCell>>>,
    /// The sessions' states, by their slots: those of this process.
    statuses: Vec<Option<Arc<SessionStatus>>>,
    /// What goes out to sessions of other processes, by their slots; `None` while they have no connection.
    outboxes: Vec<Option<Arc<Outbox>>>,
    /// Those of closed sessions, whose connections have not sent all yet.
    closing: Vec<Weak<Outbox>>,
    /// The bytes in all of them.
    unread: Arc<Unread>,
    /// When the timer goes off.
    alarm: Option<BootInstant>,
    /// Since sessions of other processes are let in.
    #[cfg(any(test, feature = "server"))]
    stalls: Option<stalls::StallMeter>,
    #[cfg(feature = "file")]
    durable: Option<durable::Durable>,
}

/// What is to be done after the lock has been let go: whoever is woken may ask the store at once.
#[derive(Default)]
struct Wakeups {
    cell: Option<Arc<WatchCell>>,
    more_cells: Vec<Arc<WatchCell>>,
    ended: Vec<(Arc<SessionStatus>, SessionState)>,
    outboxes: Vec<Arc<Outbox>>,
    alarm: Option<BootInstant>,
}

impl Store {
    /// A fresh store, which nobody else can reach.
    pub fn memory() -> Self {
        Self::memory_with(StoreOptions::new())
    }

    /// A fresh store with options of its own.
    pub fn memory_with(options: StoreOptions) -> Self {
        Self::in_memory("", &options, 0)
    }

    /// This process's store of that name, the same for all as long as anybody has a handle to it.
    /// The empty name is the default store, `memory:`.
    pub fn named(name: &str) -> Self {
        static STORES: LazyLock<Mutex<HashMap<String, Weak<Engine>>>> =
            LazyLock::new(Mutex::default);
        let mut stores = STORES.lock();
        if let Some(engine) = stores.get(name).and_then(Weak::upgrade) {
            return Self(engine);
        }
        stores.retain(|_, engine| engine.strong_count() > 0);
        let least_zxid = HIGHEST_ZXID.load(Ordering::Acquire);
        let store = Self::in_memory(name, &StoreOptions::new(), least_zxid);
        stores.insert(name.into(), Arc::downgrade(&store.0));
        store
    }

    fn in_memory(name: &str, options: &StoreOptions, least_zxid: i64) -> Self {
        let clock = options.clock.clone();
        let first_zxid = clock.unix_ms().saturating_mul(ZXIDS_PER_MS).max(least_zxid);
        let core = Core::new(options.core(first_zxid, u64::from_ne_bytes(random())));
        Self(Arc::new(Engine {
            target: format!("memory:{name}"),
            id: hex(random()),
            state: Mutex::new(State::new(core)),
            clock,
            #[cfg(feature = "file")]
            files: None,
        }))
    }

    /// The store's URL.
    pub(crate) fn target(&self) -> &str {
        &self.0.target
    }

    /// The store as what sessions can be opened at, for [`Client::open`] and wrappers.
    pub fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(self.clone())
    }

    /// The clock that the store lives by.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }
}

impl Connector for Store {
    fn open(&self, options: &ConnectOptions) -> BoxFuture<Result<Arc<dyn Backend>>> {
        let timeout = options.session_timeout;
        let proofs = options.auth.iter();
        let proved = proofs.map(|(scheme, secret)| Identity::proved(scheme, secret));
        let identities = match proved.collect::<Result<Vec<_>>>() {
            Ok(identities) => identities,
            Err(refused) => return Box::pin(std::future::ready(Err(refused))),
        };
        let open = move |engine: &Arc<Engine>| {
            let opened = engine.open(timeout, identities);
            opened.map(|session| Arc::new(session) as Arc<dyn Backend>)
        };
        let Some(pause) = self.0.pause() else {
            return Box::pin(std::future::ready(open(&self.0)));
        };
        let engine = self.0.clone();
        Box::pin(async move {
            pause.await;
            while let Some(pause) = engine.pause() {
                pause.await;
            }
            open(&engine)
        })
    }

    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    #[cfg(feature = "test-util")]
    fn expire(&self, backend: &Arc<dyn Backend>) -> BoxFuture<Result<()>> {
        self.0.expire(backend.status().id());
        Box::pin(std::future::ready(Ok(())))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({}, {})", self.0.target, self.0.id)
    }
}

/// Tokens grow over restarts of the program, as long as it makes fewer than this in a millisecond.
const ZXIDS_PER_MS: i64 = 1 << 20;

/// Above the zxids of all named stores that are gone: a name can be used again within one tick of
/// the coarse clock.
static HIGHEST_ZXID: AtomicI64 = AtomicI64::new(0);

impl Drop for Engine {
    fn drop(&mut self) {
        #[cfg(feature = "file")]
        if let Some(files) = self.files.take() {
            if fork::is_forked() {
                // The parent's log, and threads to wait for that are not here.
                std::mem::forget(files);
            } else {
                files.close();
            }
            return;
        }
        HIGHEST_ZXID.fetch_max(self.state.get_mut().core.last_zxid().0, Ordering::AcqRel);
    }
}

impl Engine {
    fn open(
        self: &Arc<Self>,
        timeout: Option<Duration>,
        identities: Vec<Identity>,
    ) -> Result<Embedded> {
        // Before there is a session: one that is refused leaves nothing behind.
        let identities = Identities::new(identities)?;
        let sent = self.clock.now();
        let id = SessionId(i64::from_ne_bytes(random()) & i64::MAX | 1);
        let mut state = self.state.lock();
        #[cfg(feature = "file")]
        state.check_log()?;
        let (session, timeout) =
            state
                .core
                .open_session(id, random(), timeout, true, self.now(true, true))?;
        for identity in identities.iter() {
            state.core.add_identity(session, identity.clone())?;
        }
        let status = Arc::new(SessionStatus::new(
            id,
            self.clock.clone(),
            timeout,
            false,
            sent,
        ));
        put_at(&mut state.statuses, session.slot, status.clone());
        #[cfg(feature = "file")]
        if let Some(durable) = &mut state.durable {
            durable.seat(session.slot);
        }
        self.settle(state);
        Ok(Embedded::new(self, session, status, true))
    }

    fn close(self: &Arc<Self>, session: SessionRef) {
        let mut state = self.state.lock();
        let state_now = &mut *state;
        #[cfg(feature = "file")]
        let before = state_now.core.last_kept();
        // The session may be over already.
        let _ = state_now.core.submit(
            session,
            crate::Request::Close,
            self.now(true, true),
            &mut state_now.effects,
        );
        #[cfg(feature = "file")]
        state_now.keep(before);
        self.settle(state);
    }

    #[cfg(feature = "test-util")]
    fn expire(self: &Arc<Self>, id: SessionId) {
        let mut state = self.state.lock();
        let state_now = &mut *state;
        #[cfg(feature = "file")]
        let before = state_now.core.last_kept();
        state_now
            .core
            .expire_session(id, self.now(true, true), &mut state_now.effects);
        #[cfg(feature = "file")]
        state_now.keep(before);
        self.settle(state);
    }

    /// What time it is. The exact clock is read only for those who have deadlines, the date only
    /// for what will show it.
    fn now(&self, has_deadline: bool, is_dated: bool) -> Now {
        let mut now = Now::default();
        if has_deadline {
            now.moment = self.clock.now();
        }
        if is_dated {
            now.unix_ms = self.clock.unix_ms();
        }
        now
    }

    /// Hands out what a call to the core has done, lets the lock go, and wakes those concerned.
    fn settle(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let wakeups = state.gather(&self.clock);
        drop(state);
        if let Some(wakeups) = wakeups {
            wakeups.carry_out(self);
        }
    }

    /// Does what is due at `alarm`; answers when to come again.
    fn tick(self: &Arc<Self>, alarm: BootInstant) -> Option<BootInstant> {
        let mut state = self.state.lock();
        if state.alarm != Some(alarm) {
            return None; // an earlier alarm has taken over
        }
        let state_now = &mut *state;
        #[cfg(feature = "file")]
        if !state_now.may_tick() {
            state_now.alarm = Some(self.clock.now().after(Duration::from_secs(1)));
            return state_now.alarm;
        }
        #[cfg(any(test, feature = "server"))]
        state_now.count_stall(&self.clock);
        #[cfg(feature = "file")]
        let before = state_now.core.last_kept();
        state_now
            .core
            .tick(self.now(true, true), &mut state_now.effects);
        #[cfg(feature = "file")]
        state_now.keep(before);
        state_now.alarm = None;
        let next = state_now.next_alarm(&self.clock);
        let mut wakeups = Wakeups::default();
        state_now.collect(&mut wakeups);
        drop(state);
        wakeups.carry_out(self);
        next
    }
}

impl State {
    fn new(core: Core) -> Self {
        Self {
            core,
            effects: Effects::default(),
            cells: Vec::new(),
            statuses: Vec::new(),
            outboxes: Vec::new(),
            closing: Vec::new(),
            unread: Arc::default(),
            alarm: None,
            #[cfg(any(test, feature = "server"))]
            stalls: None,
            #[cfg(feature = "file")]
            durable: None,
        }
    }

    /// What a call to the core has done; `None`, quickly, when nobody is concerned.
    fn gather(&mut self, clock: &Clock) -> Option<Wakeups> {
        let alarm = self.next_alarm(clock);
        (alarm.is_some() || !self.effects.is_empty()).then(|| {
            let mut wakeups = Wakeups {
                alarm,
                ..Wakeups::default()
            };
            self.collect(&mut wakeups);
            wakeups
        })
    }

    /// Puts events where the watchers look for them, and says what is left to do.
    fn collect(&mut self, wakeups: &mut Wakeups) {
        // Taken out for the while, and their room put back.
        let mut fired = std::mem::take(&mut self.effects.fired);
        for fired in fired.drain(..) {
            self.deliver(fired, wakeups);
        }
        fired.shrink_to(KEPT_EVENTS);
        self.effects.fired = fired;
        for slot in self.effects.overflowed.drain(..) {
            if let Some(Some(outbox)) = self.outboxes.get(slot as usize)
                && outbox.end(Ending::Overflow)
            {
                wakeups.outboxes.push(outbox.clone());
            }
        }
        if self.unread.is_over() {
            self.cut_slow_readers(wakeups);
        }
        for (watch, session, end) in self.effects.dropped.drain(..) {
            if let Some(cell) = self.cells[watch.index as usize].take() {
                cell.end(end.error(session));
                wakeups.wake(cell);
            }
        }
        for slot in self.effects.asked.drain(..) {
            let outbox = self.outboxes.get(slot as usize).and_then(Option::as_ref);
            if let Some(outbox) = outbox {
                outbox.ask_for_signs();
                wakeups.outboxes.push(outbox.clone());
            }
        }
        for ended in self.effects.ended.drain(..) {
            let slot = ended.slot as usize;
            if let Some(outbox) = self.outboxes.get_mut(slot).and_then(Option::take) {
                let ending = match ended.end {
                    End::Expired => Ending::Expired,
                    End::Closed => Ending::Closed,
                };
                if outbox.account().is_some() {
                    if self.closing.len() == self.closing.capacity() {
                        self.closing.retain(|outbox| outbox.strong_count() > 0);
                    }
                    self.closing.push(Arc::downgrade(&outbox));
                }
                if outbox.end(ending) {
                    wakeups.outboxes.push(outbox);
                }
            }
            // A session of another process has none.
            if let Some(status) = self.statuses.get_mut(slot).and_then(Option::take) {
                // Before the lock is let go, and with it what the session held.
                status.set_closing();
                let state = match ended.end {
                    End::Expired => SessionState::Expired,
                    End::Closed => SessionState::Closed,
                };
                wakeups.ended.push((status, state));
            }
        }
    }

    /// Closes the connections that have left their bytes unread for longest, until the rest is within the limit. One
    /// that holds less than half of an equal part has its turn last.
    #[cold]
    fn cut_slow_readers(&self, wakeups: &mut Wakeups) {
        let closing: Vec<_> = self.closing.iter().filter_map(Weak::upgrade).collect();
        let unread = self.outboxes.iter().flatten().chain(&closing);
        let mut unread: Vec<_> = unread
            .filter_map(|outbox| outbox.account().map(|account| (account, outbox)))
            .collect();
        let own = self.unread.own_bytes(unread.len());
        unread.sort_unstable_by_key(|((bytes, since), _)| (*bytes <= own, *since));
        for (_, outbox) in unread {
            if !self.unread.is_over() {
                return;
            }
            if outbox.end(Ending::Overflow) {
                wakeups.outboxes.push(outbox.clone());
            }
        }
    }

    #[inline]
    fn deliver(&mut self, fired: Fired, wakeups: &mut Wakeups) {
        #[cfg(any(test, feature = "server"))]
        if let Some(Some(outbox)) = self.outboxes.get(fired.slot as usize) {
            let outbox = outbox.clone();
            let bound = self.bind(fired.slot, Zxid(0));
            if outbox.put_event(bound, fired.event) {
                wakeups.outboxes.push(outbox);
            }
            return;
        }
        // A session of another process that has no connection has no watches either.
        let Some(cell) = self.cells.get_mut(fired.watch.index as usize) else {
            return;
        };
        let cell = if fired.is_last {
            cell.take()
        } else {
            cell.clone()
        };
        let Some(cell) = cell else { return };
        #[cfg(feature = "file")]
        if let Some(durable) = &mut self.durable {
            if durable.deliver(fired.slot, &cell, fired.event) {
                wakeups.wake(cell);
            }
            return;
        }
        cell.put(fired.event);
        wakeups.wake(cell);
    }

    /// The alarm to be set, if there is something due before the one that is.
    fn next_alarm(&mut self, clock: &Clock) -> Option<BootInstant> {
        let due = self.core.next_deadline(|| clock.now())?;
        if self.alarm.is_some_and(|alarm| alarm <= due) {
            return None;
        }
        self.alarm = Some(due);
        self.alarm
    }

    fn keep_cell(&mut self, watch: WatchKey, cell: Arc<WatchCell>) {
        put_at(&mut self.cells, watch.index, cell);
    }
}

impl Wakeups {
    fn wake(&mut self, cell: Arc<WatchCell>) {
        if self.cell.is_none() {
            self.cell = Some(cell);
        } else {
            self.more_cells.push(cell);
        }
    }

    fn carry_out(self, engine: &Arc<Engine>) {
        for (status, state) in self.ended {
            if state == SessionState::Expired {
                tracing::warn!(session = %status.id(), "the session has expired");
            }
            status.set_state(state);
        }
        for cell in self.cell.iter().chain(&self.more_cells) {
            cell.wake();
        }
        for outbox in &self.outboxes {
            outbox.wake();
        }
        if let Some(alarm) = self.alarm {
            crate::spawn_detached(keep_time(
                Arc::downgrade(engine),
                engine.clock.clone(),
                alarm,
            ));
        }
    }
}

/// The room for events that is kept from one transaction to the next.
const KEPT_EVENTS: usize = 1 << 10;

/// Ticks at `alarm` and whenever there is something due, as long as the store lives.
async fn keep_time(engine: Weak<Engine>, clock: Clock, mut alarm: BootInstant) {
    loop {
        clock.sleep_until(alarm).await;
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let Some(next) = engine.tick(alarm) else {
            return;
        };
        alarm = next;
    }
}

/// The watchers' way back to their store, which they do not keep alive.
struct UnwatchHandle(Weak<Engine>);

impl Unwatch for UnwatchHandle {
    fn unwatch(&self, watch: u64) {
        let Some(engine) = self.0.upgrade().filter(|_| !fork::is_forked()) else {
            return;
        };
        let watch = WatchKey::from_u64(watch);
        let mut state = engine.state.lock();
        if state.core.unwatch(watch) {
            state.cells[watch.index as usize] = None;
        }
    }
}

fn put_at<T>(slots: &mut Vec<Option<T>>, index: u32, value: T) {
    let index = index as usize;
    if slots.len() <= index {
        slots.resize_with(index + 1, || None);
    }
    slots[index] = Some(value);
}

#[cfg(feature = "file")]
fn put_default<T: Default + Clone>(slots: &mut Vec<T>, index: u32) -> &mut T {
    let index = index as usize;
    if slots.len() <= index {
        slots.resize(index + 1, T::default());
    }
    &mut slots[index]
}
