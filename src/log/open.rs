//! Opening a data directory: whose it is, what it holds, and where its log goes on.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::content::{self, Content};
use super::disk::{Disk, DiskFile};
use super::frame::Batch;
use super::identity::Identity;
use super::lock;
use super::recovery::{Recovered, Tail};
use super::segment::{self, Header, log_name};
use super::trouble::{failed, no_room};
use super::upkeep::Segment;
use super::{EPOCH_BITS, Options, Parts, Place, Record, Sizes, Start, epoch, identity, snapshot};
use crate::core::Core;
use crate::engine::random;
use crate::error::{Error, Result};
use crate::types::Zxid;

/// A store that was opened.
pub(crate) struct Opened {
    /// What writes its log; its first batch is written.
    pub(crate) parts: Parts,
    pub(crate) core: Core,
    /// The id of the store.
    pub(crate) id: [u8; 16],
    /// The longest session timeout that any remote client was ever given, in milliseconds.
    pub(crate) longest_timeout_ms: u64,
    /// Whether the store was closed in order, or is new. What was copied or restored may have gone on
    /// elsewhere.
    pub(crate) was_clean: bool,
}

/// Opens the store on a disk, which nobody else may use; `new` makes a core without content.
///
/// # Errors
/// `StoreDamaged`, `StoreTooNew`, `NotAStore`, `DiskFull`, `StoreFailed`.
pub(crate) fn open(
    disk: &Arc<dyn Disk>,
    options: &Options,
    new: &dyn Fn() -> Core,
    now_ms: i64,
) -> Result<Opened> {
    let identity = identify(&**disk)?;
    remove_unfinished(&**disk)?;
    let Content {
        mut core,
        snapshot,
        recovered,
    } = content::read(&**disk, identity.store, new)?;
    recovered.mend(&**disk)?;
    let facts = recovered.facts;
    let next = first_zxid(&**disk, facts.epoch, identity.is_copied, now_ms)?;
    // What was restored begins in the midst of an epoch.
    let last = next.max(facts.zxid);
    let mut first = Batch::default();
    first.begin(facts.zxid);
    first.push_record(&Record::Epoch(epoch::of(last)));
    let next_segment = snapshot
        .as_ref()
        .map_or(0, |loaded| loaded.head.start.segment);
    let place = place(&**disk, &recovered, options, identity.store, next_segment)?;
    let current = place.header.number;
    let is_new = snapshot.is_none() && recovered.tail.is_none();
    let segments = || recovered.segments.iter();
    let parts = Parts::new(Start {
        prepared: prepared(
            &**disk,
            segments()
                .filter(|header| header.number > current)
                .collect(),
            &options.sizes,
        )?,
        sealed_bytes: segments()
            .filter(|header| header.number < current)
            .map(|header| header.size)
            .sum(),
        snapshot_bytes: snapshot.as_ref().map_or(0, |loaded| loaded.bytes),
        disk: disk.clone(),
        place,
        first,
        last,
        sizes: options.sizes,
        syncs: options.syncs,
    })?;
    if identity.is_copied {
        let written = identity::write(&**disk, identity.store);
        written.map_err(|error| failed(disk.path(identity::NAME), "cannot be written", &error))?;
    }
    core.leave_behind(last, now_ms);
    parts.line.append(core.kept(), true);
    Ok(Opened {
        parts,
        core,
        id: identity.store,
        longest_timeout_ms: facts.longest_timeout_ms,
        was_clean: is_new || (facts.is_clean && !identity.is_copied),
    })
}

/// Whose the folder is; it becomes a store's if it is empty.
fn identify(disk: &dyn Disk) -> Result<Identity> {
    if let Some(identity) = identity::read(disk)? {
        return Ok(identity);
    }
    check_empty(disk)?;
    let store = random();
    let written = identity::write(disk, store);
    written.map_err(|error| no_room(disk, &error))?;
    Ok(Identity {
        store,
        is_copied: false,
    })
}

/// Whether a folder is a store's, or may become one's. To be asked before anything is written there.
///
/// # Errors
/// As of [`open`]; `NotAStore` when it holds other things.
pub(crate) fn check_folder(disk: &dyn Disk) -> Result<()> {
    match identity::read(disk)? {
        Some(_) => Ok(()),
        None => check_empty(disk),
    }
}

fn check_empty(disk: &dyn Disk) -> Result<()> {
    let unreadable = |error| failed(disk.path(""), "cannot be listed", &error);
    let names = disk.list().map_err(unreadable)?;
    let foreign = |name: &&String| ![lock::NAME, identity::UNFINISHED].contains(&name.as_str());
    if let Some(name) = names.iter().find(foreign) {
        return Err(Error::NotAStore {
            path: disk.path(""),
            reason: format!("it holds {name:?}, and no file {}", identity::NAME),
        });
    }
    Ok(())
}

/// Removes what was in the making when the store stopped.
fn remove_unfinished(disk: &dyn Disk) -> Result<()> {
    let removed =
        segment::remove_unfinished(disk).and_then(|()| match disk.remove(snapshot::UNFINISHED) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        });
    removed.map_err(|error| failed(disk.path(""), "cannot be cleaned up", &error))
}

/// The last zxid before a new epoch: one that nobody can have been given yet.
fn first_zxid(disk: &dyn Disk, reserved: u32, is_copied: bool, now_ms: i64) -> Result<Zxid> {
    let clock = epoch::of_clock(now_ms);
    let mut next = clock.max(reserved.saturating_add(1));
    if is_copied {
        let beyond = epoch::beyond(reserved, clock.min(reserved), now_ms);
        next = next.max(epoch::of(beyond).saturating_add(1));
    }
    if next > LAST_EPOCH {
        return Err(Error::StoreFailed {
            path: disk.path(""),
            reason: format!("epoch {next} is beyond the last one: zxids would overflow"),
        });
    }
    Ok(Zxid(i64::from(next) << EPOCH_BITS))
}

/// Half of those that a zxid has room for.
const LAST_EPOCH: u32 = 1 << 30;

/// Where the log goes on: after its last frame, or in a first segment.
fn place(
    disk: &dyn Disk,
    recovered: &Recovered,
    options: &Options,
    store: [u8; 16],
    next_segment: u64,
) -> Result<Place> {
    let at = recovered.tail.unwrap_or(Tail {
        segment: next_segment,
        offset: segment::HEADER_BYTES,
    });
    let mut headers = recovered.segments.iter();
    let (header, file) = match headers.find(|header| header.number == at.segment) {
        Some(header) => (*header, open_segment(disk, header)?),
        None => {
            let header = Header {
                salt: u64::from_ne_bytes(random()),
                number: at.segment,
                size: options.sizes.first_segment,
                store,
            };
            let made = segment::make(disk, &header);
            (header, made.map_err(|error| no_room(disk, &error))?)
        }
    };
    // What was read may have been written and not synced when the process was killed.
    let synced = file.sync();
    synced.map_err(|error| failed(disk.path(&log_name(at.segment)), "cannot be synced", &error))?;
    Ok(Place {
        file,
        header,
        offset: at.offset,
        chain: recovered.facts.chain + 1,
        synced: recovered.facts.chain,
        last: recovered.facts.zxid,
    })
}

/// The segments that wait to be written. Those of a store that had smaller ones may not have room for a
/// batch: these go, and with them what comes after, the last first, so that no number is left out.
fn prepared(
    disk: &dyn Disk,
    mut headers: Vec<&Header>,
    sizes: &Sizes,
) -> Result<VecDeque<Segment>> {
    let is_too_small = |header: &&Header| sizes.usable(header.size, segment::HEADER_BYTES) == 0;
    if let Some(first) = headers.iter().position(is_too_small) {
        for header in headers.split_off(first).into_iter().rev() {
            let name = log_name(header.number);
            let removed = disk.remove(&name).and_then(|()| disk.sync_folder());
            removed.map_err(|error| failed(disk.path(&name), "cannot be removed", &error))?;
        }
    }
    let opened = headers.into_iter();
    opened
        .map(|header| Ok((*header, open_segment(disk, header)?)))
        .collect()
}

fn open_segment(disk: &dyn Disk, header: &Header) -> Result<Box<dyn DiskFile>> {
    let name = log_name(header.number);
    let opened = disk.open(&name);
    opened.map_err(|error| failed(disk.path(&name), "cannot be opened", &error))
}
