//! What a data directory holds: its newest snapshot that can be read, and the log after that.

use std::io;

use super::disk::Disk;
use super::recovery::{self, Recovered, Source, Start};
use super::snapshot::{self, Form, Loaded};
use super::trouble::failed;
use crate::core::{Core, CoreOptions};
use crate::error::{Error, Result};
use crate::random::random;

/// A core for what was read from a disk, of which nobody is a client.
pub(crate) fn bare_core() -> Core {
    Core::new(CoreOptions {
        hash_seed: u64::from_ne_bytes(random()),
        ..CoreOptions::default()
    })
}

/// A store as its data directory has it.
pub(crate) struct Content {
    pub(crate) core: Core,
    /// What it was put together from.
    pub(crate) snapshot: Option<Loaded>,
    pub(crate) recovered: Recovered,
}

/// Reads everything, and writes nothing.
///
/// # Errors
/// `StoreDamaged`, `StoreTooNew`, `StoreFailed`.
pub(crate) fn read(disk: &dyn Disk, store: [u8; 16], new: &dyn Fn() -> Core) -> Result<Content> {
    let (mut core, snapshot) = newest(disk, store, new, &mut || Ok(()))?;
    let start = snapshot.as_ref().map_or_else(Start::default, after);
    let source = Source { disk, store, start };
    let recovered = recovery::recover(&source, &mut |txn| core.replay(txn))?;
    Ok(Content {
        core,
        snapshot,
        recovered,
    })
}

/// The newest snapshot that can be read. When there are some and none can, that is the error.
/// `pause` is called in between; an error of it ends the loading.
pub(crate) fn newest(
    disk: &dyn Disk,
    store: [u8; 16],
    new: &dyn Fn() -> Core,
    pause: &mut dyn FnMut() -> io::Result<()>,
) -> Result<(Core, Option<Loaded>)> {
    let mut trouble = None;
    for name in snapshot_names(disk)? {
        let mut core = new();
        let file = disk.path(&name);
        let loaded = disk
            .open(&name)
            .map_err(snapshot::Unreadable::from)
            .and_then(|file| snapshot::load(&*file, Form::Snapshot, &mut core, pause));
        let is_given_up = matches!(loaded, Err(snapshot::Unreadable::Ended(_)));
        match loaded.map_err(|unreadable| unreadable.of(file.clone())) {
            Err(error) if is_given_up => return Err(error),
            Ok(loaded) if loaded.head.store == store => return Ok((core, Some(loaded))),
            Ok(_) => {
                return Err(Error::StoreDamaged {
                    file,
                    offset: 16,
                    reason: "it is a snapshot of another store".into(),
                });
            }
            Err(error @ Error::StoreTooNew { .. }) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "a snapshot cannot be read: taking the one before");
                trouble.get_or_insert(error);
            }
        }
    }
    match trouble {
        // The whole log may still be there.
        Some(trouble) if disk.open(&super::segment::log_name(0)).is_err() => Err(trouble),
        _ => Ok((new(), None)),
    }
}

/// Where the log goes on after a snapshot.
pub(crate) fn after(snapshot: &Loaded) -> Start {
    snapshot.head.start
}

/// Newest first.
pub(crate) fn snapshot_names(disk: &dyn Disk) -> Result<Vec<String>> {
    let listed = disk.list();
    let mut names = listed.map_err(|error| failed(disk.path(""), "cannot be listed", &error))?;
    names.retain(|name| snapshot::snapshot_zxid(name).is_some());
    names.sort_unstable_by(|one, other| other.cmp(one));
    Ok(names)
}
