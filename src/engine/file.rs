//! Opening and closing stores in folders. All handles of a process to one folder share one store.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::durable::{Durable, Timeouts};
use super::state::State;
use super::{Durability, Engine, Store, StoreOptions};
use crate::core::{Core, Journal};
use crate::log::{self, Disk, Exclusive, Folder, Log, LogParts, RemoteSessions};
use crate::model::error::{Error, Result};
use crate::runtime::clock::BootInstant;
use crate::runtime::platform::{hex, random};
use crate::runtime::process::is_forked;

/// Files of an open store, and the folder's lock, which is held until everything is written.
pub(super) struct Files {
    log: Log,
    held: Arc<dyn Exclusive>,
    #[cfg_attr(
        not(any(test, feature = "server")),
        allow(dead_code, reason = "only a server knows processes")
    )]
    processes: Mutex<log::ProcessFile>,
}

struct FolderLock {
    lock: Option<log::Lock>,
    release: Arc<ReleaseSignal>,
}

impl Exclusive for FolderLock {
    fn check(&self) -> Result<()> {
        self.lock.as_ref().map_or(Ok(()), log::Lock::check)
    }
}

/// Signal that a store has released its folder. A thread that opens the folder again waits for this signal.
#[derive(Default)]
struct ReleaseSignal {
    is_released: Mutex<bool>,
    released: Condvar,
}

/// The open stores of this process, by canonical path.
type Stores = HashMap<PathBuf, (Weak<Engine>, Arc<ReleaseSignal>)>;

static STORES: LazyLock<Mutex<Stores>> = LazyLock::new(Mutex::default);

impl Store {
    /// Opens this process's store in a folder, and creates the folder if it is missing. While a handle to the store
    /// exists, every call with this folder returns the same store. The calling thread reads the data from disk. New
    /// files and folders are accessible only to their owner (modes 0600 and 0700), regardless of the umask. An existing
    /// folder keeps its mode.
    ///
    /// # Errors
    /// [`Error::StoreInUse`] if another process has the store open, [`Error::StoreDamaged`], [`Error::StoreTooNew`],
    /// [`Error::NotAStore`], [`Error::DiskFull`], and [`Error::StoreFailed`] for any other refusal by the operating
    /// system.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// # let folder = std::env::temp_dir().join(format!("lockkeeper-doc-{}", std::process::id()));
    /// let store = lockkeeper_store::Store::file(&folder)?;
    /// let client = store.connect().await?;
    /// # client.close().await?;
    /// # drop((client, store));
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), lockkeeper_store::Error>(()) }).unwrap();
    /// ```
    pub fn file(path: impl AsRef<Path>) -> Result<Self> {
        Self::file_with(path, StoreOptions::new())
    }

    pub(crate) async fn file_aside(path: PathBuf) -> Result<Self> {
        let (tell, told) = tokio::sync::oneshot::channel();
        log::spawn("lockkeeper-open", {
            let path = path.clone();
            // If the waiting future was dropped, `send` fails, and dropping the unsent result closes the store.
            move || drop(tell.send(Self::file(path)))
        })?;
        told.await.unwrap_or_else(|_| {
            Err(Error::StoreFailed {
                path,
                reason: "the thread that opened it panicked".into(),
            })
        })
    }

    /// Works like [`file`](Self::file), with the given options. The options have no effect if this process already has
    /// the store open.
    ///
    /// # Errors
    /// The errors of [`file`](Self::file).
    pub fn file_with(path: impl AsRef<Path>, options: StoreOptions) -> Result<Self> {
        Error::if_forked()?;
        let path = made(path.as_ref())?;
        loop {
            // Hold this lock while the store is opened, so that two concurrent calls for the same folder return the
            // same store.
            let mut stores = STORES.lock();
            if let Some((engine, release)) = stores.get(&path) {
                if let Some(engine) = engine.upgrade() {
                    return Ok(Self(engine));
                }
                let release = release.clone();
                // The former store is still writing the rest of its log and holds the folder's lock. Wait until it has
                // closed, because our own attempt to lock the folder would fail.
                if !*release.is_released.lock() {
                    drop(stores);
                    release.wait();
                    continue;
                }
            }
            stores.retain(|_, (_, release)| !*release.is_released.lock());
            let release = Arc::<ReleaseSignal>::default();
            let engine = open(&path, &options, release.clone())?;
            stores.insert(path, (Arc::downgrade(&engine), release));
            return Ok(Self(engine));
        }
    }

    /// Waits until the store has failed, for example because the disk refused a write, and returns the reason. A failed
    /// store acknowledges nothing more, so a server of this store can only exit and be started again. For a store in
    /// memory, this never completes. Cancel safe.
    pub async fn failed(&self) -> Error {
        match self.0.log_queue() {
            Some(queue) => queue.barrier.failed().await,
            None => std::future::pending().await,
        }
    }
}

fn made(path: &Path) -> Result<PathBuf> {
    let made = log::make_folder(path).and_then(|()| path.canonicalize());
    made.map_err(|error| Error::StoreFailed {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

fn open(path: &Path, options: &StoreOptions, release: Arc<ReleaseSignal>) -> Result<Arc<Engine>> {
    log::check_folder(&Folder::new(path))?;
    let lock = Some(log::Lock::take(path)?);
    let held: Arc<dyn Exclusive> = Arc::new(FolderLock { lock, release });
    let disk: Arc<dyn Disk> = Arc::new(Folder::new(path));
    open_disk(&disk, format!("file:{}", path.display()), options, held)
}

pub(super) fn open_disk(
    disk: &Arc<dyn Disk>,
    target: String,
    options: &StoreOptions,
    held: Arc<dyn Exclusive>,
) -> Result<Arc<Engine>> {
    let (engine, parts, epochs) = read(disk, target, options)?;
    let files = Files {
        log: parts.start(&held)?,
        held,
        processes: Mutex::new(log::ProcessFile::new(disk.clone(), epochs)),
    };
    Ok(serve(engine, Some(files)))
}

#[cfg(feature = "simulation")]
impl Store {
    /// Opens the store on a disk without starting threads for its log. The caller writes the log.
    pub(crate) fn on_disk(
        disk: &Arc<dyn Disk>,
        options: &StoreOptions,
    ) -> Result<(Self, LogParts)> {
        let (engine, parts, _) = read(disk, "file:/simulated".into(), options)?;
        Ok((Self(serve(engine, None)), parts))
    }

    pub(crate) fn wait_to_open(disk: &dyn Disk, options: &StoreOptions) -> Result<Duration> {
        let new = || Core::new(options.core(0, 0));
        log::wait_to_open(disk, &new, options.clock.exact_unix_ms())
    }

    pub(crate) fn log_failure(&self) -> Option<Error> {
        self.0.log_queue()?.barrier.failure()
    }
}

/// Opens the store on a disk, repairs its log and writes the first batch. The returned [`LogParts`] write the rest of
/// the log. Also returns the last epoch that was reserved before this call, and the last epoch that this call reserves.
pub(super) fn read(
    disk: &Arc<dyn Disk>,
    target: String,
    options: &StoreOptions,
) -> Result<(Engine, LogParts, [u32; 2])> {
    let clock = options.clock.clone();
    let new = || Core::new(options.core(0, u64::from_ne_bytes(random())));
    let opened = log::open(disk, &options.log(), &new, &clock)?;
    let mut core = opened.core;
    let pause_until = pause_until(clock.now(), &opened.remote);
    // Recovered sessions get a full timeout, because their clients could not reach the store while it was down.
    core.restart_timeouts(clock.now());
    core.set_journal(Journal::Durable);
    if options.durability_class() == Durability::DelayedRestart {
        core.keep_sessions_lightly();
    }
    let mut state = State::new(core);
    let timeouts = Timeouts {
        longest_ms: opened.remote.longest_timeout_ms,
        allowed_ms: opened.remote.allowed_ms,
        are_sessions_kept: options.log().keeps_sessions,
        pause_until,
        ..Timeouts::default()
    };
    let queue = opened.parts.queue.clone();
    let durable = Durable::new(queue, state.core.last_zxid(), timeouts);
    state.durable = Some(durable);
    let engine = Engine {
        target,
        id: hex(opened.id),
        clock,
        state: Mutex::new(state),
        files: None,
    };
    Ok((engine, opened.parts, opened.epochs))
}

/// A pause exceeds the timeout by this fraction (1/100), because clients' clocks may be slower than ours.
const DRIFT: u32 = 100;

/// Returns the end of the pause that the restart makes necessary, or `None` if no pause is needed.
fn pause_until(now: BootInstant, remote: &RemoteSessions) -> Option<BootInstant> {
    if !remote.owe_pause() {
        return None;
    }
    let timeout = Duration::from_millis(remote.longest_timeout_ms);
    let pause = timeout + timeout / DRIFT;
    tracing::warn!(
        seconds = pause.as_secs_f64(),
        sessions = remote.ended,
        "a pause: the log may lack what was acknowledged last, so the sessions of other processes are ended, and none is \
         admitted until no client can believe in one of them"
    );
    Some(now.after(pause))
}

impl Engine {
    /// Ends the pause on time even if no client opens a session. Otherwise the log would never record the end of the
    /// pause, and the next start would pause again.
    fn time_pause(self: &Arc<Self>) {
        if let Some(pause) = self.pause() {
            let engine = Arc::downgrade(self);
            crate::spawn_detached(async move {
                pause.await;
                if let Some(engine) = engine.upgrade() {
                    drop(engine.pause());
                }
            });
        }
    }
}

pub(super) fn serve(mut engine: Engine, files: Option<Files>) -> Arc<Engine> {
    engine.files = files;
    let queue = engine.log_queue();
    let engine = Arc::new(engine);
    engine.time_pause();
    // Set the alarm now, so that recovered sessions expire even if no request arrives.
    engine.settle(engine.state.lock());
    // The reference is weak, because the engine owns the barrier, which owns this listener.
    let weak = Arc::downgrade(&engine);
    if let Some(queue) = queue {
        queue.barrier.on_failure(move |failure| {
            if let Some(engine) = weak.upgrade() {
                engine.stop(failure);
            }
        });
    }
    engine
}

impl Files {
    #[cfg(any(test, feature = "server"))]
    pub(super) fn processes(&self) -> parking_lot::MutexGuard<'_, log::ProcessFile> {
        self.processes.lock()
    }

    pub(super) fn close(self) {
        if is_forked() {
            // Leave the log open, because it belongs to the parent process, and its threads do not exist in the child.
            std::mem::forget(self);
            return;
        }
        self.log.close();
        drop(self.held);
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        drop(self.lock.take());
        *self.release.is_released.lock() = true;
        self.release.released.notify_all();
    }
}

impl ReleaseSignal {
    fn wait(&self) {
        let mut is_released = self.is_released.lock();
        while !*is_released {
            self.released.wait(&mut is_released);
        }
    }
}
