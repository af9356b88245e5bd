//! Recovery: what a log holds, and where its writer goes on.
//!
//! Frames are read while they are whole and in order. Where they end, either the power failed while
//! the next was written, or the medium has damaged what was there. The frames themselves tell: each
//! says how far the log was synced before it. If anything after the end says that what is missing
//! there was synced, the log is damaged, and is refused. Else nobody was told of what is missing, and
//! it is cut. `docs/durability.md` has the argument by cases.

mod survey;

use super::codec::{Malformed, Record};
use super::disk::Disk;
use super::frame::Head;
use super::scan::Scanner;
use super::segment::{Header, log_number};
use super::trouble::{damaged, failed};
use crate::core::{Damage, Txn};
use crate::error::Result;
use crate::types::Zxid;

pub(crate) use survey::Scrap;

/// What is known at one point of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The number of the last frame; they count from 1.
    pub(crate) chain: u64,
    /// The last zxid.
    pub(crate) zxid: Zxid,
    /// No zxid beyond the end of this epoch was given out.
    pub(crate) epoch: u32,
    /// The longest session timeout that any remote client was ever given, in milliseconds.
    pub(crate) longest_timeout_ms: u64,
    /// Whether the store was closed in order right there.
    pub(crate) is_clean: bool,
    pub(crate) custody: Custody,
    /// The longest timeout that clients were allowed, in milliseconds: 0 if the store was never served; `None` if
    /// only versions wrote it that do not say.
    pub(crate) allowed_timeout_ms: Option<u64>,
}

/// The trust that a log deserves, after a stop that was not in order, in what it says of sessions of other
/// processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Custody {
    /// Written by a version that does not say: to be taken for [`Lax`](Self::Lax).
    #[default]
    Unknown,
    /// It may lack what was acknowledged last.
    Lax,
    /// It has all that was acknowledged.
    Sure,
    /// It was put back from a backup: its original may have gone on.
    Restored,
}

/// Where reading starts: after a snapshot, or (the default) at the beginning of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Start {
    /// The first segment to read.
    pub(crate) segment: u64,
    /// What is known before its first frame.
    pub(crate) facts: Facts,
}

/// Where the next frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
}

/// What was read.
#[derive(Clone, Debug)]
pub(crate) struct Recovered {
    /// What is known at the end.
    pub(crate) facts: Facts,
    /// Where the writer goes on; `None` where there is no segment yet. A frame that does not fit
    /// there goes into the next segment.
    pub(crate) tail: Option<Tail>,
    /// The headers of the segments from the first that was read to the last, in order. Those after
    /// the tail's are prepared: they hold no frame.
    pub(crate) segments: Vec<Header>,
    /// What is left of frames that were never synced, and must go before the next is written.
    pub(crate) scraps: Vec<Scrap>,
    /// The last frame of which a later one says that it was synced.
    pub(crate) synced: u64,
    #[cfg_attr(
        not(any(test, feature = "test-util")),
        allow(dead_code, reason = "for tests and fuzz targets")
    )]
    pub(crate) frames: u64,
    #[cfg_attr(
        not(any(test, feature = "test-util")),
        allow(dead_code, reason = "for tests and fuzz targets")
    )]
    pub(crate) txns: u64,
}

/// A log to be read, and what to do with its transactions.
pub(crate) struct Source<'a> {
    pub(crate) disk: &'a dyn Disk,
    /// The id of the store; a segment of another is refused.
    pub(crate) store: [u8; 16],
    pub(crate) start: Start,
}

/// Reads the whole log, and writes nothing. Every transaction goes to `each`, in order; what it
/// refuses is damage.
///
/// Call [`Recovered::mend`] before anything is written, and before anybody sees what was read.
///
/// # Errors
/// `StoreDamaged`, `StoreTooNew`, `StoreFailed`.
pub(crate) fn recover(
    source: &Source<'_>,
    each: &mut dyn FnMut(Txn) -> Result<(), Damage>,
) -> Result<Recovered> {
    let numbers = segments_from(source.disk, source.start.segment)?;
    let mut reading = Reading::new(source, each);
    let mut tail = None;
    let mut numbers = numbers.into_iter();
    for number in numbers.by_ref() {
        let mut segment = source.open(number)?;
        let is_next = tail.is_none() || segment_goes_on(&mut segment, reading.facts.chain)?;
        reading.segments.push(*segment.header());
        if !is_next {
            break;
        }
        let offset = reading.read(&mut segment, u64::MAX)?;
        tail = Some(Tail {
            segment: number,
            offset,
        });
    }
    for number in numbers {
        reading.segments.push(*source.open(number)?.header());
    }
    let mut recovered = Recovered {
        facts: reading.facts,
        tail,
        segments: reading.segments,
        scraps: Vec::new(),
        synced: reading.synced,
        frames: reading.frames,
        txns: reading.txns,
    };
    recovered.scraps = survey::scraps(source, &recovered)?;
    Ok(recovered)
}

/// Reads the frames up to number `last`, which are all known to be there and synced.
///
/// # Errors
/// As of [`recover`]; a frame that is missing is damage.
pub(crate) fn read_up_to(
    source: &Source<'_>,
    last: u64,
    each: &mut dyn FnMut(Txn) -> Result<(), Damage>,
) -> Result<Facts> {
    let mut reading = Reading::new(source, each);
    let mut number = source.start.segment;
    while reading.facts.chain < last {
        let mut segment = source.open(number)?;
        let before = reading.facts.chain;
        let offset = reading.read(&mut segment, last)?;
        if reading.facts.chain == before {
            let reason = format!("frame {} is missing", before + 1);
            return Err(segment.damaged(offset, reason));
        }
        number += 1;
    }
    Ok(reading.facts)
}

impl<'a> Source<'a> {
    fn open(&self, number: u64) -> Result<Scanner<'a>> {
        Scanner::open(self.disk, number, &self.store)
    }
}

/// Whether the frame after `chain` is the first of this segment.
fn segment_goes_on(segment: &mut Scanner<'_>, chain: u64) -> Result<bool> {
    let first = segment.frame_at(Scanner::FIRST)?;
    Ok(first.is_some_and(|(head, _)| head.chain == chain + 1 && !head.is_mark()))
}

/// The numbers of the segments in use, from `first` on.
fn segments_from(disk: &dyn Disk, first: u64) -> Result<Vec<u64>> {
    let names = disk
        .list()
        .map_err(|error| failed(disk.path(""), "cannot be listed", &error))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| log_number(name)).collect();
    numbers.retain(|number| *number >= first);
    numbers.sort_unstable();
    for (number, expected) in numbers.iter().zip(first..) {
        if *number != expected {
            let name = super::segment::log_name(expected);
            let reason = format!("the file is missing, though segment {number} is there");
            return Err(damaged(disk, &name, 0, reason));
        }
    }
    Ok(numbers)
}

/// A log that is being read.
struct Reading<'a> {
    facts: Facts,
    segments: Vec<Header>,
    synced: u64,
    frames: u64,
    txns: u64,
    each: &'a mut dyn FnMut(Txn) -> Result<(), Damage>,
}

impl<'a> Reading<'a> {
    fn new(source: &Source<'_>, each: &'a mut dyn FnMut(Txn) -> Result<(), Damage>) -> Self {
        Self {
            facts: source.start.facts,
            segments: Vec::new(),
            synced: 0,
            frames: 0,
            txns: 0,
            each,
        }
    }

    /// Reads the frames of a segment that follow, up to number `last`; the offset of their end.
    fn read(&mut self, segment: &mut Scanner<'_>, last: u64) -> Result<u64> {
        let mut at = Scanner::FIRST;
        while self.facts.chain < last {
            let Some((head, frame)) = segment.frame_at(at)? else {
                break;
            };
            let expected = self.facts.chain + 1;
            if head.chain != expected {
                let reason = format!("frame {} stands in the place of {expected}", head.chain);
                return Err(segment.damaged(at, reason));
            }
            self.synced = self.synced.max(head.synced);
            if head.is_mark() {
                break;
            }
            if let Err(Damage(reason)) = self.frame(&head, frame) {
                let reason = format!("frame {expected} is whole, but cannot be: {reason}");
                return Err(segment.damaged(at, reason));
            }
            at += head.frame_bytes() as u64;
        }
        Ok(at)
    }

    fn frame(&mut self, head: &Head, frame: &[u8]) -> Result<(), Damage> {
        let (mut facts, mut txns) = (self.facts, 0);
        head.records(frame, |record| {
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
                    facts.custody = match are_kept {
                        true => Custody::Sure,
                        false => Custody::Lax,
                    };
                    let allowed = facts.allowed_timeout_ms.unwrap_or(0).max(allowed_ms);
                    facts.allowed_timeout_ms = Some(allowed);
                }
            }
            Ok(())
        })?;
        let before = facts.zxid;
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
