//! What stands after the end of a log: proof that the end is damage, scraps of frames that were never
//! synced, or what a segment held in its former use, which concerns nobody.

use super::{Recovered, Source, Tail};
use crate::error::Result;
use crate::log::disk::Disk;
use crate::log::frame::{HEAD_BYTES, Head};
use crate::log::scan::Scanner;
use crate::log::segment::{Header, log_name, write_zeros};
use crate::log::trouble::{damaged, failed};

/// A place where a frame that nobody was told of stands, or a part of one. It must not come back to
/// life when something else is written beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scrap {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    /// Whether it is a whole frame: one that was written before it was clear that those ahead of it
    /// are on the disk.
    pub(crate) is_whole: bool,
}

/// Looks at everything after the end.
///
/// # Errors
/// `StoreDamaged` if something there shows that what is missing at the end was synced.
pub(super) fn scraps(source: &Source<'_>, recovered: &Recovered) -> Result<Vec<Scrap>> {
    let mut scraps = Vec::new();
    let Some(tail) = recovered.tail else {
        return Ok(scraps);
    };
    let missing = recovered.facts.chain + 1;
    let mut end = source.open(tail.segment)?;
    let is_free = end.is_free(tail.offset)?;
    if !is_free {
        scraps.push(Scrap {
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
        // What is missing after a whole frame of the next segment was the end of this one.
        if number == tail.segment + 1 && segment.frame_at(Scanner::FIRST)?.is_none() {
            suspect = (name.clone(), Scanner::FIRST);
        }
        let from = if is_last { tail.offset } else { Scanner::FIRST };
        segment.survey(from, |offset, head, is_whole| {
            if is_whole && head.synced >= missing && !is_there_now(source, tail, missing)? {
                let witness = format!("frame {} says so, at byte {offset} of {name}", head.chain);
                let reason = format!("frame {missing} should be here, and was synced: {witness}");
                return Err(damaged(source.disk, &suspect.0, suspect.1, reason));
            }
            if !(is_last && offset == tail.offset) {
                scraps.push(Scrap {
                    segment: number,
                    offset,
                    is_whole,
                });
            }
            Ok(())
        })?;
    }
    Ok(scraps)
}

/// Whether a frame that was missing has come to its place since. A log that is being written goes on
/// while it is read; one that nobody writes stays as it is. What was written before the witness is
/// read after it, so nothing damaged passes.
fn is_there_now(source: &Source<'_>, tail: Tail, missing: u64) -> Result<bool> {
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
    /// Makes what was read durable, and wipes out what is left of frames that were never synced. Until
    /// it returns, a crash changes nothing of what a recovery gives, but for frames that nobody was
    /// told of; after it, the next frame may say that all before it are synced.
    ///
    /// What was read must not be shown to anybody before: after the end of a process it may stand in
    /// the memory of the machine alone.
    ///
    /// # Errors
    /// `StoreFailed`.
    pub(crate) fn mend(&self, disk: &dyn Disk) -> Result<()> {
        self.write_again(disk)?;
        self.segments
            .iter()
            .try_for_each(|header| self.mend_segment(disk, header))?;
        // The process may have been killed between the naming of a segment and its sync.
        let synced = disk.sync_folder();
        synced.map_err(|error| failed(disk.path(""), "cannot be made durable", &error))
    }

    /// Writes the frames again that nobody knows to be synced. Where a sync has failed, the system may
    /// give back what was written and never write it: no later sync would say so.
    fn write_again(&self, disk: &dyn Disk) -> Result<()> {
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

    fn mend_segment(&self, disk: &dyn Disk, header: &Header) -> Result<()> {
        let name = log_name(header.number);
        let fail = |error| failed(disk.path(&name), "cannot be made durable", &error);
        let file = disk.open(&name).map_err(fail)?;
        for scrap in &self.scraps {
            if scrap.segment == header.number {
                let end = (scrap.offset + HEAD_BYTES as u64).min(header.size);
                write_zeros(&*file, scrap.offset, end).map_err(fail)?;
            }
        }
        file.sync().map_err(fail)
    }
}
