//! [`ServerHost`]: a machine with a disk and a server that can be killed, lose power and start again.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::Time;
use crate::backend::store_id;
use crate::engine::{Store, StoreOptions};
use crate::log::{self, Boot, Disk as _, Faults, SimDisk, StepWriter, backup, salvage};
use crate::model::error::{Error, Result};
use crate::runtime::clock::Clock;
use crate::runtime::future::select;
use crate::runtime::simnet::Network;
use crate::runtime::splitmix::Random;
use crate::server::{Server, ServerOptions};

/// A simulated disk. Clones share it.
#[derive(Clone, Default)]
pub struct Disk(SimDisk);

/// Faults of a disk. A rate of 0 means that this fault never happens.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFaults {
    /// One in this many writes fails.
    pub write_error_every: u64,
    /// One in this many writes stores only part of its bytes and fails.
    pub short_write_every: u64,
    /// One in this many syncs fails.
    pub sync_error_every: u64,
    /// The free space in bytes.
    pub room_bytes: Option<u64>,
}

impl Disk {
    /// Injects faults into later calls. `seed` determines which calls fail.
    pub fn fail(&self, seed: u64, faults: DiskFaults) {
        let faults = Faults {
            write_error_every: faults.write_error_every,
            short_write_every: faults.short_write_every,
            sync_error_every: faults.sync_error_every,
            room_bytes: faults.room_bytes,
        };
        self.0.fail(seed, faults);
    }

    fn rot(&self, random: &mut Random) -> bool {
        let names = self.0.list().unwrap_or_default();
        let contents = names
            .into_iter()
            .filter_map(|name| Some((name.clone(), self.0.content(&name)?.len() as u64)));
        let files: Vec<_> = contents.filter(|(_, bytes)| *bytes > 0).collect();
        if files.is_empty() {
            return false;
        }
        let (name, bytes) = &files[random.next() as usize % files.len()];
        let (at, bits) = (random.next() % bytes, 1 << (random.next() % 8));
        self.0.flip(name, at, bits);
        true
    }

    /// Returns the number of writes and of syncs so far.
    pub fn counts(&self) -> (u64, u64) {
        self.0.counts()
    }
}

/// A backup of a store.
pub struct Backup(SimDisk);

/// A machine with a disk and a server. Dropping the machine kills the server.
pub struct ServerHost {
    pub(super) name: String,
    network: Network,
    disk: Disk,
    clock: Clock,
    time: Time,
    random: Random,
    running: Option<Running>,
}

struct Running {
    store: Store,
    boot: Boot,
    server: Server,
    writer: Arc<Mutex<Option<StepWriter>>>,
    writing: JoinHandle<()>,
}

impl ServerHost {
    /// Creates a machine without a running server.
    pub fn new(
        name: &str,
        network: &Network,
        disk: &Disk,
        clock: &Clock,
        time: &Time,
        seed: u64,
    ) -> Self {
        Self {
            name: name.to_owned(),
            network: network.clone(),
            disk: disk.clone(),
            clock: clock.clone(),
            time: time.clone(),
            random: Random(seed),
            running: None,
        }
    }

    /// Starts the server. Each batch of the log takes a time drawn from `pace`.
    ///
    /// # Errors
    /// The errors of [`Store::file`].
    pub async fn start(&mut self, options: &StoreOptions, pace: Range<Duration>) -> Result<()> {
        self.kill();
        let boot = Boot::new(&self.disk.0);
        let disk: Arc<dyn log::Disk> = Arc::new(boot.clone());
        let options = options.clone().clock(self.clock.clone());
        self.clock
            .sleep(Store::wait_to_open(&*disk, &options)?)
            .await;
        let (store, parts) = Store::on_disk(&disk, &options)?;
        let writer = StepWriter::new(parts).on(&boot);
        let work = writer.work();
        let writer = Arc::new(Mutex::new(Some(writer)));
        let writing = Writing {
            writer: writer.clone(),
            disk,
            time: self.time.clone(),
            clock: self.clock.clone(),
            random: Random(self.random.next()),
            pace,
            work,
        };
        let accepting = self.network.listen(&self.name);
        let server = Server::simulated(&store, ServerOptions::new(), accepting);
        let server = server.map_err(|error| Error::Protocol(error.to_string()))?;
        self.running = Some(Running {
            store,
            boot,
            server,
            writer,
            writing: tokio::spawn(writing.run()),
        });
        Ok(())
    }

    /// Returns the machine's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the machine's disk.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Makes a backup. The server may be running.
    ///
    /// # Errors
    /// The errors of [`disk::backup`](crate::disk::backup).
    pub fn backup(&self) -> Result<Backup> {
        let backup = SimDisk::new();
        // Read a copy, because injected faults affect only the server's own calls.
        backup::backup_on(&self.disk.0.copy(), &backup, self.clock.unix_ms())?;
        Ok(Backup(backup))
    }

    /// Kills the server and restores a backup onto a new disk.
    ///
    /// # Errors
    /// The errors of [`disk::restore`](crate::disk::restore).
    pub fn restore(&mut self, backup: &Backup) -> Result<()> {
        self.kill();
        let disk = SimDisk::new();
        backup::restore_on(&backup.0, &disk, self.clock.unix_ms())?;
        self.disk = Disk(disk);
        Ok(())
    }

    /// Kills the server, damages some bytes of its disk, and salvages the store onto a new disk. Returns false, with
    /// the disk unchanged, if nothing can be salvaged.
    ///
    /// # Errors
    /// The errors of [`disk::salvage`](crate::disk::salvage), except that an unreadable store is not an error.
    pub fn salvage(&mut self) -> Result<bool> {
        self.kill();
        let (damaged, salvaged) = (Disk(self.disk.0.copy()), SimDisk::new());
        for _ in 0..1 + self.random.next() % 3 {
            damaged.rot(&mut self.random);
        }
        let now_ms = self.clock.unix_ms();
        let outcome = salvage::salvage_on(&damaged.0, &salvaged, store_id::PATH, now_ms);
        match outcome {
            Ok(true) => self.disk = Disk(salvaged),
            Ok(false) | Err(Error::StoreDamaged { .. } | Error::NotAStore { .. }) => {
                return Ok(false);
            }
            // Not an error, because the damage may have changed the version of the store's format.
            Err(Error::StoreTooNew { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Returns the bytes of the running server's store that count against the limit.
    pub fn kept_bytes(&self) -> Option<usize> {
        let counts = self.store()?.counts();
        Some(counts.znode_bytes + counts.watch_bytes + counts.session_bytes)
    }

    /// Kills the server and continues on another machine, with a copy of the disk and another clock.
    pub fn move_to(&mut self, clock: &Clock) {
        self.kill();
        self.disk = Disk(self.disk.0.copy());
        self.clock = clock.clone();
    }

    /// Returns the running server's store.
    pub fn store(&self) -> Option<&Store> {
        self.running.as_ref().map(|running| &running.store)
    }

    /// Returns true if the server is stopped, or acknowledges no more writes because its disk has failed.
    pub fn is_down(&self) -> bool {
        self.store()
            .is_none_or(|store| store.log_failure().is_some())
    }

    /// Kills the server and resets its connections. Unsynced writes survive in the system's cache.
    pub fn kill(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        self.network.stop_listening(&self.name);
        running.end();
        self.network.reset(&self.name);
    }

    /// Cuts the power after this many more disk changes, possibly within a write. The caller must then call
    /// [`crash`](Self::crash).
    pub fn crash_within(&self, changes: u64) {
        if let Some(running) = &self.running {
            running.boot.fail_after(changes);
        }
    }

    /// Returns true if the power has failed.
    pub fn is_without_power(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.boot.is_off())
    }

    /// Cuts the power. A seed decides which unsynced data is lost.
    pub fn crash(&mut self) {
        if let Some(running) = self.running.take() {
            self.network.stop_listening(&self.name);
            running.end();
        }
        self.disk.0.crash(self.random.next());
        // After a restart, the machine's kernel resets the old connections, because it does not know them.
        self.network.reset(&self.name);
    }

    /// Shuts the server down gracefully.
    pub async fn shutdown(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        self.network.stop_listening(&self.name);
        let Running {
            store,
            server,
            writer,
            writing,
            boot: _,
        } = running;
        server.shutdown().await;
        writing.abort();
        drop(store);
        if let Some(writer) = writer.lock().take() {
            writer.close();
        }
    }
}

impl Drop for ServerHost {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Running {
    fn end(self) {
        self.writing.abort();
        // Drop the writer, so that nothing more reaches the disk even if the store is still in use.
        drop(self.writer.lock().take());
    }
}

struct Writing {
    writer: Arc<Mutex<Option<StepWriter>>>,
    disk: Arc<dyn log::Disk>,
    time: Time,
    clock: Clock,
    random: Random,
    pace: Range<Duration>,
    work: Arc<Notify>,
}

const IDLE: Duration = Duration::from_millis(200);

const BATCHES_PER_SNAPSHOT: u64 = 200;

impl Writing {
    async fn run(mut self) {
        loop {
            select(self.work.notified(), tokio::time::sleep(IDLE)).await;
            tokio::time::sleep(self.random.time_within(&self.pace)).await;
            self.time.sync();
            if self.time.is_stopped(&self.clock) {
                continue;
            }
            let mut writer = self.writer.lock();
            let Some(writer) = writer.as_mut() else {
                return;
            };
            let mut has_written = false;
            while writer.make_room() || writer.write() {
                has_written = true;
            }
            if has_written && self.random.next().is_multiple_of(BATCHES_PER_SNAPSHOT) {
                // On a failing disk the snapshot may fail. The store then continues without it.
                let _ = writer.snapshot(&*self.disk);
            }
        }
    }
}
