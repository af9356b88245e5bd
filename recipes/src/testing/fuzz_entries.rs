//! Entry points for the fuzzers in `fuzz/`. They read arbitrary bytes as data that another client left in a lock's
//! znodes. No input may cause a panic, and data that we can parse must survive a write and a read.

use std::time::Duration;

use bytes::Bytes;
use lockkeeper_store::{Blockers, BootInstant, Op, SessionId, Stat, ZnodePath, Zxid, sequence_of};

use crate::metadata::LockMetadata;
use crate::names::{Kind, converted, has_unique_id, recipe_of};
use crate::observe::QueueEntry;
use crate::once_per::LastRun;
use crate::queue::{MarkerReading, Predecessors, ReleaseMarker, blocks, count_holders};
use crate::revocation::{CURATORS_REQUEST, request_in, with_request};
use crate::semaphore::PermitsData;
use crate::token::FencingToken;
use crate::warden::HoldTimes;

/// Separates successive writes. This byte never occurs in UTF-8 text.
const DIVIDER: u8 = 0xff;

const MOST: usize = 64;

const FORMS: [fn(&[u8]) -> bool; 4] = [metadata, markers, numbers, names];

/// Reads bytes as the contents of a lock's znodes. The first byte selects a function of `FORMS` that reads the rest.
/// Returns true if any part could be parsed.
///
/// # Panics
/// If parsed data changes when it is written and read again, or breaks a rule of its reader.
pub fn entries(bytes: &[u8]) -> bool {
    let Some((form, rest)) = bytes.split_first() else {
        return false;
    };
    FORMS[usize::from(*form) % FORMS.len()](rest)
}

fn writes(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == DIVIDER).take(MOST)
}

fn metadata(bytes: &[u8]) -> bool {
    let lock: ZnodePath = "/lock".parse().expect("a path");
    let mut hold_times = HoldTimes::default();
    let (mut heard, mut is_understood) = (None, false);
    for (version, data) in writes(bytes).enumerate() {
        let stat = Stat {
            mtime: version as i64,
            version: version as i32,
            ..Stat::default()
        };
        let metadata = LockMetadata::parse(data);
        if let Some(metadata) = &metadata {
            is_understood = true;
            assert_eq!(
                LockMetadata::parse(&metadata.to_bytes()).as_ref(),
                Some(metadata)
            );
            assert_eq!(metadata.invalid_field(), None, "it was read");
        }
        asks(data, metadata.as_ref(), &stat);
        heard = request_in(data, &stat, heard.as_ref());

        let entry = entry(&lock, version as i32, data);
        entry.due_at_ms();
        let now = BootInstant::from_nanos((version as u64) << 52);
        hold_times.update(vec![entry], now);
        let due = hold_times.next_due();
        for overdue in hold_times.overdue(&lock, now) {
            assert!(overdue.over_by <= overdue.seen_for);
        }
        for overdue in hold_times.newly_overdue(&lock, now) {
            assert!(due.is_some_and(|due| due <= now), "{overdue:?}");
        }
    }
    is_understood
}

/// Adds a request, which must be received as a new request and change nothing else.
fn asks(data: &[u8], metadata: Option<&LockMetadata>, stat: &Stat) {
    let before = request_in(data, stat, None);
    let asked = with_request(data, Some("fuzzer"), 7);
    let request = request_in(&asked, stat, before.as_ref());
    assert!(request.is_some() && request != before, "{request:?}");
    match metadata {
        None => assert_eq!(asked, CURATORS_REQUEST),
        Some(metadata) => {
            let expected = LockMetadata {
                revocation: request,
                ..metadata.clone()
            };
            assert_eq!(LockMetadata::parse(&asked), Some(expected));
        }
    }
}

fn entry(lock: &ZnodePath, version: i32, data: &[u8]) -> QueueEntry {
    QueueEntry {
        path: lock.join("a-lock-0000000001").expect("a path"),
        sequence: 1,
        fencing_token: FencingToken::new(Zxid(7)),
        owner: SessionId(3),
        version,
        joined_at_ms: 0,
        granted_at_ms: None,
        seen_holding_at_ms: None,
        written_at_ms: i64::from(version),
        metadata: LockMetadata::parse(data),
        data: Bytes::copy_from_slice(data),
    }
}

const KINDS: [Kind; Kind::COUNT] = [
    Kind::Mutex,
    Kind::Read,
    Kind::Write,
    Kind::Acquirer,
    Kind::Lease,
    Kind::Candidate,
];

/// A marker must only be valid in the queue where it was written, and the next release must replace it.
fn markers(bytes: &[u8]) -> bool {
    let mut is_understood = false;
    let entry: ZnodePath = "/lock/a-lock-0000000007".parse().expect("a path");
    for (data, kind) in writes(bytes).flat_map(|data| KINDS.map(|kind| (data, kind))) {
        let read = |store, parent, data: &[u8]| {
            let stat = Stat {
                czxid: Zxid(parent),
                ..Stat::default()
            };
            MarkerReading::parse(kind, Some(store), data, &stat)
        };
        let Some(here) = read("one", 5, data) else {
            continue;
        };
        is_understood = true;
        for (store, parent) in [("two", 5), ("one", 6)] {
            let elsewhere = read(store, parent, data).and_then(|it| it.released);
            assert!(here.released.is_none() || elsewhere.is_none());
        }
        let Some(Op::SetData { data, .. }) = here.current.release(Some("one"), kind, &entry) else {
            panic!("{here:?} is not replaced");
        };
        let replaced = read("one", 5, &data).and_then(|it| it.released);
        assert_eq!(replaced, Some(7));
    }
    is_understood
}

fn numbers(bytes: &[u8]) -> bool {
    const PERIOD: Duration = Duration::from_secs(60);
    let mut is_understood = false;
    for data in writes(bytes) {
        if let Some(permits) = PermitsData::parse(data) {
            is_understood = true;
            assert_eq!(
                PermitsData::parse(&PermitsData::to_bytes(permits)),
                Some(permits)
            );
        }
        for at_ms in [i64::MIN, -1, 0, 1_700_000_000_000, i64::MAX] {
            let last = LastRun::parse(data, at_ms);
            for now_ms in [i64::MIN, 0, at_ms, i64::MAX] {
                let due_in = last.due_in(now_ms, PERIOD).unwrap_or_default();
                assert!(due_in <= PERIOD, "{due_in:?}");
            }
        }
    }
    is_understood
}

/// Each waiter must be behind all earlier entries, and must watch the nearest entry that blocks it.
fn names(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let names: Vec<String> = text.split('\n').take(MOST).map(str::to_owned).collect();
    for name in &names {
        for kind in KINDS {
            let _ = kind.foreign_recipe(name);
        }
        let _ = has_unique_id(name);
        if let Some(other) = converted(name) {
            assert_ne!(&other, name);
            assert_eq!(sequence_of(&other), sequence_of(name), "{name}");
        }
    }
    let _ = recipe_of(names.iter().map(String::as_str));
    assert!(count_holders(names.iter().map(String::as_str)) <= names.len());
    let mut is_understood = false;
    for blockers in [Blockers::All, Blockers::Exclusive] {
        for me in &names {
            is_understood |= waits(&names, me, blockers);
        }
    }
    is_understood
}

/// Makes the child `me` wait until all others have left, nearest first.
fn waits(names: &[String], me: &str, blockers: Blockers) -> bool {
    let ahead = Predecessors::of(names.to_vec(), me, blockers, sequence_of);
    let Some((mut ahead, mine)) = ahead.zip(sequence_of(me)) else {
        assert_eq!(sequence_of(me), None, "each is among its own siblings");
        return false;
    };
    let mut expected: Vec<_> = names
        .iter()
        .filter_map(|name| Some((sequence_of(name)?, name.as_str())))
        .filter(|(number, name)| (*number, *name) < (mine, me) && blocks(name, blockers))
        .collect();
    expected.sort_unstable();
    while let Some((number, name)) = expected.pop() {
        assert_eq!(
            (ahead.nearest(), ahead.len()),
            (Some(name), expected.len() + 1)
        );
        match converted(name) {
            // The entry may have been converted, so the waiter reads it first.
            Some(_) => {
                ahead.shorten(None);
                assert_eq!(ahead.nearest(), Some(name), "not before it was asked about");
                ahead.update(vec![None], blockers);
            }
            None if number % 2 == 0 => ahead.discard_nearest(),
            None => ahead.shorten(None),
        }
    }
    assert_eq!(ahead.nearest(), None);
    true
}

/// Returns the named inputs of the corpus.
pub fn corpus() -> Vec<(&'static str, Vec<u8>)> {
    let stated = r#"{"v":1,"label":"x","expected_hold_ms":1000,"alert_at_ms":2000,"auto_unlock_at_ms":3000,"team":["blue",1.5]}"#;
    let asked = with_request(stated.as_bytes(), Some("jane"), 7);
    let alive = r#"{"v":1,"kept_alive":1,"revocation":{"by":"jane","at_ms":7,"number":18446744073709551615}}"#;
    let divided = |writes: &[&[u8]]| writes.join(&DIVIDER);
    let released = r#"{"v":2,"queue":"mutex","store":"one","parent":5,"released":7}"#;
    let children = [
        "_c_00000000-0000-4000-8000-000000000000-lock-0000000001",
        "_c_00000000-0000-4000-8000-000000000001-__READ__0000000002",
        "_c_00000000-0000-4000-8000-000000000002-__WRIT__0000000003",
        "0123456789abcdef0123456789abcdef__rlock__0000000004",
        "x-72057594037927936--0000000005",
        "lock--000000006",
        "leases",
    ];
    let form = |form: u8, bytes: &[u8]| [&[form], bytes].concat();
    vec![
        (
            "metadata",
            form(
                0,
                &divided(&[
                    stated.as_bytes(),
                    &asked,
                    alive.as_bytes(),
                    CURATORS_REQUEST,
                ]),
            ),
        ),
        (
            "markers",
            form(
                1,
                &divided(&[ReleaseMarker::fresh_bytes(Kind::Write), released.as_bytes()]),
            ),
        ),
        (
            "numbers",
            form(
                2,
                &divided(&[&PermitsData::to_bytes(7), &LastRun::to_bytes(7)]),
            ),
        ),
        ("names", form(3, children.join("\n").as_bytes())),
        ("damaged", form(0, b"{\"v\":1,\"v\":2}")),
    ]
}
