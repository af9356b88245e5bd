//! Crashes and damage at every byte.

use super::*;

const PATTERNS: [u8; 4] = [0x01, 0x80, 0x55, 0xff];

fn frame_at(log: &Writing, segment: u64, at: u64) -> Option<&LogPosition> {
    let mut places = log.places.iter();
    places.find(|place| place.segment == segment && (place.from..place.to).contains(&at))
}

#[test]
fn a_crash_at_any_byte_leaves_the_frames_before_it() {
    for is_used in [false, true] {
        let before = fresh(is_used);
        let disk = before.copy();
        let log = recorded(&disk);
        for cut in log.places.iter().flat_map(|place| {
            let at = place.from..place.to;
            at.map(|at| (place.segment, at))
        }) {
            let crashed = before.copy();
            for segment in 0..=cut.0 {
                let name = log_name(segment);
                let (old, mut new) = (before.content(&name), disk.content(&name).unwrap());
                if segment == cut.0 {
                    new.truncate(cut.1 as usize);
                    new.extend_from_slice(&old.unwrap()[cut.1 as usize..]);
                }
                crashed.put(&name, new);
            }
            let whole = log.places.iter();
            let whole = whole.take_while(|place| (place.segment, place.to) <= cut);
            let expected = whole.last().map_or(0, |place| place.txns);
            let context = format!("a crash at {cut:?}");
            let (txns, _) =
                recovered(&crashed).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(txns, log.txns[..expected], "{context}");
            goes_on(&crashed, &context);
        }
    }
}

#[test]
fn a_flip_of_any_byte_is_refused_where_it_is_or_changes_nothing() {
    for is_used in [false, true] {
        let whole = fresh(is_used);
        let log = recorded(&whole);
        for (segment, at) in (0..3).flat_map(|segment| (0..SIZE).map(move |at| (segment, at))) {
            let place = frame_at(&log, segment, at);
            let is_used = place.is_some() || at < 64;
            for bits in PATTERNS.into_iter().take(if is_used { 4 } else { 1 }) {
                let disk = whole.copy();
                disk.flip(&log_name(segment), at, bits);
                let context = format!("{bits:#x} at {at} of segment {segment}");
                let expected = match place {
                    Some(place) => place.from,
                    None if at < 64 => 0,
                    None => {
                        let (txns, _) = recovered(&disk).expect(&context);
                        assert_eq!(txns, log.txns, "{context}");
                        continue;
                    }
                };
                assert_eq!(refused(&disk, &context), (log_name(segment), expected));
            }
        }
    }
}

#[test]
fn without_its_mark_the_last_frame_alone_may_be_taken_for_torn() {
    let whole = fresh(true);
    let mut log = recorded(&whole);
    log.commit(&[50, 20]);
    let last = log.places.last().unwrap();
    let before = log.places[log.places.len() - 2].txns;
    for (segment, at) in (0..2).flat_map(|segment| (64..SIZE).map(move |at| (segment, at))) {
        let disk = whole.copy();
        disk.flip(&log_name(segment), at, 0x10);
        let context = format!("{at} of segment {segment}");
        let Some(place) = frame_at(&log, segment, at) else {
            assert_eq!(recovered(&disk).expect(&context).0, log.txns, "{context}");
            continue;
        };
        if place.from == last.from {
            let (txns, _) = recovered(&disk).expect(&context);
            assert_eq!(txns, log.txns[..before], "{context}");
        } else {
            assert_eq!(refused(&disk, &context), (log_name(segment), place.from));
        }
    }
}

#[test]
fn a_segment_that_lost_its_end_is_refused() {
    for is_used in [false, true] {
        let before = fresh(is_used);
        let whole = before.copy();
        let log = recorded(&whole);
        for (segment, at) in (0..2).flat_map(|segment| (64..SIZE).map(move |at| (segment, at))) {
            let disk = whole.copy();
            let mut content = disk.content(&log_name(segment)).unwrap();
            let old = before.content(&log_name(segment)).unwrap();
            content[at as usize..].copy_from_slice(&old[at as usize..]);
            disk.put(&log_name(segment), content);
            let context = format!("{at} of segment {segment}");
            match log
                .places
                .iter()
                .find(|place| place.segment == segment && at < place.to)
            {
                Some(place) if segment == 0 => {
                    assert_eq!(refused(&disk, &context), (log_name(segment), place.from));
                }
                Some(place) => {
                    let read = recovered(&disk).expect(&context).0.len();
                    assert!(read < place.txns, "{context}");
                    assert_eq!(log.txns[..read], recovered(&disk).unwrap().0);
                }
                None => assert_eq!(recovered(&disk).expect(&context).0, log.txns),
            }
        }
    }
}

#[test]
fn a_truncated_file_is_refused() {
    let whole = fresh(false);
    recorded(&whole);
    for (segment, len) in (0..3).flat_map(|segment| (0..SIZE).map(move |len| (segment, len))) {
        let disk = whole.copy();
        let mut content = disk.content(&log_name(segment)).unwrap();
        content.truncate(len as usize);
        disk.put(&log_name(segment), content);
        let context = format!("{len} bytes of segment {segment}");
        let offset = if len < 64 { 0 } else { len };
        assert_eq!(refused(&disk, &context), (log_name(segment), offset));
    }
}
