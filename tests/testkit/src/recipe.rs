//! [`Recipe`]: the recipe of a path. [`Held`]: a guard of any recipe.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper::{
    Client, Clock, Election, FencingToken, Guard, Leadership, LockError, LockGuard, LockOptions,
    LostReason, MultiGuard, Mutex, Owner, Permit, ReadGuard, ReentrantGuard, Role, RwLock,
    Semaphore, Upgrade, WriteGuard, ZnodePath, lock_all_with, try_lock_all,
};

use crate::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    Mutex,
    RwLock,
    Semaphore {
        permits: u32,
    },
    Election,
    /// Only on a store in memory.
    Reentrant,
}

pub enum Held {
    Mutex(Guard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
    /// With the election whose state includes it.
    Leadership(Arc<Leadership>, Election),
    /// Several mutexes.
    Batch(MultiGuard),
    /// One entry of the owner with this number.
    Entry(ReentrantGuard, u64),
}

/// Evaluates an expression on the guard of any variant.
macro_rules! of_guard {
    ($held:expr, $guard:ident => $what:expr) => {
        match $held {
            Held::Mutex($guard) => $what,
            Held::Read($guard) => $what,
            Held::Write($guard) => $what,
            Held::Permit($guard) => $what,
            Held::Leadership(shared, _) => {
                let $guard: &Leadership = &shared;
                $what
            }
            Held::Batch($guard) => $what,
            Held::Entry($guard, _) => $what,
        }
    };
}

/// How to wait.
#[derive(Clone, Copy, Debug)]
pub enum AcquireMode {
    /// Only if it is free.
    Try,
    /// Like `Try`, with a read that is not stale.
    Synced,
    /// With a time limit.
    Limited(Duration),
    /// Dropped after this time.
    Dropped(Duration),
    Patient,
}

impl Recipe {
    pub fn draw(random: &mut Random) -> Self {
        match random.within(0..6) {
            0 | 1 => Self::RwLock,
            2 => Self::Semaphore {
                permits: 1 + random.within(0..4) as u32,
            },
            3 => Self::Election,
            _ => Self::Mutex,
        }
    }

    /// Returns the queues under a path, which are empty once no client waits or holds.
    pub fn queues(self, path: &str) -> Vec<String> {
        match self {
            Self::Semaphore { .. } => vec![format!("{path}/locks"), format!("{path}/leases")],
            _ => vec![path.to_owned()],
        }
    }

    /// Returns how much may be held simultaneously, in units of [`Held::weight`]. For a semaphore, this is the initial
    /// number of permits.
    pub fn capacity(self) -> u32 {
        match self {
            Self::Mutex | Self::Election | Self::Reentrant => 1,
            Self::RwLock => u32::MAX,
            Self::Semaphore { permits } => permits,
        }
    }

    /// Waits in one way. Returns `None` if that gives up. `handle` is the semaphore of the last wait.
    pub async fn wait(
        self,
        (client, path, handle): (&Client, &str, &mut Option<Semaphore>),
        way: AcquireMode,
        random: &mut Random,
        clock: &Clock,
    ) -> Result<Option<Held>, LockError> {
        let count = match self {
            Self::Semaphore { permits } => 1 + random.within(0..u64::from(permits)) as u32,
            _ => 1,
        };
        // A handle that has seen the number of permits follows its changes. A new one has to ask.
        if random.once_in(3) {
            *handle = None;
        }
        let shared = random.within(0..3) > 0;
        let options = stated(random);
        let options = match way {
            AcquireMode::Limited(limit) => options.timeout(limit),
            AcquireMode::Try => LockOptions::new(),
            AcquireMode::Synced => LockOptions::new().synced(),
            AcquireMode::Dropped(_) | AcquireMode::Patient => options,
        };
        let is_try = matches!(way, AcquireMode::Try | AcquireMode::Synced);
        let waiting = async {
            match (self, is_try) {
                (Self::Semaphore { permits }, _) => {
                    let options = (!is_try).then_some(options);
                    let wanted = (permits, count);
                    wait_for_permits((client, path, handle), wanted, options).await
                }
                (_, true) => self.attempt(client, path, shared, options).await,
                (_, false) => self.acquire(client, path, shared, options).await.map(Some),
            }
        };
        way.dropped(waiting, clock).await
    }

    async fn attempt(
        self,
        client: &Client,
        path: &str,
        shared: bool,
        options: LockOptions,
    ) -> Result<Option<Held>, LockError> {
        Ok(match self {
            Self::Mutex => {
                let mutex = Mutex::new(client, path)?;
                mutex.try_lock_with(options).await?.map(Held::Mutex)
            }
            Self::RwLock if shared => {
                let lock = RwLock::new(client, path)?;
                lock.try_read_with(options).await?.map(Held::Read)
            }
            Self::RwLock => {
                let lock = RwLock::new(client, path)?;
                lock.try_write_with(options).await?.map(Held::Write)
            }
            Self::Election => {
                let election = Election::new(client, path)?;
                let leadership = election.try_campaign_with("data", options).await?;
                leadership.map(|leadership| Held::Leadership(leadership.into(), election))
            }
            Self::Semaphore { .. } | Self::Reentrant => unreachable!("it has a handle"),
        })
    }

    async fn acquire(
        self,
        client: &Client,
        path: &str,
        shared: bool,
        options: LockOptions,
    ) -> Result<Held, LockError> {
        Ok(match self {
            Self::Mutex => Held::Mutex(Mutex::new(client, path)?.lock_with(options).await?),
            Self::RwLock if shared => {
                Held::Read(RwLock::new(client, path)?.read_with(options).await?)
            }
            Self::RwLock => Held::Write(RwLock::new(client, path)?.write_with(options).await?),
            Self::Election => {
                let election = Election::new(client, path)?;
                let leadership = election.campaign_with("data", options).await?;
                Held::Leadership(leadership.into(), election)
            }
            Self::Semaphore { .. } | Self::Reentrant => unreachable!("it has a handle"),
        })
    }
}

/// Waits for this many permits, or tries without options. The first use of a semaphore stores a random number of
/// permits. Later ones use the stored number, which may have been changed or restored from a backup.
async fn wait_for_permits(
    (client, path, handle): (&Client, &str, &mut Option<Semaphore>),
    (permits, count): (u32, u32),
    options: Option<LockOptions>,
) -> Result<Option<Held>, LockError> {
    loop {
        let semaphore = match handle.clone() {
            Some(semaphore) => semaphore,
            None => Semaphore::open(client, path)?,
        };
        let acquired = match options.clone() {
            None => semaphore.try_acquire_many(count).await,
            Some(options) => semaphore.acquire_with(count, options).await.map(Some),
        };
        *handle = match acquired {
            Err(LockError::NoPermits { .. }) => Some(Semaphore::new(client, path, permits)?),
            // Another number was stored after it was found missing.
            Err(LockError::PermitsMismatch { .. }) => None,
            acquired => {
                *handle = Some(semaphore);
                return Ok(acquired?.map(Held::Permit));
            }
        };
    }
}

/// Returns options, some with an expected hold time.
fn stated(random: &mut Random) -> LockOptions {
    match random.once_in(3) {
        true => {
            let expected = random.below_ms(2_000) + Duration::from_millis(1);
            LockOptions::new()
                .expected_hold(expected)
                .auto_unlock_after(2 * expected)
        }
        false => LockOptions::new(),
    }
}

/// Waits for several mutexes together. Returns `None` if that gives up.
pub async fn wait_for_all(
    client: &Client,
    paths: &[&str],
    way: AcquireMode,
    clock: &Clock,
) -> Result<Option<Held>, LockError> {
    let waiting = async {
        let options = match way {
            AcquireMode::Try | AcquireMode::Synced => {
                return Ok(try_lock_all(client, paths).await?.map(Held::Batch));
            }
            AcquireMode::Limited(limit) => LockOptions::new().timeout(limit),
            AcquireMode::Dropped(_) | AcquireMode::Patient => LockOptions::new(),
        };
        let held = lock_all_with(client, paths, options).await?;
        Ok(Some(Held::Batch(held)))
    };
    way.dropped(waiting, clock).await
}

/// Enters a re-entrant mutex for an owner in one way. Returns `None` if that gives up.
pub async fn enter(
    (number, owner): &(u64, Owner),
    way: AcquireMode,
    clock: &Clock,
) -> Result<Option<Held>, LockError> {
    let waiting = async {
        let entered = match way {
            AcquireMode::Try | AcquireMode::Synced => owner.try_lock().await?,
            AcquireMode::Limited(limit) => Some(owner.lock_timeout(limit).await?),
            AcquireMode::Dropped(_) | AcquireMode::Patient => Some(owner.lock().await?),
        };
        Ok(entered.map(|guard| Held::Entry(guard, *number)))
    };
    way.dropped(waiting, clock).await
}

impl AcquireMode {
    pub fn draw(random: &mut Random) -> Self {
        match random.within(0..8) {
            0 => Self::Try,
            1 => Self::Limited(random.below_ms(5_000)),
            2 => Self::Dropped(random.below_ms(3_000)),
            _ => Self::Patient,
        }
    }

    /// Drops a wait at its time, if this is such a wait.
    pub async fn dropped<T>(
        self,
        waiting: impl Future<Output = Result<Option<T>, LockError>>,
        clock: &Clock,
    ) -> Result<Option<T>, LockError> {
        let Self::Dropped(limit) = self else {
            return waiting.await;
        };
        let (waiting, timer) = (pin!(waiting), pin!(clock.sleep(limit)));
        tokio::select! {
            biased;
            held = waiting => held,
            () = timer => Ok(None),
        }
    }
}

/// Returns the output of a future if it is ready.
pub fn now_or_never<T>(future: impl Future<Output = T>) -> Option<T> {
    let context = &mut Context::from_waker(Waker::noop());
    match pin!(future).poll(context) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

impl Held {
    /// Returns `true` for a guard that can be [converted](Self::converted).
    pub fn is_convertible(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Write(_))
    }

    /// Downgrades a writer, or upgrades a reader if it is the only one. Also returns what happened.
    pub async fn converted(self) -> Result<(Self, &'static str), LockError> {
        Ok(match self {
            Self::Write(guard) => {
                let reader = guard.downgrade().await?;
                (Self::Read(reader), "conversions: downgraded")
            }
            Self::Read(guard) => match guard.try_upgrade().await? {
                Upgrade::Upgraded(writer) => (Self::Write(writer), "conversions: upgraded"),
                Upgrade::Refused(reader) => (Self::Read(reader), "conversions: refused"),
            },
            other => unreachable!("no conversion of a guard by {}", other.token()),
        })
    }

    /// Returns the share of the [capacity](Recipe::capacity) that it takes.
    pub fn weight(&self) -> u32 {
        match self {
            Self::Write(_) => u32::MAX,
            Self::Permit(permit) => permit.count(),
            _ => 1,
        }
    }

    /// Returns `true` if several may hold simultaneously, so that their tokens have no order.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Permit(_))
    }

    /// Returns the owner whose entries do not exclude each other.
    pub fn owner(&self) -> Option<u64> {
        match self {
            Self::Entry(_, owner) => Some(*owner),
            _ => None,
        }
    }

    pub fn is_held(&self) -> bool {
        of_guard!(self, guard => LockGuard::is_held(guard))
    }

    /// Returns `false` if a leader's election contradicts its leadership.
    pub fn agrees_with_its_state(&self) -> bool {
        let Self::Leadership(leadership, election) = self else {
            return true;
        };
        let epoch = leadership.epoch();
        self.is_held() == (election.state().current() == Role::Leader { epoch })
    }

    /// Returns `true` if it was lost because the store has not proved the session alive in time.
    pub fn has_outlived_its_lease(&self) -> bool {
        self.lost_reason() == Some(LostReason::LeaseExpired)
    }

    /// Returns why it was lost, if that is known.
    pub fn lost_reason(&self) -> Option<LostReason> {
        of_guard!(self, guard => now_or_never(LockGuard::lost(guard)))
    }

    pub fn token(&self) -> FencingToken {
        of_guard!(self, guard => LockGuard::fencing_token(guard))
    }

    pub fn paths(&self) -> Vec<ZnodePath> {
        of_guard!(self, guard => LockGuard::paths(guard).cloned().collect())
    }

    pub async fn keep_alive(&self) -> Result<(), LockError> {
        of_guard!(self, guard => LockGuard::keep_alive(guard).await)
    }

    /// Runs `work` for as long as it is held.
    pub async fn protect(&self, work: impl Future<Output = ()> + Send) {
        let _ = of_guard!(self, guard => LockGuard::protect(guard, work).await);
    }

    /// Releases it. The release continues if the future is dropped.
    pub async fn release(self) -> Result<(), LockError> {
        match self {
            Self::Mutex(guard) => guard.release().await,
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
            Self::Permit(guard) => guard.release().await,
            Self::Leadership(guard, _) => match Arc::into_inner(guard) {
                Some(leadership) => leadership.release().await,
                None => Ok(()),
            },
            Self::Batch(guard) => guard.release().await,
            Self::Entry(guard, _) => guard.release().await,
        }
    }
}
