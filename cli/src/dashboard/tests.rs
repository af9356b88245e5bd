//! Tests of the parts of the dashboard that do no I/O.

use std::time::{Duration, Instant};

use hyper::StatusCode;
use hyper::http::Request;
use lockkeeper::{LockInfo, LockQueue};
use serde_json::{Value, json};

use super::access::{Access, Aim};
use super::board::{Board, Cursor, cut};
use super::handovers::{Handovers, SECONDS, passed};
use super::query;
use super::revoke::{Found, Revocation};
use super::streams::Told;
use crate::http::token::Token;
use crate::live::samples::{NOW_MS, change, lock, path, sample, token};
use crate::live::{News, SILENCE, Sort};

fn board(locks: impl IntoIterator<Item = LockInfo>) -> (Board, Instant) {
    let now = Instant::now();
    let mut board = Board::new(1 << 30, NOW_MS, now);
    board.apply(News::Reading, NOW_MS, now);
    let change = change(locks, &[]);
    board.apply(News::Locks { change, all: true }, NOW_MS, now);
    (board, now)
}

fn four() -> (Board, Instant) {
    board([
        lock("a", 1, 100, 0),
        lock("b", 2, 10, 7),
        lock("c", 3, 50, 1),
        lock("d", 4, 1, 0),
    ])
}

fn cursor(text: &str) -> Cursor {
    query::locks(Some(text)).unwrap()
}

fn news(board: &mut Board, now_ms: i64, locks: &[LockInfo], freed: &[&str]) {
    let change = change(locks.iter().cloned(), freed);
    board.apply(News::Locks { change, all: false }, now_ms, Instant::now());
}

fn seen(board: &Board, text: &str) -> Value {
    board.window(&cursor(text), NOW_MS).json(NOW_MS)
}

fn names(window: &Value) -> String {
    let rows = window["rows"].as_array().unwrap().iter();
    rows.map(|row| row["lock"].as_str().unwrap()).collect()
}

#[test]
fn every_order_is_kept_through_changes() {
    let (mut board, _) = four();
    let orders = |board: &Board| {
        ["name", "held", "overdue", "waiters"].map(|sort| {
            let both = ["", "&reverse=true"];
            both.map(|reverse| names(&seen(board, &format!("sort={sort}{reverse}"))))
        })
    };
    assert_eq!(
        orders(&board),
        [
            ["abcd", "dcba"],
            ["acbd", "dbca"],
            ["acbd", "dbca"],
            ["bcad", "dacb"]
        ]
    );
    let mut e = lock("e", 5, 1_000, 0);
    e.holders[0].metadata = None;
    news(&mut board, NOW_MS, &[lock("d", 4, 1, 9), e], &["b", "none"]);
    assert_eq!(
        orders(&board),
        [
            ["acde", "edca"],
            ["eacd", "dcae"],
            ["acde", "edca"],
            ["dcae", "eacd"]
        ]
    );
    let window = seen(&board, "");
    let figures = ["locks", "matching", "held", "waiters", "overdue"];
    assert_eq!(figures.map(|it| &window[it]), [4, 4, 4, 10, 2]);
    let change = change([lock("z", 9, 1, 2)], &[]);
    board.apply(News::Locks { change, all: true }, NOW_MS, Instant::now());
    let window = seen(&board, "");
    assert_eq!(figures.map(|it| &window[it]), [1, 1, 1, 2, 0]);
    assert_eq!(names(&window), "z");
}

#[test]
fn a_lock_becomes_overdue_as_time_passes() {
    let (board, _) = four();
    let overdue = |now_ms| board.window(&cursor(""), now_ms).json(now_ms)["overdue"].clone();
    assert_eq!(
        (overdue(NOW_MS), overdue(NOW_MS + 19_999)),
        (2.into(), 2.into())
    );
    assert_eq!(overdue(NOW_MS + 20_000), 3);
    let json = board
        .window(&cursor("limit=1&offset=1"), NOW_MS + 21_000)
        .json(NOW_MS + 21_000);
    let holder = &json["rows"][0]["holders"][0];
    assert_eq!(
        (&holder["overdue_ms"], &holder["due_ms"]),
        (&1_000.into(), &(NOW_MS + 20_000).into())
    );
}

#[test]
fn windows_differ_only_if_what_is_shown_does() {
    let (mut board, _) = four();
    let first = cursor("limit=2");
    let before = board.window(&first, NOW_MS);
    assert_eq!(before, board.window(&first, NOW_MS + 1_000));
    assert_ne!(
        before,
        board.window(&first, NOW_MS + 20_000),
        "overdue by then"
    );
    // This lock is outside the window, and changing it leaves the totals the same.
    news(&mut board, NOW_MS, &[lock("d", 5, 1, 0)], &[]);
    assert_eq!(before, board.window(&first, NOW_MS));
    news(&mut board, NOW_MS, &[lock("a", 6, 100, 0)], &[]);
    assert_ne!(before, board.window(&first, NOW_MS));
}

#[test]
fn a_filter_finds_any_holder_by_all_that_is_shown() {
    let mut many = lock("many", 10, 5, 0);
    for number in 11..20 {
        let other = lock("many", number, 5, 0).holders.remove(0);
        many.holders.push(other);
    }
    many.holders[9].metadata.as_mut().unwrap().label = Some("The LAST".into());
    let (board, _) = board([many, lock("one", 77, 5, 0)]);
    for (filter, expected) in [
        ("the+last", "many"),
        ("MANY", "many"),
        ("48213", "manyone"),
        ("db1", "manyone"),
        ("77", "one"),
        ("label%20of%20o", "one"),
        ("nothing", ""),
    ] {
        let window = seen(&board, &format!("filter={filter}"));
        assert_eq!(names(&window), expected, "{filter}");
        assert_eq!((&window["locks"], &window["held"]), (&2.into(), &2.into()));
    }
    let row = &seen(&board, "limit=1")["rows"][0];
    assert_eq!(row["holders"].as_array().unwrap().len(), 3);
    assert_eq!(row["holder_count"], 10);
}

#[test]
fn texts_of_others_have_a_limit_and_the_list_of_all() {
    let mut large = lock("a", 1, 1, 0);
    let metadata = large.holders[0].metadata.as_mut().unwrap();
    metadata.label = Some("ä".repeat(1 << 20));
    metadata.backtrace = Some("x".repeat(1 << 20));
    metadata
        .other
        .insert("x".into(), "y".repeat(1 << 20).into());
    let (board, _) = board([large]);
    let text = seen(&board, "").to_string();
    assert!(text.len() < 4_000, "{}", text.len());
    assert_eq!((cut("aä", 2), cut("aä", 3)), ("a…".into(), "aä".into()));

    let now = Instant::now();
    let mut board = Board::new(100_000, NOW_MS, now);
    let locks = (1..1_000).map(|number| lock(&format!("l{number}"), number, 1, 1));
    let change = change(locks, &[]);
    board.apply(News::Locks { change, all: true }, NOW_MS, now);
    let window = seen(&board, "");
    assert_eq!(window["complete"], false);
    let kept = window["locks"].as_u64().unwrap();
    assert!((10..100).contains(&kept), "{kept}");
    let freed: Vec<_> = (0..1_000).map(|number| format!("l{number}")).collect();
    let freed: Vec<_> = freed.iter().map(String::as_str).collect();
    news(&mut board, NOW_MS, &[lock("new", 1, 1, 0)], &freed);
    assert_eq!(names(&seen(&board, "")), "new");
}

#[test]
fn the_state_of_the_store_is_never_better_than_what_is_known() {
    let (mut board, now) = four();
    let state = |board: &Board, after| board.store(now + after).state;
    assert_eq!(state(&board, Duration::ZERO), "connected");
    assert_eq!(state(&board, SILENCE), "connected");
    let silent = board.store(now + SILENCE + Duration::from_secs(1));
    assert_eq!(
        silent.json(),
        json!({ "state": "suspended", "reason": "the store does not answer" })
    );
    board.apply(News::Heard, NOW_MS, now + SILENCE);
    assert_eq!(state(&board, SILENCE + Duration::from_secs(1)), "connected");
    board.apply(News::Suspended, NOW_MS, now);
    board.apply(News::Heard, NOW_MS, now);
    assert_eq!(state(&board, Duration::ZERO), "suspended");
    board.apply(News::Lost(Some("why".into())), NOW_MS, now);
    assert_eq!(
        board.store(now).json(),
        json!({ "state": "lost", "reason": "why" })
    );
    board.apply(News::Reading, NOW_MS, now);
    assert_eq!(state(&board, Duration::ZERO), "reading");
    assert_eq!(seen(&board, "")["locks"], 4);
}

#[test]
fn a_viewer_is_told_of_each_thing_once() {
    let (mut board, now) = four();
    let mut told = Told::default();
    let mut tell = |board: &mut Board, now_ms| {
        let text = told.news(board, &cursor(""), now_ms, now);
        let names = text.lines().filter_map(|line| line.strip_prefix("event: "));
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(tell(&mut board, NOW_MS), "store handovers locks");
    assert_eq!(tell(&mut board, NOW_MS + 999), "");
    assert_eq!(tell(&mut board, NOW_MS + 1_000), "handovers");
    news(&mut board, NOW_MS + 1_100, &[lock("a", 7, 1, 1)], &[]);
    assert_eq!(tell(&mut board, NOW_MS + 1_100), "locks");
    board.apply(News::Suspended, NOW_MS, now);
    assert_eq!(tell(&mut board, NOW_MS + 1_200), "store");
}

#[test]
fn no_text_breaks_an_event() {
    let mut odd = lock("\r\ndata: x", 1, 1, 0);
    odd.holders[0].metadata.as_mut().unwrap().label =
        Some("\n\nevent: store\u{2028}\0</script>".into());
    let (mut board, now) = board([odd]);
    let text = Told::default().news(&mut board, &cursor(""), NOW_MS, now);
    let lines: Vec<_> = text
        .split(['\n', '\r'])
        .filter(|line| !line.is_empty())
        .collect();
    assert_eq!(lines.len(), 6, "{lines:?}");
    let data = lines[5].strip_prefix("data: ").unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(
        data["rows"][0]["holders"][0]["label"],
        "\n\nevent: store\u{2028}\0</script>"
    );
}

#[test]
fn hand_overs_are_counted_from_holder_to_holder() {
    let holders = |numbers: &[i64]| -> Vec<_> {
        let locks = numbers.iter().map(|number| lock("a", *number, 1, 0));
        locks.map(|mut lock| lock.holders.remove(0)).collect()
    };
    for (from, to, expected) in [
        (&[1][..], &[2][..], 1),
        (&[1], &[1], 0),
        (&[], &[1], 0),
        (&[1], &[], 0),
        (&[1, 2, 3], &[3, 4], 1),
        (&[1, 2], &[3, 4], 2),
        (&[1, 2], &[1, 2, 3], 0),
        (&[1], &[2, 3, 4], 1),
    ] {
        assert_eq!(
            passed(&holders(from), &holders(to)),
            expected,
            "{from:?} {to:?}"
        );
    }
    let (mut board, _) = four();
    let count = |board: &Board, now_ms| {
        let mut handovers = Handovers::new(now_ms);
        handovers.add(now_ms, 0);
        board.handovers.since(None).unwrap().1.iter().sum::<u32>()
    };
    // After a connection loss, all locks are read again, and the board counts no hand-overs.
    let all = change([lock("a", 9, 1, 0)], &[]);
    board.apply(
        News::Locks {
            change: all,
            all: true,
        },
        NOW_MS,
        Instant::now(),
    );
    news(
        &mut board,
        NOW_MS,
        &[lock("a", 10, 1, 0), lock("new", 11, 1, 0)],
        &["b"],
    );
    board.handovers.advance(NOW_MS + 1_000);
    assert_eq!(count(&board, NOW_MS), 1);
}

#[test]
fn hand_overs_are_kept_by_the_second() {
    let mut handovers = Handovers::new(5_500);
    assert_eq!(handovers.since(None), Some((5, vec![0; SECONDS])));
    assert_eq!(handovers.since(Some(5)), None);
    handovers.add(5_999, 2);
    handovers.add(6_000, 3);
    assert_eq!(handovers.since(Some(5)), Some((6, vec![2])));
    handovers.advance(9_000);
    assert_eq!(handovers.since(Some(5)), Some((9, vec![2, 3, 0, 0])));
    assert_eq!(handovers.since(Some(8)), Some((9, vec![0])));
    handovers.advance(9_000 + 31_536_000_000);
    assert_eq!(handovers.since(None).unwrap().1, vec![0; SECONDS]);
    handovers.add(20_000, 7);
    handovers.advance(21_000);
    let (end, counts) = handovers.since(Some(9_000_000)).unwrap();
    assert_eq!((end, counts.len(), counts[SECONDS - 1]), (21, SECONDS, 7));
    handovers.add(i64::MAX, usize::MAX);
    handovers.add(i64::MIN, usize::MAX);
    assert_eq!(handovers.since(Some(i64::MAX)).unwrap().1.len(), SECONDS);
    assert_eq!(handovers.since(Some(i64::MIN)).unwrap().1.len(), SECONDS);
}

#[test]
fn parameters_are_understood_or_refused() {
    let parsed = cursor("sort=waiters&reverse=true&filter=A+b%2Fc&offset=7&limit=9000&");
    let expected = Cursor {
        sort: Sort::Waiters,
        reverse: true,
        filter: "a b/c".into(),
        offset: 7,
        limit: 200,
    };
    assert_eq!(parsed, expected);
    assert_eq!(query::locks(None), query::locks(Some("")));
    let queue = query::queue(Some("path=%2Flocks%2Fa%252Fb&limit=0")).unwrap();
    assert_eq!((queue.path, queue.offset, queue.limit), (path("a/b"), 0, 1));
    for wrong in [
        "sort=",
        "reverse",
        "offset=-1",
        "limit=1.5",
        "filter=%C3",
        "x=1",
        "=",
        "path=/a",
    ] {
        assert!(query::locks(Some(wrong)).is_err(), "{wrong}");
    }
    for wrong in [
        "",
        "path",
        "path=a",
        "path=/",
        "path=/a/",
        "path=/%00",
        "path=/a&sort=name",
    ] {
        assert!(query::queue(Some(wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn access_is_by_host_site_leave_and_token() {
    let token = Token::random().unwrap();
    let bearer = format!("Bearer {}", token.reveal());
    assert!(!format!("{token:?}").contains(token.reveal()));
    let access = |is_private, allows_revoke| Access {
        token: Some(token.clone()),
        is_private,
        allows_revoke,
        hosts: vec!["locks.example".into()],
    };
    let status = |access: &Access, aim, headers: &[(&str, &str)]| {
        let mut request = Request::builder().uri("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let checked = access
            .check_host(&head)
            .and_then(|()| access.check(&head, aim));
        checked
            .err()
            .map_or(StatusCode::OK, |(status, _)| status)
            .as_u16()
    };
    let local = ("host", "localhost:2180");
    let proof = ("authorization", &*bearer);
    let (open, private) = (access(false, true), access(true, false));
    for (access, aim, headers, expected) in [
        (&open, Aim::Page, &[local][..], 200),
        (&open, Aim::Page, &[], 421),
        (&open, Aim::Read, &[local], 200),
        (
            &open,
            Aim::Read,
            &[local, ("origin", "http://localhost:2181")],
            403,
        ),
        (
            &open,
            Aim::Read,
            &[local, ("origin", "http://LOCALHOST:2180")],
            200,
        ),
        (&open, Aim::Revoke, &[local], 401),
        (&open, Aim::Revoke, &[local, proof], 200),
        (
            &open,
            Aim::Revoke,
            &[local, proof, ("sec-fetch-site", "cross-site")],
            403,
        ),
        (&open, Aim::Revoke, &[local, proof, proof], 401),
        (&private, Aim::Page, &[local], 200),
        (&private, Aim::Read, &[local], 401),
        (&private, Aim::Read, &[local, proof], 200),
        (&private, Aim::Revoke, &[local, proof], 403),
        (
            &private,
            Aim::Read,
            &[("host", "locks.example"), proof],
            200,
        ),
        (&private, Aim::Read, &[("host", "example"), proof], 421),
        (
            &Access::default(),
            Aim::Revoke,
            &[local, ("authorization", "Bearer ")],
            403,
        ),
    ] {
        assert_eq!(
            status(access, aim, headers),
            expected,
            "{aim:?} {headers:?}"
        );
    }
    let none = Access {
        token: None,
        ..access(true, true)
    };
    assert_eq!(
        status(&none, Aim::Read, &[local, ("authorization", "Bearer ")]),
        401
    );
}

#[test]
fn a_revocation_finds_the_very_holder_that_was_shown() {
    let mut queue: LockQueue = sample().1.clone();
    queue.holders = lock("a", 7, 1, 0).holders;
    queue.waiters = lock("a", 8, 1, 0).holders;
    let found = |entry: &str, number: i64| {
        let body = json!({ "path": "/locks/a", "entry": entry, "token": token(number).to_string(), "force": true });
        let revocation = Revocation::parse(body.to_string().as_bytes()).unwrap();
        match revocation.find(&queue) {
            Found::Holder(holder) => Some(holder.fencing_token == token(7)),
            Found::Another => None,
            Found::Nobody => panic!("there is one"),
        }
    };
    let (holder, waiter) = (&queue.holders[0].path, &queue.waiters[0].path);
    assert_eq!(found(holder.as_str(), 7), Some(true));
    for (entry, number) in [(holder, 8), (waiter, 7), (waiter, 8), (&path("a"), 7)] {
        assert_eq!(found(entry.as_str(), number), None, "{entry} {number}");
    }
    queue.holders.clear();
    let body = json!({ "path": "/a", "entry": "/a/b", "token": "7", "force": false });
    let revocation = Revocation::parse(body.to_string().as_bytes()).unwrap();
    assert_eq!(revocation.find(&queue), Found::Nobody);
}
