//! [`Store`]: the embedded store. It adds one lock, the clock, the watchers' cells, the timer and the log to the pure
//! core.
//!
//! Every change takes the same path. Under the lock, [`State::apply`] makes the change in the core and hands it to the
//! log, and [`State::collect`] delivers its events. After the lock is released, [`Wakeups::carry_out`] wakes tasks.

#[cfg(any(test, feature = "server"))]
mod connection;
#[cfg_attr(
    not(any(test, feature = "server")),
    allow(dead_code, reason = "only sessions of other processes need all of it")
)]
mod durable;
mod embedded;
mod file;
#[cfg(feature = "simulation")]
pub(crate) mod fuzz;
mod options;
#[cfg_attr(
    not(feature = "server"),
    allow(dead_code, reason = "only sessions of other processes have outboxes")
)]
mod outbox;
#[cfg(any(test, feature = "server"))]
mod processes;
#[cfg(any(test, feature = "server"))]
mod remote;
#[cfg_attr(
    not(any(test, feature = "server")),
    allow(dead_code, reason = "only sessions of other processes come back")
)]
mod sessions;
#[cfg_attr(
    not(any(test, feature = "server")),
    allow(
        dead_code,
        reason = "only sessions of other processes depend on what the store has read"
    )
)]
mod stalls;
mod state;
#[cfg(any(test, feature = "server"))]
mod stats;
#[cfg(test)]
mod tests;
mod unread;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

pub use self::options::Durability;
pub use self::options::StoreOptions;

#[cfg(feature = "server")]
pub(crate) use self::{
    connection::{AuditedChange, Connection, Follower, SessionRequest},
    outbox::{Ending, Message, Taken},
    remote::Remote,
    stats::{Listed, NotAdmitting, Room},
};

use self::durable::Files;
use self::state::{State, Wakeups};
use crate::backend::Connector;
use crate::core::{Core, Effects, Now};
use crate::runtime::clock::{BootInstant, Clock, Sleep};
use crate::runtime::platform::{hex, random};

/// A coordination store embedded in this program. Clones share one store. The store lives as long as any of its
/// handles, clients or sessions.
///
/// Sessions have no timeout unless [`ConnectOptions::session_timeout`](crate::ConnectOptions::session_timeout) sets
/// one. Tokens (zxids) start at a number derived from the wall clock, so they grow across restarts of the program.
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

struct Engine {
    target: String,
    id: String,
    clock: Clock,
    state: Mutex<State>,
    files: Option<Files>,
}

impl Store {
    /// Creates a store that is private to the returned handle and its clones.
    pub fn memory() -> Self {
        Self::memory_with(StoreOptions::new())
    }

    /// Creates a store with the given options.
    pub fn memory_with(options: StoreOptions) -> Self {
        Self::in_memory("", &options, 0)
    }

    /// Returns this process's store with the given name. The store exists as long as any handle to it. The empty name
    /// is the default store, `memory:`.
    pub fn named(name: &str) -> Self {
        static STORES: LazyLock<Mutex<HashMap<String, Weak<Engine>>>> =
            LazyLock::new(Mutex::default);
        let mut stores = STORES.lock();
        if let Some(engine) = stores.get(name).and_then(Weak::upgrade) {
            return Self(engine);
        }
        // Remove the entries of dropped stores, so that the map does not grow in a program that keeps using new names.
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
            files: None,
        }))
    }

    pub(crate) fn target(&self) -> &str {
        &self.0.target
    }

    /// Returns the store as a connector, for [`Client::open`](crate::Client::open) and wrappers.
    pub fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(self.clone())
    }

    /// Returns the clock that the store uses.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({}, {})", self.0.target, self.0.id)
    }
}

/// Number of zxids per millisecond of the wall clock. As long as the program uses fewer zxids per millisecond than
/// this, tokens grow across its restarts.
const ZXIDS_PER_MS: i64 = 1 << 20;

/// Highest zxid of all dropped stores in memory. A new store of the same name continues above it, because a name may be
/// reused within one tick of the coarse clock.
static HIGHEST_ZXID: AtomicI64 = AtomicI64::new(0);

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(files) = self.files.take() {
            files.close();
            return;
        }
        HIGHEST_ZXID.fetch_max(self.state.get_mut().core.last_zxid().0, Ordering::AcqRel);
    }
}

impl Engine {
    fn apply<T>(self: &Arc<Self>, act: impl FnOnce(&mut Core, &mut Effects, Now) -> T) -> T {
        let mut state = self.state.lock();
        // Read the clock under the lock, so that time does not go backward between changes.
        let now = self.now(true, true);
        let outcome = state.apply(|core, effects| act(core, effects, now));
        self.settle(state);
        outcome
    }

    /// Reads the clock. Because each reading takes time, skips the monotonic time for sessions without deadlines, and
    /// the date if no answer will show it.
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

    fn settle(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let wakeups = state.gather(&self.clock);
        drop(state);
        if let Some(wakeups) = wakeups {
            wakeups.carry_out(self);
        }
    }

    /// Ends sessions and reaps znodes that are due at `alarm`. Returns the time of the next alarm, or `None` if no
    /// alarm is needed or another timer is responsible.
    fn tick(self: &Arc<Self>, alarm: BootInstant) -> Option<BootInstant> {
        let mut state = self.state.lock();
        // Alarms cannot be canceled. If the store has set another alarm since, the timer of this alarm ends here.
        if state.alarm != Some(alarm) {
            return None;
        }
        let state_now = &mut *state;
        // Ending a session writes a transaction. If the log has no room for it, try again in a second.
        if !state_now.may_tick() {
            state_now.alarm = Some(self.clock.now().after(Duration::from_secs(1)));
            return state_now.alarm;
        }
        // Count the stall before the core decides about any session. Otherwise a session could expire only because the
        // store was late.
        state_now.count_stall(&self.clock);
        let now = self.now(true, true);
        state_now.apply(|core, effects| core.tick(now, effects));
        state_now.alarm = None;
        let next = state_now.next_alarm(&self.clock);
        let mut wakeups = Wakeups::default();
        state_now.collect(&mut wakeups);
        drop(state);
        wakeups.carry_out(self);
        next
    }

    /// Returns a timer for the rest of the pause during which no session is admitted, or `None` if there is no pause.
    ///
    /// A pause is needed after a restart that has ended the sessions of other processes. Until their timeouts have
    /// passed, clients may still consider these sessions alive (invariant 6).
    fn pause(&self) -> Option<Sleep> {
        let mut state = self.state.lock();
        let until = state.durable.as_mut()?.pause(self.clock.now())?;
        Some(self.clock.sleep_until(until))
    }
}
