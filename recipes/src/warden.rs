//! [`Warden`]: watches locks for holders that hold too long.
//!
//! [`HoldTimes`] records how long each holder has been seen. One [`LockWatcher`] per lock or one [`PrefixWatcher`] per
//! prefix reads the locks, reports overdue holders and removes them.

mod hold_times;
mod lock_watcher;
mod prefix_watcher;
mod removal;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use lockkeeper_store::{Client, Error, ZnodePath, spawn_detached};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::list_locks::LockPrefix;
use crate::path::IntoLockPath;
use crate::revocation::FencingEnforced;
use crate::select::select;
use crate::stream::{LossySender, lossy};

pub(crate) use hold_times::HoldTimes;
use lock_watcher::{LockWatcher, Watch, watch};
use prefix_watcher::{PrefixTimes, PrefixWatcher};
use removal::Removal;
pub use report::{Overdue, OverdueLevel, WardenReport, WardenReports, WardenStats};

/// Watches locks for overdue holders, and removes these holders if configured to. A holder is overdue when it has held
/// longer than it declared with [`expected_hold`](crate::LockOptions::expected_hold),
/// [`alert_after`](crate::LockOptions::alert_after) or [`auto_unlock_after`](crate::LockOptions::auto_unlock_after).
///
/// The warden's own clock measures the time of each holder. The time starts when the warden first sees the entry as a
/// holder, and restarts at each [`keep_alive`](crate::Guard::keep_alive) that the warden sees. So a report can be late,
/// but is never early.
///
/// The warden watches all recipes (for a semaphore, pass the semaphore's own path). Holders of other libraries declare
/// no durations and are never overdue.
///
/// With [`watch_prefix`](WardenBuilder::watch_prefix), idle locks cost nothing, but the warden receives an event for
/// each entry that joins or leaves.
///
/// The warden needs no async runtime. It stops when its last clone is dropped or the client is closed. After a session
/// expiry, it opens a new session and restarts all times.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use lockkeeper::{LockOptions, Mutex, FencingEnforced, Warden, WardenReport};
///
/// # let client = lockkeeper::connect("memory:warden").await?;
/// let (warden, mut reports) = Warden::builder(&client)
///     .watch("/lock/orders")?
///     .remove_overdue(FencingEnforced)
///     .start();
///
/// let patience = LockOptions::new().label("billing").auto_unlock_after(Duration::from_millis(20));
/// let guard = Mutex::new(&client, "/lock/orders")?.lock_with(patience).await?;
/// let Some(WardenReport::Overdue(overdue)) = reports.next().await else { panic!() };
/// assert_eq!(overdue.entry.path, *guard.path());
/// assert!(matches!(reports.next().await, Some(WardenReport::Removed { .. })));
/// assert_eq!(guard.lost().await, lockkeeper::LostReason::Revoked);
/// assert!(warden.overdue_all().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Warden(Arc<Inner>);

struct Inner {
    client: Client,
    locks: BTreeMap<ZnodePath, Watched<HoldTimes>>,
    prefixes: Vec<(LockPrefix, Watched<PrefixTimes>)>,
}

struct Watched<T> {
    hold_times: Arc<Mutex<T>>,
    /// The watcher stops when the warden's last clone drops this sender.
    _warden_lives: oneshot::Sender<()>,
}

/// Builder of a [`Warden`].
#[derive(Clone, Debug)]
#[must_use = "a warden watches when it is started"]
pub struct WardenBuilder {
    client: Client,
    locks: Vec<ZnodePath>,
    prefixes: Vec<LockPrefix>,
    removal: Option<Removal>,
}

impl Warden {
    /// Starts to build a warden for this client.
    pub fn builder(client: &Client) -> WardenBuilder {
        WardenBuilder {
            client: client.clone(),
            locks: Vec::new(),
            prefixes: Vec::new(),
            removal: None,
        }
    }

    /// Returns the overdue holders of one lock, each with its highest level, as of the warden's last read. While the
    /// warden is disconnected, the result may contain holders that have left or have called `keep_alive`.
    ///
    /// # Errors
    /// [`Error::InvalidPath`], and [`Error::BadArguments`] for a lock that is not watched.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-warden-overdue").await?;
    /// use std::time::Duration;
    /// use lockkeeper::{LockOptions, Mutex, OverdueLevel, Warden};
    ///
    /// let (warden, mut reports) = Warden::builder(&client).watch("/lock/orders")?.start();
    /// let options = LockOptions::new().alert_after(Duration::from_millis(1));
    /// let _guard = Mutex::new(&client, "/lock/orders")?.lock_with(options).await?;
    /// reports.next().await; // once it is overdue
    /// let overdue = warden.overdue("/lock/orders")?;
    /// assert_eq!(overdue[0].level, OverdueLevel::Alert);
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn overdue(&self, path: impl IntoLockPath) -> Result<Vec<Overdue>, Error> {
        let path = path.into_lock_path()?;
        let path = path.as_znode();
        let now = self.0.client.clock().now();
        if let Some(watched) = self.0.locks.get(path) {
            return Ok(watched.hold_times.lock().overdue(path, now));
        }
        let mut prefixes = self.0.prefixes.iter();
        if let Some((_, watched)) = prefixes.find(|(prefix, _)| prefix.contains(path)) {
            return Ok(watched.hold_times.lock().overdue(path, now));
        }
        let refusal = format!("the lock {path}: this warden does not watch it");
        Err(Error::BadArguments(refusal))
    }

    /// Returns the overdue holders of all watched locks. See [`overdue`](Self::overdue).
    pub fn overdue_all(&self) -> Vec<Overdue> {
        let now = self.0.client.clock().now();
        let locks = self.0.locks.iter();
        let single = locks.flat_map(|(path, watched)| watched.hold_times.lock().overdue(path, now));
        let prefixes = self.0.prefixes.iter();
        single
            .chain(prefixes.flat_map(|(_, watched)| watched.hold_times.lock().overdue_all(now)))
            .collect()
    }
}

impl Warden {
    /// Returns statistics of all watched locks, as last read.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-warden-stats").await?;
    /// use std::time::Duration;
    /// use lockkeeper::{LockOptions, Mutex, Warden};
    ///
    /// let (warden, mut reports) = Warden::builder(&client).watch_prefix("/lock")?.start();
    /// let options = LockOptions::new().alert_after(Duration::from_millis(1));
    /// let _guard = Mutex::new(&client, "/lock/orders")?.lock_with(options).await?;
    /// reports.next().await; // once it is overdue
    /// let stats = warden.stats();
    /// assert_eq!((stats.locks, stats.holders, stats.overdue_alert), (1, 1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn stats(&self) -> WardenStats {
        let now = self.0.client.clock().now();
        let mut stats = WardenStats::default();
        for watched in self.0.locks.values() {
            watched.hold_times.lock().add_to(&mut stats, now);
        }
        for (_, watched) in &self.0.prefixes {
            watched.hold_times.lock().add_to(&mut stats, now);
        }
        stats
    }
}

impl WardenBuilder {
    /// Adds a lock to watch. Adding it twice has no effect.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn watch(mut self, path: impl IntoLockPath) -> Result<Self, Error> {
        let path = path.into_lock_path()?;
        self.locks.push(path.as_znode().clone());
        Ok(self)
    }

    /// Adds all locks at and below a prefix, including future locks. A lock that was added several times is watched
    /// once.
    ///
    /// The warden reads all these locks once, and then only the changed locks, at most ten times a second. ZooKeeper
    /// before 3.6 has no persistent watches, so there the warden reads all locks every 10 s, or less often if reading
    /// them takes long. A lock that the warden may not read is reported as [`Failed`](WardenReport::Failed), and does
    /// not end the watch.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-warden-prefix").await?;
    /// use std::time::Duration;
    /// use lockkeeper::{LockOptions, Mutex, Warden, WardenReport};
    ///
    /// let (_warden, mut reports) = Warden::builder(&client).watch_prefix("/lock")?.start();
    /// let options = LockOptions::new().alert_after(Duration::from_millis(1));
    /// let _guard = Mutex::new(&client, "/lock/orders/4711")?.lock_with(options).await?;
    /// let Some(WardenReport::Overdue(overdue)) = reports.next().await else { panic!() };
    /// assert_eq!(overdue.path.as_str(), "/lock/orders/4711");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn watch_prefix<P>(mut self, prefix: P) -> Result<Self, Error>
    where
        P: TryInto<LockPrefix>,
        P::Error: Into<Error>,
    {
        self.prefixes.push(prefix.try_into().map_err(Into::into)?);
        Ok(self)
    }

    /// Removes holders whose `auto_unlock_after` has passed. The next contender may work before the removed holder
    /// notices the removal, so the resource must check tokens.
    ///
    /// A [`keep_alive`](crate::Guard::keep_alive) at the last moment prevents the removal, because the warden deletes
    /// the entry only at the version that it has read.
    pub fn remove_overdue(mut self, _promise: FencingEnforced) -> Self {
        self.removal = Some(Removal { only_while: None });
        self
    }

    /// Like [`remove_overdue`](Self::remove_overdue), but only while the given entry exists. If several wardens run,
    /// let them compete for a lock, and pass each warden its own entry in the queue of this lock. A warden that has
    /// lost this lock then only reports.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let client = lockkeeper::connect("memory:example-warden-while").await?;
    /// use lockkeeper::{Election, FencingEnforced, Warden};
    ///
    /// let leadership = Election::new(&client, "/wardens")?.campaign("host-1").await?;
    /// let (_warden, mut reports) = Warden::builder(&client)
    ///     .watch_prefix("/lock")?
    ///     .remove_overdue_while(FencingEnforced, leadership.path())
    ///     .start();
    /// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn remove_overdue_while(mut self, _promise: FencingEnforced, entry: &ZnodePath) -> Self {
        let only_while = Some(entry.clone());
        self.removal = Some(Removal { only_while });
        self
    }

    /// Starts to watch. Returns the warden and its reports.
    pub fn start(self) -> (Warden, WardenReports) {
        let (reporter, reports) = lossy();
        // Two watchers of one lock would report and remove everything twice.
        let mut prefixes: Vec<LockPrefix> = Vec::new();
        for prefix in &self.prefixes {
            if !prefixes.iter().any(|other| other.covers(prefix)) {
                prefixes.retain(|other| !prefix.covers(other));
                prefixes.push(prefix.clone());
            }
        }
        let mut locks = BTreeMap::new();
        for path in &self.locks {
            if !prefixes.iter().any(|prefix| prefix.contains(path)) {
                locks
                    .entry(path.clone())
                    .or_insert_with(|| self.watch_lock(path, &reporter));
            }
        }
        let prefixes = prefixes.into_iter().map(|prefix| {
            let watched = self.watch_all(&prefix, &reporter);
            (prefix, watched)
        });
        let inner = Inner {
            prefixes: prefixes.collect(),
            client: self.client,
            locks,
        };
        (Warden(Arc::new(inner)), WardenReports(reports))
    }

    fn watch_lock(
        &self,
        path: &ZnodePath,
        reporter: &LossySender<WardenReport>,
    ) -> Watched<HoldTimes> {
        begin(|hold_times| LockWatcher {
            client: self.client.clone(),
            path: path.clone(),
            hold_times,
            reporter: reporter.clone(),
            removal: self.removal.clone(),
            unanswered: Vec::new(),
        })
    }

    fn watch_all(
        &self,
        prefix: &LockPrefix,
        reporter: &LossySender<WardenReport>,
    ) -> Watched<PrefixTimes> {
        begin(|times| PrefixWatcher {
            client: self.client.clone(),
            prefix: prefix.clone(),
            times,
            reporter: reporter.clone(),
            removal: self.removal.clone(),
            unanswered: BTreeMap::new(),
            unreadable: BTreeSet::new(),
        })
    }
}

fn begin<T: Default, W: Watch>(watcher: impl FnOnce(Arc<Mutex<T>>) -> W) -> Watched<T> {
    let hold_times = Arc::new(Mutex::new(T::default()));
    let (warden_lives, warden_gone) = oneshot::channel::<()>();
    let watcher = watcher(hold_times.clone());
    // This runs on the store's threads and not on the user's runtime (invariant 11), until the warden's last clone
    // drops the sender.
    spawn_detached(async move {
        select(warden_gone, watch(watcher)).await;
    });
    Watched {
        hold_times,
        _warden_lives: warden_lives,
    }
}

fn removal_ended(path: &ZnodePath) {
    tracing::warn!(%path, "this warden has lost its lock: it removes nothing any more");
}

impl fmt::Debug for Warden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warden")
            .field("client", &self.0.client)
            .field("locks", &self.0.locks.keys())
            .field("prefixes", &self.0.prefixes.len())
            .finish()
    }
}
