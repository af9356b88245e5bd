//! [`Register`]: a znode that all clients read and write by version, and the history that its answers must fit.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use lockkeeper::{Client, Error, ZnodePath};
use lockkeeper_store::{CreateMode, Session, SessionId, Watcher};
use testkit::up_to_date;

use crate::world::World;

/// A znode with a history.
///
/// A write names the version that it replaces. Each version therefore has a single value, even if replies to writes
/// are lost. An acknowledged version never disappears, neither after a crash nor for a later reader.
pub(crate) struct Register {
    world: World,
    path: ZnodePath,
    values: RefCell<BTreeMap<i32, String>>,
    acknowledged: Cell<i32>,
    writes: Cell<u64>,
    watches: RefCell<Vec<Watch>>,
    /// Number of restores so far.
    life: Cell<u64>,
}

/// A watch set by the read of a version.
struct Watch {
    session: SessionId,
    version: i32,
    watcher: Watcher,
}

impl Watch {
    fn has_fired(&mut self) -> bool {
        let context = &mut Context::from_waker(Waker::noop());
        Pin::new(&mut self.watcher).poll(context).is_ready()
    }
}

impl Register {
    pub(crate) fn new(world: &World, path: &str) -> Self {
        Self {
            world: world.clone(),
            path: path.parse().expect("a path"),
            values: RefCell::default(),
            acknowledged: Cell::new(-1),
            writes: Cell::new(0),
            watches: RefCell::default(),
            life: Cell::new(0),
        }
    }

    /// Forgets the history, because a backup has restored an earlier state.
    pub(crate) fn forget(&self) {
        self.values.borrow_mut().clear();
        self.acknowledged.set(-1);
        self.watches.borrow_mut().clear();
        self.life.set(self.life.get() + 1);
    }

    /// Reads it, and writes the next version. Faults explain its errors.
    pub(crate) async fn write(&self, who: &str, client: &Client) -> Result<(), Error> {
        let session = client.session().await?;
        let life = self.life.get();
        let version = match self.read(client, false).await? {
            Some(version) => version,
            None => {
                let created = session.create(&self.path, "", CreateMode::Persistent).await;
                match created {
                    Ok(_) => self.acknowledge(life, 0, String::new()),
                    Err(Error::NodeExists { .. }) => {}
                    Err(error) => return Err(error),
                }
                return Ok(());
            }
        };
        self.writes.set(self.writes.get() + 1);
        let value = format!("{who} {}", self.writes.get());
        match session
            .set_data(&self.path, value.clone(), Some(version))
            .await
        {
            Ok(stat) => self.acknowledge(life, stat.version, value),
            // Another client was faster, or this write was executed but its reply was lost.
            Err(Error::BadVersion { .. }) => self.world.count("register: writes overtaken"),
            Err(error) => {
                self.world.count("register: writes of unknown outcome");
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads it, and optionally sets a watch. Returns its version if it exists. Faults explain its errors.
    pub(crate) async fn read(&self, client: &Client, watch: bool) -> Result<Option<i32>, Error> {
        let session = client.session().await?;
        let (before, life) = (self.acknowledged.get(), self.life.get());
        let is_ensemble = self.world.is_ensemble();
        let read = match watch {
            true => up_to_date(&session, is_ensemble, |session| {
                session.watch_data(&self.path)
            })
            .await
            .map(|(data, stat, watcher)| {
                let (session, version) = (session.id(), stat.version);
                let watch = Watch {
                    session,
                    version,
                    watcher,
                };
                (data, stat, Some(watch))
            }),
            false => up_to_date(&session, is_ensemble, |session| {
                session.get_data(&self.path)
            })
            .await
            .map(|(data, stat)| (data, stat, None)),
        };
        let (version, value, watch) = match read {
            Ok((data, stat, watch)) => {
                let value = String::from_utf8_lossy(&data).into_owned();
                (stat.version, value, watch)
            }
            Err(Error::NoNode { .. }) => (-1, String::new(), None),
            Err(error) => return Err(error),
        };
        if life != self.life.get() {
            return Ok(None);
        }
        self.world.count("register: reads");
        self.check_watches(&session, version);
        self.watches.borrow_mut().extend(watch);
        if version < before {
            let path = &self.path;
            self.world.violate(format_args!(
                "durability: {path} is read at version {version}, after {before} was acknowledged"
            ));
        }
        if version >= 0 {
            self.agree(version, value);
            // Later readers must see at least this version, whoever wrote it.
            self.acknowledged.set(self.acknowledged.get().max(version));
        }
        Ok((version >= 0).then_some(version))
    }

    /// Records a write that was not made, which the next write contradicts.
    pub(crate) fn invent(&self) {
        self.agree(self.acknowledged.get() + 1, "invented".to_owned());
    }

    /// Fails the run if the session reads a version before it has received the event of the change to it.
    fn check_watches(&self, session: &Session, version: i32) {
        let mut watches = self.watches.borrow_mut();
        let before = watches.len();
        watches.retain_mut(|watch| !watch.has_fired());
        let fired = before - watches.len();
        self.world
            .count_many("register: watches fired", fired as u64);
        let is_late = |watch: &&Watch| watch.session == session.id() && watch.version < version;
        if let Some(late) = watches.iter().find(is_late) {
            let (path, watched) = (&self.path, late.version);
            self.world.violate(format_args!(
                "watches: {path} is read at version {version} before the event for version {watched}"
            ));
        }
    }

    /// Fails the run if a watch on an old version has not fired. The watch of a process killed by the last fault fires
    /// when its session ends.
    pub(crate) async fn check_all_watches(&self, client: &Client) {
        let Ok(Some(version)) = self.read(client, false).await else {
            return;
        };
        let limit = self.world.time().elapsed() + Duration::from_secs(120);
        while let Some(watched) = self.oldest_without_event(version) {
            if self.world.time().elapsed() > limit {
                let path = &self.path;
                return self.world.violate(format_args!(
                    "watches: no event for version {watched} of {path}, which is at {version}"
                ));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Returns the oldest watched version below this one whose watch has not fired.
    fn oldest_without_event(&self, version: i32) -> Option<i32> {
        let mut watches = self.watches.borrow_mut();
        watches.retain_mut(|watch| !watch.has_fired());
        let watched = watches.iter().map(|watch| watch.version);
        watched.filter(|watched| *watched < version).min()
    }

    fn acknowledge(&self, life: u64, version: i32, value: String) {
        if life != self.life.get() {
            return;
        }
        self.world.count("register: writes acknowledged");
        self.acknowledged.set(self.acknowledged.get().max(version));
        self.agree(version, value);
    }

    /// Fails the run if the version had a different value before.
    fn agree(&self, version: i32, value: String) {
        let mut values = self.values.borrow_mut();
        let known = values.entry(version).or_insert_with(|| value.clone());
        if *known != value {
            let path = &self.path;
            self.world.violate(format_args!(
                "linearizability: version {version} of {path} was {known:?}, and is {value:?}"
            ));
        }
    }
}
