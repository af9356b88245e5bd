//! [`Warden`]: watches locks for holders that hold for too long.
//!
//! [`HoldTimes`] decides, without IO, for how long each holder has been seen; a [`LockWatcher`] for each lock reads,
//! reports and removes.

mod hold_times;
mod lock_watcher;
mod report;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use lockkeeper_store::{Client, Error, ZnodePath, spawn_detached};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::path::IntoLockPath;
use crate::revocation::FencingEnforced;
use crate::select::select;
use crate::stream::{LossySender, lossy};

use hold_times::HoldTimes;
use lock_watcher::LockWatcher;
pub use report::{Overdue, OverdueLevel, WardenReport, WardenReports};

/// Watches locks for holders that hold for longer than they stated, by
/// [`expected_hold`](crate::LockOptions::expected_hold), [`alert_after`](crate::LockOptions::alert_after)
/// and [`auto_unlock_after`](crate::LockOptions::auto_unlock_after), and removes overdue holders if configured to.
///
/// A holder states durations, and no clocks are compared: the warden times each holder on its own clock, from its first
/// sight of it as a holder or of its last [`keep_alive`](crate::Guard::keep_alive). So it may be late, by as long as it
/// could not look, and is never early. For the same reason no function lists overdue holders without a warden: a single
/// read shows the durations that a holder stated, but not the beginning of its hold. A request for
/// [`revocation`](crate::LockMetadata::revocation) in its znode is no sign of life.
///
/// It watches mutexes, elections, read-write locks and semaphores (by the semaphore's own path), and recognises them by
/// the names of their entries. Holders of other libraries state nothing and are never overdue. A lock with a single
/// holder costs no requests until that holder leaves, writes or is overdue.
///
/// It runs by itself, needs no runtime, and ends when its last clone is dropped or the client is closed. When its
/// session has expired it opens another and starts all times anew: a holder may have given signs of life in between.
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
    locks: BTreeMap<ZnodePath, Watched>,
}

struct Watched {
    hold_times: Arc<Mutex<HoldTimes>>,
    /// Ends the lock's watcher when it is dropped, with the warden's last clone.
    _warden_lives: oneshot::Sender<()>,
}

/// Builder of a [`Warden`]: the locks to watch, and the removal of overdue holders. See [`Warden::builder`].
#[derive(Clone, Debug)]
#[must_use = "a warden watches when it is started"]
pub struct WardenBuilder {
    client: Client,
    locks: Vec<ZnodePath>,
    removes: bool,
}

impl Warden {
    /// Begins to build a warden that watches through this client. Nothing is sent before it is started.
    pub fn builder(client: &Client) -> WardenBuilder {
        WardenBuilder {
            client: client.clone(),
            locks: Vec::new(),
            removes: false,
        }
    }

    /// Returns the overdue holders of one lock, each on its highest level, as the warden last read them: while it is
    /// disconnected it learns of no departure and no sign of life. It never waits, and sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`], and [`Error::BadArguments`] for a lock that it does not watch.
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
        let Some(watched) = self.0.locks.get(path) else {
            let refusal = format!("the lock {path}: this warden does not watch it");
            return Err(Error::BadArguments(refusal));
        };
        Ok(self.overdue_at(path, watched))
    }

    /// Returns the overdue holders of all its locks. See [`overdue`](Self::overdue).
    pub fn overdue_all(&self) -> Vec<Overdue> {
        let locks = self.0.locks.iter();
        locks
            .flat_map(|(path, watched)| self.overdue_at(path, watched))
            .collect()
    }

    fn overdue_at(&self, path: &ZnodePath, watched: &Watched) -> Vec<Overdue> {
        let now = self.0.client.clock().now();
        watched.hold_times.lock().overdue(path, now)
    }
}

impl WardenBuilder {
    /// Adds a lock to watch. A lock that is added twice is watched once.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn watch(mut self, path: impl IntoLockPath) -> Result<Self, Error> {
        let path = path.into_lock_path()?;
        self.locks.push(path.as_znode().clone());
        Ok(self)
    }

    /// Removes holders whose `auto_unlock_after` has passed. The holder learns that its lock was
    /// [`Revoked`](crate::LostReason::Revoked) only after the next one may hold it, so the resource must check tokens.
    ///
    /// An entry is deleted at the version that the warden has read: a [`keep_alive`](crate::Guard::keep_alive) that the
    /// store carried out before wins.
    pub fn remove_overdue(mut self, _promise: FencingEnforced) -> Self {
        self.removes = true;
        self
    }

    /// Starts to watch. Returns the warden, which stops when it is dropped, and the stream of its reports.
    pub fn start(self) -> (Warden, WardenReports) {
        let (reporter, reports) = lossy();
        let mut locks = BTreeMap::new();
        for path in &self.locks {
            // Two watchers of one lock would report, and remove, everything twice.
            locks
                .entry(path.clone())
                .or_insert_with(|| self.begin_watching(path, &reporter));
        }
        let client = self.client;
        (
            Warden(Arc::new(Inner { client, locks })),
            WardenReports(reports),
        )
    }

    fn begin_watching(&self, path: &ZnodePath, reporter: &LossySender<WardenReport>) -> Watched {
        let hold_times = Arc::new(Mutex::new(HoldTimes::default()));
        let (warden_lives, warden_gone) = oneshot::channel::<()>();
        let watcher = LockWatcher {
            client: self.client.clone(),
            path: path.clone(),
            hold_times: hold_times.clone(),
            reporter: reporter.clone(),
            removes: self.removes,
            unanswered: Vec::new(),
        };
        // No task of the user's (invariant 11): it runs on the threads of the store, until the sender is dropped.
        spawn_detached(async move {
            select(warden_gone, watcher.watch()).await;
        });
        Watched {
            hold_times,
            _warden_lives: warden_lives,
        }
    }
}

impl fmt::Debug for Warden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warden")
            .field("client", &self.0.client)
            .field("locks", &self.0.locks.keys())
            .finish()
    }
}
