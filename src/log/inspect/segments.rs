//! The segments of a log, one by one: what each holds, whatever the others do.

use super::super::disk::Disk;
use super::super::scan::Scanner;
use super::super::segment::log_number;
use crate::types::Zxid;

/// A segment of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// Its number.
    pub number: u64,
    /// The size of the file.
    pub bytes: u64,
    /// How many of these bytes are used.
    pub used_bytes: u64,
    /// How many frames there are, up to the first place where none is.
    pub frames: u64,
    /// The first zxid and the last; `None` where there is no frame.
    pub zxids: Option<(Zxid, Zxid)>,
    /// Where it stands in the log.
    pub state: SegmentState,
}

/// Where a segment stands in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentState {
    /// The log has gone on in the next one.
    Sealed,
    /// The log goes on here.
    Current,
    /// The log goes on here; what was being written when the store stopped is not whole, and is cut
    /// when it is opened.
    Torn,
    /// It waits to be written.
    Prepared,
    /// It cannot be read, or not from [`SegmentInfo::used_bytes`] on.
    Damaged,
}

/// Looks at each segment by itself; `is_damaged` says which are known not to be whole.
pub(super) fn look(
    disk: &dyn Disk,
    names: &[String],
    store: [u8; 16],
    is_damaged: impl Fn(u64) -> bool,
) -> Vec<SegmentInfo> {
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| log_number(name)).collect();
    numbers.sort_unstable();
    let mut segments: Vec<_> = numbers
        .into_iter()
        .map(|number| look_at(disk, number, &store))
        .collect();
    for segment in &mut segments {
        if is_damaged(segment.number) {
            segment.state = SegmentState::Damaged;
        }
    }
    let is_used =
        |segment: &SegmentInfo| segment.frames > 0 || segment.state == SegmentState::Damaged;
    let last_used = segments.iter().rposition(is_used);
    for (index, segment) in segments.iter_mut().enumerate() {
        if segment.state != SegmentState::Damaged && Some(index) < last_used {
            segment.state = SegmentState::Sealed;
        }
    }
    segments
}

fn look_at(disk: &dyn Disk, number: u64, store: &[u8; 16]) -> SegmentInfo {
    let mut info = SegmentInfo {
        number,
        bytes: 0,
        used_bytes: 0,
        frames: 0,
        zxids: None,
        state: SegmentState::Damaged,
    };
    // Why it cannot be read, the recovery says.
    if let Ok(mut segment) = Scanner::open(disk, number, store) {
        info.bytes = segment.header().size;
        info.state = walk(&mut segment, &mut info).unwrap_or(SegmentState::Damaged);
    }
    info
}

fn walk(segment: &mut Scanner<'_>, info: &mut SegmentInfo) -> crate::Result<SegmentState> {
    let mut at = Scanner::FIRST;
    while let Some((head, _)) = segment.frame_at(at)?.filter(|(head, _)| !head.is_mark()) {
        at += head.frame_bytes() as u64;
        info.frames += 1;
        // The first of all have none: these say only which epoch is reserved.
        if head.last > Zxid(0) {
            let first = info.zxids.map_or(head.first, |(first, _)| first);
            info.zxids = Some((first, head.last));
        }
    }
    info.used_bytes = at;
    Ok(match (segment.is_free(at)?, info.frames) {
        (false, _) => SegmentState::Torn,
        (true, 0) => SegmentState::Prepared,
        (true, _) => SegmentState::Current,
    })
}
