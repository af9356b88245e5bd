//! Opens a data directory. Reads the content, decides whether the sessions of other processes live on, and continues
//! the log.
//!
//! We read everything before we write anything, and repair the log before clients see anything. The order in [`open`]
//! ensures that, after a crash at any step, the next run opens the same content.

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
use crate::runtime::platform::random;

pub(crate) struct Opened {
    /// The writing side of the log. The first batch is already written.
    pub(crate) parts: LogParts,
    pub(crate) core: Core,
    pub(crate) id: [u8; 16],
    pub(crate) remote: RemoteSessions,
    /// The last epoch that was reserved before the store was opened, and the last epoch that opening it has reserved.
    pub(crate) epochs: [u32; 2],
}

/// The sessions of other processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteSessions {
    /// True if the sessions in the log live on. Otherwise, opening the store ends them.
    pub(crate) live_on: bool,
    pub(crate) ended: usize,
    /// The longest timeout, in milliseconds, that any client of these sessions may have been granted. 0 if there was no
    /// such client. The log records this value. If the sessions do not live on, no session may be admitted for this
    /// long, because a client may still believe that it holds a lock.
    pub(crate) longest_timeout_ms: u64,
    /// The longest timeout, in milliseconds, that the options ever allowed for these sessions. 0 if the store was never
    /// served.
    pub(crate) allowed_ms: u64,
}

const MAX_TIMEOUT_MS: u64 = MAX_SESSION_TIMEOUT.as_millis() as u64;

impl RemoteSessions {
    /// Derives the state of these sessions from the log. They live on if the log has every change that was acknowledged
    /// to them, which depends on the durability class of the run that wrote the log.
    ///
    /// A copied or restored log may lack changes that the original has acknowledged since, so its sessions never live
    /// on. The original may also have granted longer timeouts since, so we assume the longest timeout that was or is
    /// allowed.
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

    pub(crate) fn owe_pause(&self) -> bool {
        !self.live_on && self.longest_timeout_ms > 0
    }
}

/// Opens the store on a disk. The caller has exclusive access to it.
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
    remove_unfinished(&**disk)?;
    let Content {
        mut core,
        snapshot,
        recovered,
    } = recovery::read(&**disk, identity.store, new)?;
    // Repair the log before anything is derived from the content, which may exist only in the page cache until then.
    recovered.repair(&**disk)?;
    let mut facts = recovered.facts;
    let is_new = snapshot.is_none() && recovered.tail.is_none();
    // Treat a new store as closed cleanly, because no client can have a session from an earlier run.
    facts.is_clean |= is_new;
    let mut remote = RemoteSessions::of(&facts, &core, identity.is_copied, options);
    let (first_zxid, now_ms) = begin(&**disk, facts.epoch, identity.is_copied, clock)?;
    // Use the maximum, because the zxid of a restored snapshot may be above the first zxid of the new epoch.
    let last = first_zxid.max(facts.zxid);
    epoch::check(last, || disk.path(""))?;
    let mut first = Batch::default();
    first.begin(facts.zxid);
    // The first frame makes the reservation durable before we assign any zxid of the epoch. After a crash, the next run
    // starts in a later epoch, so no zxid is assigned twice (invariant 5).
    let epochs = [facts.epoch, epoch::to_reserve(last)];
    first.push_record(&Record::Epoch(epochs[1]));
    // Record the timeout again, so that the next run repeats the pause if this run is killed before the pause is over.
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
        // Write the new version number before any record that older versions do not know, so that these versions refuse
        // to open the directory.
        write_identity(&**disk, identity.store)?;
    } else if !identity.has_log && !identity.is_copied {
        // `find_position` has made the log durable. If `STORE` cannot be written, only log the error, because the store
        // must open even on a full disk. The next run tries again.
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
        // Write the identity only after the first batch, which has made the skip to higher zxids durable. Otherwise a
        // crash in between would leave a copy that looks like the original and issues the same tokens.
        write_identity(&**disk, identity.store)?;
        // Two copies opened in the same millisecond would start at the same zxid, so wait until this millisecond is
        // over.
        clock.block(Duration::from_millis(1));
    }
    core.leave_behind(last, now_ms);
    if !remote.live_on {
        remote.ended = core.end_remote_sessions(now_ms);
    }

    parts.queue.set_pausing(remote.owe_pause());
    // Each session is ended by an ordinary transaction. If this transaction does not reach the disk, the next run ends
    // the session.
    parts.queue.append(core.kept(), true);
    Ok(Opened {
        parts,
        core,
        id: identity.store,
        remote,
        epochs,
    })
}

/// Returns how long opening the store would block its thread. The simulation waits this long beforehand, because it
/// must not block while it opens the store.
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

fn write_identity(disk: &dyn Disk, store: [u8; 16]) -> Result<()> {
    let written = identity::write(disk, store, true);
    written.map_err(|error| failed(disk.path(identity::NAME), "cannot be written", &error))
}

fn identify(disk: &dyn Disk) -> Result<Identity> {
    if let Some(identity) = identity::read(disk)? {
        return Ok(identity);
    }
    check_empty(disk)?;
    // Write the identity before any other file. A crash right after this write leaves an empty store, but other files
    // without an identity are not accepted as a store.
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

/// Checks that a folder is a store or may become one. Call this before writing there.
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

/// Returns the first zxid of this run, and the current time in milliseconds since 1970. If the zxid is too far ahead of
/// the clock, blocks until the clock has caught up.
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
    // `synced` states that every recovered frame is on disk. `repair` has synced the segments that were read, and this
    // call syncs a newly created one.
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

/// Opens the prepared segments. If the configured sizes have changed, removes the first segment that may be too small
/// for a batch, and all segments after it.
///
/// The last segment is removed first, with a folder sync after each removal. So a power loss never leaves a gap in the
/// numbers, which recovery would refuse.
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
