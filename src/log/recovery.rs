//! Recovery, which reads the newest snapshot and the log after it, and finds the position where the writer continues.
//! `docs/durability.md` explains each case.
//!
//! Recovery reads frames as long as they are whole and in order. At the first gap, either the power failed during a
//! write or the medium is damaged. To distinguish the two, each frame states the number of the last synced frame. If a
//! frame after the gap states that the missing frame was synced, the log is damaged and we refuse it. Otherwise no
//! acknowledgement relied on the missing frame, and the log ends before it.

use std::io;

use super::codec::{Malformed, Record};
use super::disk::{Disk, damaged, failed};
use super::frame::{HEAD_BYTES, Head, Scanner};
use super::identity;
use super::segment::{Header, log_name, log_number, write_zeros};
use super::snapshot::{self, Form, Loaded};
use crate::core::{Core, CoreOptions, Damage, Txn};
use crate::model::error::{Error, Result};
use crate::model::types::Zxid;
use crate::runtime::platform::random;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) chain: u64,
    pub(crate) zxid: Zxid,
    pub(crate) epoch: u32,
    /// The longest session timeout that a remote client ever got, in milliseconds.
    pub(crate) longest_timeout_ms: u64,
    pub(crate) is_clean: bool,
    pub(crate) completeness: Completeness,
    /// The longest session timeout that the options have allowed for remote clients, in milliseconds. 0 if the store
    /// was never served. `None` if the log was written only by versions that do not record this value.
    pub(crate) allowed_timeout_ms: Option<u64>,
}

/// Completeness of a log that was not closed cleanly. Such a log may lack changes that were acknowledged to sessions of
/// other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Completeness {
    /// Written by a version that does not record the completeness. Treated as [`Partial`](Self::Partial).
    #[default]
    Unknown,
    /// Acknowledged changes may be missing at the end of the log.
    Partial,
    Complete,
    /// The log continues a restored backup, so it lacks all changes that the original store acknowledged after the
    /// backup.
    Restored,
}

/// Point where recovery starts to read. By default, this is the start of the first segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) segment: u64,
    pub(crate) facts: Facts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Recovered {
    pub(crate) facts: Facts,
    /// `None` if no segment exists yet.
    pub(crate) tail: Option<Tail>,
    /// Headers of the segments, from the first segment that was read. The segments after the tail's segment are
    /// prepared and have no frames yet.
    pub(crate) segments: Vec<Header>,
    pub(crate) stale_frames: Vec<StaleFrame>,
    pub(crate) synced: u64,
    #[cfg_attr(
        not(any(test, feature = "simulation")),
        allow(dead_code, reason = "for tests and fuzz targets")
    )]
    pub(crate) frames: u64,
    #[cfg_attr(
        not(any(test, feature = "simulation")),
        allow(dead_code, reason = "for tests and fuzz targets")
    )]
    pub(crate) txns: u64,
}

pub(crate) struct LogSource<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) store: [u8; 16],
    pub(crate) start: Start,
}

/// Reads the whole log without writing anything, so that a refused log stays as it is. Passes every transaction to
/// `each` in order. If `each` refuses a transaction, the log is refused as damaged.
///
/// Call [`Recovered::repair`] before writing anything or showing any content to clients.
///
/// # Errors
/// `StoreDamaged`, `StoreTooNew`, `StoreFailed`.
pub(crate) fn recover(
    source: &LogSource<'_>,
    each: &mut dyn FnMut(Txn) -> Result<(), Damage>,
) -> Result<Recovered> {
    let (numbers, gap) = segments_from(source.disk, &source.start)?;
    match gap {
        Some(gap) => Err(gap),
        None => LogReader::new(source, each).read_all(source, numbers),
    }
}

pub(crate) struct Undamaged {
    pub(crate) facts: Facts,
    /// The end of the last frame read. `None` if the first segment is missing.
    pub(crate) tail: Option<Tail>,
    /// `None` if the whole log was read.
    pub(crate) damage: Option<Error>,
}

/// Reads the log up to the first damage. `each` may already have received some transactions of the damaged frame, with
/// zxids above the zxid in [`facts`](Undamaged::facts).
pub(crate) fn recover_undamaged(
    source: &LogSource<'_>,
    each: &mut dyn FnMut(Txn) -> Result<(), Damage>,
) -> Result<Undamaged> {
    let (numbers, gap) = segments_from(source.disk, &source.start)?;
    let mut reader = LogReader::new(source, each);
    let read = reader.read_all(source, numbers);
    Ok(Undamaged {
        facts: reader.facts,
        tail: reader.tail,
        damage: read.err().or(gap),
    })
}

/// Reads the frames up to number `last`. A missing frame is damage.
pub(crate) fn read_up_to(
    source: &LogSource<'_>,
    last: u64,
    each: &mut dyn FnMut(Txn) -> Result<(), Damage>,
) -> Result<Facts> {
    let mut reader = LogReader::new(source, each);
    let mut number = source.start.segment;
    while reader.facts.chain < last {
        let mut segment = source.open(number)?;
        let before = reader.facts.chain;
        let offset = reader.read(&mut segment, last)?;
        // All frames up to `last` are in sealed segments, so a missing frame is damage and not the end of the log.
        if reader.facts.chain == before {
            let reason = format!("frame {} is missing", before + 1);
            return Err(segment.damaged(offset, reason));
        }
        number += 1;
    }
    Ok(reader.facts)
}

impl<'a> LogSource<'a> {
    fn open(&self, number: u64) -> Result<Scanner<'a>> {
        Scanner::open(self.disk, number, &self.store)
    }

    fn open_any_length(&self, number: u64) -> Result<Scanner<'a>> {
        Scanner::open_any_length(self.disk, number, &self.store)
    }
}

fn segment_goes_on(segment: &mut Scanner<'_>, chain: u64) -> Result<bool> {
    let first = segment.frame_at(Scanner::FIRST)?;
    Ok(first.is_some_and(|(head, _)| head.chain == chain + 1 && !head.is_mark()))
}

/// Returns the numbers of the segments from `start` up to the first gap, and the error for this gap.
fn segments_from(disk: &dyn Disk, start: &Start) -> Result<(Vec<u64>, Option<Error>)> {
    let first = start.segment;
    let names = disk
        .list()
        .map_err(|error| failed(disk.path(""), "cannot be listed", &error))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| log_number(name)).collect();
    numbers.retain(|number| *number >= first);
    numbers.sort_unstable();
    // A missing number is damage, because segments are created in order, and only the oldest or the newest are removed.
    if numbers.is_empty() && (start.facts.chain > 0 || has_log(disk)) {
        // The writer had already entered this segment when the snapshot was made, or when `STORE` recorded that there
        // is a log. So the segment must exist.
        let reason = "the file is missing, although the log goes on in it";
        let gap = damaged(disk, &log_name(first), 0, reason);
        return Ok((numbers, Some(gap)));
    }
    let mut pairs = numbers.iter().zip(first..);
    let Some((number, expected)) = pairs.find(|(number, expected)| *number != expected) else {
        return Ok((numbers, None));
    };
    let reason = format!("the file is missing, although segment {number} exists");
    let gap = damaged(disk, &log_name(expected), 0, reason);
    numbers.truncate((expected - first) as usize);
    Ok((numbers, Some(gap)))
}

fn has_log(disk: &dyn Disk) -> bool {
    matches!(identity::read(disk), Ok(Some(identity)) if identity.has_log)
}

struct LogReader<'a> {
    facts: Facts,
    tail: Option<Tail>,
    segments: Vec<Header>,
    synced: u64,
    frames: u64,
    txns: u64,
    each: &'a mut dyn FnMut(Txn) -> Result<(), Damage>,
}

impl<'a> LogReader<'a> {
    fn new(source: &LogSource<'_>, each: &'a mut dyn FnMut(Txn) -> Result<(), Damage>) -> Self {
        Self {
            facts: source.start.facts,
            tail: None,
            segments: Vec::new(),
            synced: 0,
            frames: 0,
            txns: 0,
            each,
        }
    }

    /// After an error, the facts and the tail describe the log before the damage.
    fn read_all(&mut self, source: &LogSource<'_>, numbers: Vec<u64>) -> Result<Recovered> {
        let mut numbers = numbers.into_iter();
        for number in numbers.by_ref() {
            let mut segment = source.open_any_length(number)?;
            // A segment that does not start with the next frame is only prepared. Always read the first segment,
            // because the log may end at its start.
            let is_next = self.tail.is_none() || segment_goes_on(&mut segment, self.facts.chain)?;
            self.segments.push(*segment.header());
            if is_next {
                self.read(&mut segment, u64::MAX)?;
            }
            // Check the length only after reading, because the frames before the cut of a truncated file are still
            // good.
            segment.check_length()?;
            if !is_next {
                break;
            }
        }
        // Check the headers of the other prepared segments too, because the writer relies on them.
        for number in numbers {
            self.segments.push(*source.open(number)?.header());
        }
        let mut recovered = Recovered {
            facts: self.facts,
            tail: self.tail,
            segments: std::mem::take(&mut self.segments),
            stale_frames: Vec::new(),
            synced: self.synced,
            frames: self.frames,
            txns: self.txns,
        };
        recovered.stale_frames = stale_frames(source, &recovered)?;
        Ok(recovered)
    }

    fn read(&mut self, segment: &mut Scanner<'_>, last: u64) -> Result<u64> {
        let number = segment.header().number;
        let mut at = Scanner::FIRST;
        while self.facts.chain < last {
            self.tail = Some(Tail {
                segment: number,
                offset: at,
            });
            let Some((head, frame)) = segment.frame_at(at)? else {
                break;
            };
            let expected = self.facts.chain + 1;
            if head.chain != expected {
                let reason = format!("frame {} is in the place of frame {expected}", head.chain);
                return Err(segment.damaged(at, reason));
            }
            // A mark may be the only evidence that the frame before it is synced.
            self.synced = self.synced.max(head.synced);
            if head.is_mark() {
                break;
            }
            if let Err(Damage(reason)) = self.frame(&head, frame) {
                let reason = format!("frame {expected} is whole, but invalid: {reason}");
                return Err(segment.damaged(at, reason));
            }
            at += head.frame_bytes() as u64;
        }
        Ok(at)
    }

    fn frame(&mut self, head: &Head, frame: &[u8]) -> Result<(), Damage> {
        // Store the facts only after the whole frame was read. After an error, they must describe the log before this
        // frame.
        let (mut facts, mut txns) = (self.facts, 0);
        head.records(frame, |record| {
            // A record after a clean close shows that the store was opened again.
            facts.is_clean = false;
            match record {
                Record::Txn(txn) => {
                    txns += 1;
                    return (self.each)(txn);
                }
                Record::Epoch(epoch) => facts.epoch = facts.epoch.max(epoch),
                Record::LongestTimeout { ms } => {
                    facts.longest_timeout_ms = facts.longest_timeout_ms.max(ms);
                }
                Record::Clean => facts.is_clean = true,
                Record::SessionTerms {
                    are_kept,
                    allowed_ms,
                } => {
                    facts.completeness = match are_kept {
                        true => Completeness::Complete,
                        false => Completeness::Partial,
                    };
                    let allowed = facts.allowed_timeout_ms.unwrap_or(0).max(allowed_ms);
                    facts.allowed_timeout_ms = Some(allowed);
                }
            }
            Ok(())
        })?;
        let before = facts.zxid;
        // The first frame of a restored or salvaged store states the zxid of the snapshot that the log continues.
        // Without this snapshot, the log is not the whole content.
        if head.chain == 1 && txns == 0 && head.first > before {
            let reason = format!(
                "it continues after zxid {}, and no snapshot can be read",
                head.first
            );
            return Err(Damage(reason));
        }
        if head.first < before || head.last < head.first || (txns > 0 && head.first == before) {
            let (first, last) = (head.first, head.last);
            return Err(Damage(format!("zxids {first} to {last} after {before}")));
        }
        facts.chain = head.chain;
        facts.zxid = head.last;
        self.facts = facts;
        self.frames += 1;
        self.txns += txns;
        Ok(())
    }
}

impl From<Malformed> for Damage {
    fn from(malformed: Malformed) -> Self {
        Self(malformed.to_string())
    }
}

/// Remains of a frame that was never acknowledged. We erase them, because recovery could mistake them for the next
/// frame once the log has grown up to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaleFrame {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    /// True if the whole frame reached the disk although an earlier frame did not.
    pub(crate) is_whole: bool,
}

/// Finds the remains of frames after the end of the log. Returns `StoreDamaged` if one of these frames states that the
/// missing frame was synced.
fn stale_frames(source: &LogSource<'_>, recovered: &Recovered) -> Result<Vec<StaleFrame>> {
    let mut stale_frames = Vec::new();
    let Some(tail) = recovered.tail else {
        return Ok(stale_frames);
    };
    let missing = recovered.facts.chain + 1;
    let mut end = source.open(tail.segment)?;
    let is_free = end.is_free(tail.offset)?;
    if !is_free {
        stale_frames.push(StaleFrame {
            segment: tail.segment,
            offset: tail.offset,
            is_whole: false,
        });
    }
    let mut suspect = (end.name().to_owned(), tail.offset);
    let later = recovered.segments.iter().map(|header| header.number);
    for number in later.filter(|number| *number >= tail.segment) {
        let mut segment = source.open(number)?;
        let name = segment.name().to_owned();
        let is_last = number == tail.segment;
        // The missing frame was either at the tail or, if it did not fit there, at the start of the next segment. If
        // the next segment does not start with a whole frame, the error names that segment.
        if number == tail.segment + 1 && segment.frame_at(Scanner::FIRST)?.is_none() {
            suspect = (name.clone(), Scanner::FIRST);
        }
        let from = if is_last { tail.offset } else { Scanner::FIRST };
        segment.survey(from, |offset, head, is_whole| {
            if is_whole && head.synced >= missing && !is_there_now(source, tail, missing)? {
                let witness = format!("frame {} states so, at byte {offset} of {name}", head.chain);
                let reason = format!("frame {missing} is missing here, and was synced: {witness}");
                return Err(damaged(source.disk, &suspect.0, suspect.1, reason));
            }
            if !(is_last && offset == tail.offset) {
                stale_frames.push(StaleFrame {
                    segment: number,
                    offset,
                    is_whole,
                });
            }
            Ok(())
        })?;
    }
    Ok(stale_frames)
}

/// Returns true if the missing frame exists by now. During a backup, the store's process may have written the frame
/// after we looked for it. A later frame states that the missing frame is synced, so if we still do not find the
/// missing frame, it is damaged.
fn is_there_now(source: &LogSource<'_>, tail: Tail, missing: u64) -> Result<bool> {
    let stands_at = |segment: u64, offset| -> Result<bool> {
        let frame_is = |(head, _): (Head, &[u8])| head.chain == missing && !head.is_mark();
        Ok(source
            .open(segment)?
            .frame_at(offset)?
            .is_some_and(frame_is))
    };
    let next = tail.segment + 1;
    let has_next = source.disk.open(&log_name(next)).is_ok();
    Ok(stands_at(tail.segment, tail.offset)? || has_next && stands_at(next, Scanner::FIRST)?)
}

impl Recovered {
    /// Makes the recovered frames durable and erases the remains of unsynced frames. After a crash during the repair,
    /// recovery finds the same state again, except that frames that were never acknowledged may be missing.
    ///
    /// Call this before any recovered content is shown. Until then the frames may exist only in the page cache, and a
    /// power loss could undo a change that a client has already seen (invariant 2).
    ///
    /// # Errors
    /// `StoreFailed`.
    pub(crate) fn repair(&self, disk: &dyn Disk) -> Result<()> {
        // Rewrite the frames before the syncs below, so that these syncs cover them.
        self.rewrite_unsynced(disk)?;
        // Sync all segments. A process that was killed before its sync may have written to any of them, and any of them
        // may contain stale frames.
        self.segments
            .iter()
            .try_for_each(|header| self.repair_segment(disk, header))?;
        // Sync the directory, because the previous process may have been killed after it renamed a segment.
        let synced = disk.sync_folder();
        synced.map_err(|error| failed(disk.path(""), "cannot be made durable", &error))
    }

    /// Rewrites the frames that are not known to be synced. After a failed sync, the kernel may mark the pages of such
    /// frames as clean without having written them. We would read the frames as whole, but another sync would not write
    /// them. Only the tail's segment can have such frames, because the writer syncs a segment before it enters the next
    /// one.
    fn rewrite_unsynced(&self, disk: &dyn Disk) -> Result<()> {
        let Some(tail) = self.tail.filter(|_| self.synced < self.facts.chain) else {
            return Ok(());
        };
        let headers = &mut self.segments.iter();
        let Some(header) = headers.find(|header| header.number == tail.segment) else {
            return Ok(());
        };
        let mut segment = Scanner::open(disk, header.number, &header.store)?;
        let name = segment.name().to_owned();
        let fail = |error| failed(disk.path(&name), "cannot be made durable", &error);
        let file = disk.open(&name).map_err(fail)?;
        let mut at = Scanner::FIRST;
        while at < tail.offset
            && let Some((head, frame)) = segment.frame_at(at)?
        {
            if head.chain > self.synced {
                file.write_at(at, frame).map_err(fail)?;
            }
            at += head.frame_bytes() as u64;
        }
        Ok(())
    }

    fn repair_segment(&self, disk: &dyn Disk, header: &Header) -> Result<()> {
        let name = log_name(header.number);
        let fail = |error| failed(disk.path(&name), "cannot be made durable", &error);
        let file = disk.open(&name).map_err(fail)?;
        for stale in &self.stale_frames {
            if stale.segment == header.number {
                // Erase only the head. Without the salt and the checksum in it, the rest can never be read as a frame.
                let end = (stale.offset + HEAD_BYTES as u64).min(header.size);
                write_zeros(&*file, stale.offset, end).map_err(fail)?;
            }
        }
        file.sync().map_err(fail)
    }
}

pub(crate) struct Content {
    pub(crate) core: Core,
    pub(crate) snapshot: Option<Loaded>,
    pub(crate) recovered: Recovered,
}

pub(crate) fn read(disk: &dyn Disk, store: [u8; 16], new: &dyn Fn() -> Core) -> Result<Content> {
    let (mut core, snapshot) = newest(disk, store, new, &mut || Ok(()))?;
    let start = snapshot.as_ref().map_or_else(Start::default, after);
    let source = LogSource { disk, store, start };
    let recovered = recover(&source, &mut |txn| core.replay(txn))?;
    Ok(Content {
        core,
        snapshot,
        recovered,
    })
}

/// Maximum number of attempts to read a directory in use. More than two attempts are rare, because we retry only if a
/// new snapshot was made during the attempt.
const MAX_ATTEMPTS: usize = 5;

/// Reads a directory that may be in use. Meanwhile, the store may remove or reuse a segment, but only after a newer
/// snapshot has made the segment obsolete. So if the snapshots have changed, a failure does not prove damage, and we
/// try again with the newer snapshot.
pub(super) fn read_in_use<T>(
    disk: &dyn Disk,
    is_whole: impl Fn(&T) -> bool,
    mut read: impl FnMut() -> T,
) -> T {
    let mut before = snapshot_names(disk).ok();
    for _ in 1..MAX_ATTEMPTS {
        let seen = read();
        let after = snapshot_names(disk).ok();
        if is_whole(&seen) || after == before {
            return seen;
        }
        before = after;
    }
    read()
}

/// Loads the newest readable snapshot. Returns an empty core if no snapshot is readable but the log still starts with
/// segment 0. If segment 0 is gone too, returns the error of the newest snapshot. Calls `pause` between chunks, and
/// stops if `pause` returns an error.
///
/// An older snapshot may be used, because the segments after it are kept until two newer snapshots exist.
pub(crate) fn newest(
    disk: &dyn Disk,
    store: [u8; 16],
    new: &dyn Fn() -> Core,
    pause: &mut dyn FnMut() -> io::Result<()>,
) -> Result<(Core, Option<Loaded>)> {
    let mut trouble = None;
    for name in snapshot_names(disk)? {
        // Use a new core for each snapshot, because a failed load leaves some records in the core.
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
            // Do not fall back to an older snapshot. A newer version has used the directory, and we may misread its
            // other files.
            Err(error @ Error::StoreTooNew { .. }) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "snapshot unreadable, the previous one is used");
                trouble.get_or_insert(error);
            }
        }
    }
    match trouble {
        // If segment 0 still exists, the log has the whole content, unless its first frame states otherwise
        // (`LogReader::frame`).
        Some(trouble) if disk.open(&super::segment::log_name(0)).is_err() => Err(trouble),
        _ => Ok((new(), None)),
    }
}

pub(crate) fn after(snapshot: &Loaded) -> Start {
    snapshot.head.start
}

pub(crate) fn snapshot_names(disk: &dyn Disk) -> Result<Vec<String>> {
    let listed = disk.list();
    let mut names = listed.map_err(|error| failed(disk.path(""), "cannot be listed", &error))?;
    names.retain(|name| snapshot::snapshot_zxid(name).is_some());
    names.sort_unstable_by(|one, other| other.cmp(one));
    Ok(names)
}

pub(crate) fn bare_core() -> Core {
    Core::new(CoreOptions {
        hash_seed: u64::from_ne_bytes(random()),
        ..CoreOptions::default()
    })
}
