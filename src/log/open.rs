//! Opening a data directory: its identity, its content, the pause that it owes, and the log from there on.
//!
//! Everything is read before anything is written, and repaired before anything is revealed. Each step may be the last
//! of this run: the order in [`open`] leaves a directory that the next run opens to the same content.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::disk::{Disk, DiskFile, failed, no_room, remove_if_exists};
use super::frame::Batch;
use super::identity::{self, Identity};
use super::recovery::{self, Completeness, Content, Facts, Recovered, Tail};
use super::segment::{self, Header, log_name};
use super::segment_allocator::Segment;
use super::writer::{LogParts, LogPosition, LogStart};
use super::{Options, Record, Sizes, epoch, lock, processes, snapshot};
use crate::core::Core;
use crate::model::error::{Error, Result};
use crate::model::types::{MAX_SESSION_TIMEOUT, Zxid};
use crate::runtime::clock::Clock;
use crate::runtime::random::random;

/// A store that was opened.
pub(crate) struct Opened {
    /// The writing side of its log; its first batch is written.
    pub(crate) parts: LogParts,
    pub(crate) core: Core,
    /// The id of the store.
    pub(crate) id: [u8; 16],
    pub(crate) remote: RemoteSessions,
    /// The last epochs that were reserved before this opening, and by it.
    pub(crate) epochs: [u32; 2],
}

/// The sessions of other processes, as a log has them, and as they are after the opening.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteSessions {
    /// True if they live on. If not, those that the log had are ended.
    pub(crate) live_on: bool,
    pub(crate) ended: usize,
    /// The longest timeout that any of their clients may have been granted, in milliseconds; 0 if there never was one.
    /// The log has it. If the sessions do not live on, no session may be admitted until it has passed: until then a
    /// client may still believe that it holds a lock.
    pub(crate) longest_timeout_ms: u64,
    /// The longest timeout that they were ever allowed; 0 if the store was never served.
    pub(crate) allowed_ms: u64,
}

const MAX_TIMEOUT_MS: u64 = MAX_SESSION_TIMEOUT.as_millis() as u64;

impl RemoteSessions {
    /// Derives the state of the sessions from the facts of the log.
    ///
    /// They live on if the log has everything that was acknowledged to them. That depends on the durability of the run
    /// that wrote it, not of this one. A log that was copied or restored may lack changes that its original has
    /// acknowledged since, and longer timeouts that it has granted: up to the maximum allowed then, or now.
    fn of(facts: &Facts, core: &Core, is_copied: bool, options: &Options) -> Self {
        let is_foreign = is_copied || facts.completeness == Completeness::Restored;
        let is_whole = facts.is_clean || facts.completeness == Completeness::Complete;
        let live_on = is_whole && !is_foreign;
        let known = facts
            .longest_timeout_ms
            .max(core.longest_remote_timeout_ms());
        let unknown = match facts.allowed_timeout_ms {
            _ if live_on => 0,
            None if is_foreign || known > 0 => options.longest_timeout_ms,
            Some(allowed) if is_foreign && allowed > 0 => allowed.max(options.longest_timeout_ms),
            _ => 0,
        };
        // No session was granted more, whatever an option or a log of before states.
        let longest_timeout_ms = known.max(unknown).min(MAX_TIMEOUT_MS);
        let was_served = longest_timeout_ms > 0;
        let allowed = facts
            .allowed_timeout_ms
            .map_or(options.longest_timeout_ms, |ms| ms.min(MAX_TIMEOUT_MS));
        Self {
            live_on,
            ended: 0,
            longest_timeout_ms,
            allowed_ms: if was_served { allowed } else { 0 },
        }
    }

    /// Returns true if no session may be admitted for a while.
    pub(crate) fn owe_pause(&self) -> bool {
        !self.live_on && self.longest_timeout_ms > 0
    }
}

/// Opens the store on a disk, which nothing else may use; `new` creates a core without content.
///
/// # Errors
/// `StoreDamaged`, `StoreTooNew`, `NotAStore`, `DiskFull`, `StoreFailed`.
pub(crate) fn open(
    disk: &Arc<dyn Disk>,
    options: &Options,
    new: &dyn Fn() -> Core,
    clock: &Clock,
) -> Result<Opened> {
    let identity = identify(&**disk)?;
    // Temporary files alone, which no recovery reads: this may come before the reading.
    remove_unfinished(&**disk)?;
    let Content {
        mut core,
        snapshot,
        recovered,
    } = recovery::read(&**disk, identity.store, new)?;
    // Before anything is derived from the content: it may exist in the page cache alone.
    recovered.repair(&**disk)?;
    let mut facts = recovered.facts;
    let is_new = snapshot.is_none() && recovered.tail.is_none();
    // A new store has no earlier run whose sessions could be believed.
    facts.is_clean |= is_new;
    let mut remote = RemoteSessions::of(&facts, &core, identity.is_copied, options);
    let (first_zxid, now_ms) = begin(&**disk, facts.epoch, identity.is_copied, clock)?;
    // A restored snapshot's zxid may lie within an epoch.
    let last = first_zxid.max(facts.zxid);
    epoch::check(last, || disk.path(""))?;
    let mut first = Batch::default();
    first.begin(facts.zxid);
    // The epoch is reserved by the first frame, so it is durable before any of its zxids is assigned: zxids that are
    // never logged are not assigned again after a crash, and tokens only grow (invariant 5).
    let epochs = [facts.epoch, epoch::to_reserve(last)];
    first.push_record(&Record::Epoch(epochs[1]));
    // An unfinished pause stays in the log: this run may be killed before it is over, too, and the next one repeats it.
    first.push_record(&Record::LongestTimeout {
        ms: remote.longest_timeout_ms,
    });
    first.push_record(&Record::SessionTerms {
        are_kept: options.keeps_sessions && !remote.owe_pause(),
        allowed_ms: remote.allowed_ms,
    });
    let next_segment = snapshot
        .as_ref()
        .map_or(0, |loaded| loaded.head.start.segment);
    let position = find_position(&**disk, &recovered, options, identity.store, next_segment)?;
    let current = position.header.number;
    if identity.version < identity::FORMAT_VERSION && !identity.is_copied {
        // Before the first record that an older version would not know: it must refuse the directory by its version.
        write_identity(&**disk, identity.store)?;
    } else if !identity.has_log && !identity.is_copied {
        // After `find_position`, which has made the log durable. A disk that is full now must not keep the store closed:
        // the next opening tries again.
        if let Err(error) = write_identity(&**disk, identity.store) {
            tracing::warn!(%error, "STORE does not record that there is a log");
        }
    }
    let segments = || recovered.segments.iter();
    let parts = LogParts::new(LogStart {
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
        position,
        first,
        last,
        sizes: options.sizes,
        syncs: options.syncs,
    })?;
    if identity.is_copied {
        // After the first batch, which has made the leap of zxids durable: with the identity first, a crash in between
        // would leave a copy that looks like an original and continues with its tokens.
        write_identity(&**disk, identity.store)?;
        // Two copies of one store must not begin at the same zxid, and the millisecond is what distinguishes them.
        clock.block(Duration::from_millis(1));
    }
    core.leave_behind(last, now_ms);
    if !remote.live_on {
        remote.ended = core.end_remote_sessions(now_ms);
    }

    parts.queue.set_pausing(remote.owe_pause());
    // By ordinary transactions: if this run ends before they are on the disk, the next one ends the rest.
    parts.queue.append(core.kept(), true);
    Ok(Opened {
        parts,
        core,
        id: identity.store,
        remote,
        epochs,
    })
}

/// Returns the time for which an opening would have the thread wait, which a simulated one cannot.
#[cfg(feature = "simulation")]
pub(crate) fn wait_to_open(
    disk: &dyn Disk,
    new: &dyn Fn() -> Core,
    now_ms: i64,
) -> Result<Duration> {
    let Some(identity) = identity::read(disk)? else {
        return Ok(Duration::ZERO);
    };
    let facts = recovery::read(disk, identity.store, new)?.recovered.facts;
    let first = epoch::first_zxid(facts.epoch, identity.is_copied, now_ms);
    Ok(epoch::wait(first, now_ms))
}

/// Marks this folder as the store's original, in the format of this version, with a log.
fn write_identity(disk: &dyn Disk, store: [u8; 16]) -> Result<()> {
    let written = identity::write(disk, store, true);
    written.map_err(|error| failed(disk.path(identity::NAME), "cannot be written", &error))
}

/// Reads the identity of a folder; an empty one gets a new identity.
fn identify(disk: &dyn Disk) -> Result<Identity> {
    if let Some(identity) = identity::read(disk)? {
        return Ok(identity);
    }
    check_empty(disk)?;
    // The identity comes first: a crash right after it leaves an empty store, and files without it are no store.
    let store = random();
    let written = identity::write(disk, store, false);
    written.map_err(|error| no_room(disk, &error))?;
    Ok(Identity {
        store,
        is_copied: false,
        version: identity::FORMAT_VERSION,
        has_log: false,
    })
}

/// Checks that a folder is a store's, or may become one. Call it before anything is written there.
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
            reason: format!(
                "it holds \"{name}\", and no file {}",
                identity::NAME,
                name = name.escape_debug()
            ),
        });
    }
    Ok(())
}

/// Removes the files that were unfinished when the store stopped.
fn remove_unfinished(disk: &dyn Disk) -> Result<()> {
    let names = [
        segment::UNFINISHED,
        snapshot::UNFINISHED,
        processes::UNFINISHED,
    ];
    let mut removed = names.iter().map(|name| remove_if_exists(disk, name));
    let removed = removed.try_for_each(|removed| removed);
    removed.map_err(|error| failed(disk.path(""), "unfinished files cannot be removed", &error))
}

/// Returns the first zxid of this run, and the date. The thread waits until the clock allows it.
fn begin(disk: &dyn Disk, reserved: u32, is_copied: bool, clock: &Clock) -> Result<(Zxid, i64)> {
    let first = |now_ms| epoch::first_zxid(reserved, is_copied, now_ms);
    let mut now_ms = clock.exact_unix_ms();
    let wait = epoch::wait(first(now_ms), now_ms);
    if !wait.is_zero() {
        tracing::info!(
            seconds = wait.as_secs_f64(),
            path = %disk.path("").display(),
            "the store was restored, copied or opened very often: its tokens wait for the clock"
        );
        clock.block(wait);
        now_ms = clock.exact_unix_ms();
    }
    Ok((first(now_ms), now_ms))
}

/// Finds the position at which the log goes on: after its last frame, or in a first segment.
fn find_position(
    disk: &dyn Disk,
    recovered: &Recovered,
    options: &Options,
    store: [u8; 16],
    next_segment: u64,
) -> Result<LogPosition> {
    let at = recovered.tail.unwrap_or(Tail {
        segment: next_segment,
        offset: segment::HEADER_BYTES,
    });
    let mut headers = recovered.segments.iter();
    let (header, file) = match headers.find(|header| header.number == at.segment) {
        Some(header) => (*header, open_segment(disk, header)?),
        None => {
            let header = Header {
                salt: segment::new_salt(),
                number: at.segment,
                size: options.sizes.first_segment,
                store,
            };
            let made = segment::make(disk, &header);
            (header, made.map_err(|error| no_room(disk, &error))?)
        }
    };
    // `synced` below claims that every recovered frame is on the disk. `repair` has synced the segments that were read;
    // this covers a segment that was created just now as well.
    let synced = file.sync();
    synced.map_err(|error| failed(disk.path(&log_name(at.segment)), "cannot be synced", &error))?;
    Ok(LogPosition {
        file,
        header,
        offset: at.offset,
        chain: recovered.facts.chain + 1,
        synced: recovered.facts.chain,
        last: recovered.facts.zxid,
    })
}

/// Opens the prepared segments. After a change of the configured sizes they may be too small for any batch: such a
/// segment is removed, and all after it.
///
/// The last one first, each synced: whenever the power fails, the numbers that are left have no gap, which recovery
/// would refuse.
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
