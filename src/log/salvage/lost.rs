//! [`Seen`]: everything that can be read after the end of a damaged log. This data is not salvaged, but it shows how
//! much is lost, and which zxids and timeouts the original has given out.

use std::collections::BTreeMap;

use super::LostPlace;
use crate::log::codec::Record;
use crate::log::disk::Disk;
use crate::log::epoch;
use crate::log::frame::Scanner;
use crate::log::inspect::Problem;
use crate::log::recovery::{self, Facts, Tail};
use crate::log::segment::{log_name, log_number};
use crate::log::snapshot::{Form, Head, snapshot_zxid};
use crate::model::error::Result;

const WINDOW_BYTES: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Seen {
    pub(super) facts: Facts,
    pub(super) txns: u64,
    ends: BTreeMap<u64, u64>,
}

impl Seen {
    /// `chain` is the number of the log's last good frame.
    pub(super) fn behind(
        disk: &dyn Disk,
        store: &[u8; 16],
        tail: Tail,
        chain: u64,
    ) -> Result<Self> {
        let mut seen = Self::default();
        seen.snapshots(disk)?;
        let names = disk.list().unwrap_or_default();
        let numbers = names.iter().filter_map(|name| log_number(name));
        for number in numbers.filter(|number| *number >= tail.segment) {
            let from = match number == tail.segment {
                true => tail.offset,
                false => Scanner::FIRST,
            };
            let end = seen.segment(disk, number, store, from, chain);
            let end = end.unwrap_or_else(|_| last_byte(disk, number));
            if end > from {
                seen.ends.insert(number, end);
            }
        }
        Ok(seen)
    }

    fn snapshots(&mut self, disk: &dyn Disk) -> Result<()> {
        for name in recovery::snapshot_names(disk)? {
            let zxid = snapshot_zxid(&name).unwrap_or_default();
            self.facts.zxid = self.facts.zxid.max(zxid);
            let file = disk.open(&name).ok();
            if let Some(head) = file.and_then(|file| Head::read(&*file, Form::Snapshot).ok()) {
                self.facts.epoch = self.facts.epoch.max(head.start.facts.epoch);
            }
        }
        Ok(())
    }

    fn segment(
        &mut self,
        disk: &dyn Disk,
        number: u64,
        store: &[u8; 16],
        from: u64,
        chain: u64,
    ) -> Result<u64> {
        let mut segment = match Scanner::open_any_length(disk, number, store) {
            Ok(segment) => segment,
            Err(error) => {
                let by_frame = Scanner::open_by_first_frame(disk, number, store)?;
                by_frame.ok_or(error)?
            }
        };
        let torn = segment.head_at(from)?.filter(|head| !head.is_mark());
        let mut end = torn.map_or(from, |head| from + head.frame_bytes() as u64);
        if torn.is_none() && !segment.is_free(from)? {
            end = last_byte(disk, number);
        }
        let mut places = Vec::new();
        segment.survey(from, |offset, head, is_whole| {
            if is_whole && head.chain > chain && !head.is_mark() {
                places.push(offset);
            }
            Ok(())
        })?;
        if let Some(last) = places.last()
            && let Some(head) = segment.head_at(*last)?
        {
            end = last + head.frame_bytes() as u64;
        }
        for offset in places {
            self.frame(&mut segment, offset)?;
        }
        Ok(end)
    }

    fn frame(&mut self, segment: &mut Scanner<'_>, offset: u64) -> Result<()> {
        let Some((head, frame)) = segment.frame_at(offset)? else {
            return Ok(());
        };
        let Self { facts, txns, .. } = self;
        facts.zxid = facts.zxid.max(head.last);
        facts.epoch = facts.epoch.max(epoch::of(head.last));
        let _ = head.records::<crate::core::Damage>(frame, |record| {
            match record {
                Record::Txn(_) => *txns += 1,
                Record::Epoch(epoch) => facts.epoch = facts.epoch.max(epoch),
                Record::LongestTimeout { ms } => {
                    facts.longest_timeout_ms = facts.longest_timeout_ms.max(ms);
                }
                Record::SessionTerms { allowed_ms, .. } => {
                    facts.allowed_timeout_ms = facts.allowed_timeout_ms.max(Some(allowed_ms));
                }
                Record::Clean => {}
            }
            Ok(())
        });
        Ok(())
    }

    pub(super) fn places(&self, disk: &dyn Disk, tail: Tail, damage: &Problem) -> Vec<LostPlace> {
        let place = |(number, end): (&u64, &u64)| {
            let offset = match *number == tail.segment {
                true => tail.offset,
                false => 0,
            };
            LostPlace {
                file: disk.path(&log_name(*number)),
                offset,
                bytes: Some(end - offset),
            }
        };
        let mut places: Vec<_> = self.ends.iter().map(place).collect();
        let name = damage.file.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| disk.open(name).is_err()) {
            places.push(LostPlace {
                file: damage.file.clone(),
                offset: 0,
                bytes: None,
            });
        }
        places.sort_by(|one, other| one.file.cmp(&other.file));
        places
    }
}

fn last_byte(disk: &dyn Disk, number: u64) -> u64 {
    let Ok(file) = disk.open(&log_name(number)) else {
        return 0;
    };
    let mut window = vec![0; WINDOW_BYTES];
    let (mut at, mut end) = (0, 0);
    while let Ok(read @ 1..) = file.read_at(at, &mut window) {
        let last = window[..read].iter().rposition(|byte| *byte != 0);
        end = last.map_or(end, |last| at + last as u64 + 1);
        at += read as u64;
    }
    end
}
