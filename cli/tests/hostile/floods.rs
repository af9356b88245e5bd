//! Many requests and many watches.

use testkit::wire::*;

use super::arena::{Field, MIB, fight};

/// Keeps `window` requests in flight on one connection until the attack ends. Returns the number of replies.
fn flood(field: &Field, name: &str, window: i32) -> usize {
    let mut conn = field.client();
    let path = format!("/flood-{name}");
    conn.must(op::CREATE, &create(&path, &[b'x'; 100], EPHEMERAL));
    let requests = [
        (op::GET_DATA, read(&path, false)),
        (op::SET_DATA, set_data(&path, &[b'y'; 100])),
        (op::EXISTS, read(&path, false)),
        (op::GET_CHILDREN, read("/", false)),
    ];
    let mut count = 0;
    while !field.is_over() {
        let (op, record) = &requests[count % requests.len()];
        let first = conn.send_many(window, *op, record).unwrap();
        let (mut last, mut answers) = (0, 0);
        while answers < window {
            let answer = conn.answer().unwrap();
            assert_eq!((answer.xid, answer.err), (first + answers, 0), "in order");
            assert!(answer.zxid >= last, "{} after {last}", answer.zxid);
            last = answer.zxid;
            answers += 1;
        }
        count += 1;
    }
    count * window as usize
}

#[test]
fn a_flood_of_pipelined_requests_is_served_in_turn() {
    let attack = |field: &Field| {
        let total: usize = std::thread::scope(|scope| {
            let names = ["a", "b", "c", "d"];
            let floods: Vec<_> = names
                .map(|name| scope.spawn(move || flood(field, name, 2_000)))
                .into();
            field.under_way();
            floods.into_iter().map(|flood| flood.join().unwrap()).sum()
        });
        format!("{total} requests of 4 connections, 2000 under way on each")
    };
    fight(&[], 64 * MIB, attack);
}

/// Returns the setWatches request that Java's client sends after a reconnection. The server registers each watch,
/// unless it must fire immediately.
fn watches_of_missing(paths: std::ops::Range<usize>) -> Out {
    let mut record = Out::new().long(i64::MAX).int(0).int(paths.len() as i32);
    for number in paths {
        record = record.text(&format!("/missing/{number:07}"));
    }
    record.int(0)
}

const MOST_WATCHES: usize = 1 << 20;

#[test]
fn a_million_watches_are_armed_and_no_more() {
    let attack = |field: &Field| {
        let mut conn = field.client();
        let piece = 1 << 14;
        for piece in (0..MOST_WATCHES)
            .step_by(piece)
            .map(|from| from..from + piece)
        {
            let answer = conn.call(op::SET_WATCHES, &watches_of_missing(piece.clone()));
            assert_eq!(answer.unwrap().err, 0, "{piece:?}");
        }
        field.under_way();
        let mut refused = 0;
        while refused < 100 || !field.is_over() {
            for (op, record) in [
                (op::EXISTS, read("/one-more", true)),
                (op::GET_DATA, read("/", true)),
                (op::ADD_WATCH, Out::new().text("/one-more").int(0)),
                (
                    op::SET_WATCHES,
                    watches_of_missing(MOST_WATCHES..MOST_WATCHES + 2),
                ),
            ] {
                let answer = conn.call(op, &record).unwrap();
                assert_eq!(answer.err, code::SYSTEM_ERROR, "{op}: the limit is reached");
                refused += 1;
            }
        }
        // The existing watches are still registered, and fire.
        conn.must(op::GET_DATA, &read("/", false));
        conn.must(op::CREATE, &create("/missing", b"", 0));
        let xid = conn
            .send(op::CREATE, &create("/missing/0000007", b"", 0))
            .unwrap();
        let (event, answer) = (conn.answer().unwrap(), conn.answer().unwrap());
        assert_eq!((event.xid, answer.xid, answer.err), (EVENT, xid, 0));
        conn.must(op::CLOSE, &Out::new());
        assert_eq!(conn.rest(), b"");
        format!("{MOST_WATCHES} watches of one session, then {refused} refusals")
    };
    // The limit is twice the memory per watch that docs/operating.md states, because tables double their size when they
    // grow.
    fight(&[], 2 * 256 * MOST_WATCHES as u64, attack);
}

#[test]
fn sessions_that_watch_a_busy_znode_get_events_and_delay_no_client() {
    let attack = |field: &Field| {
        let mut writer = field.client();
        writer.must(op::CREATE, &create("/hot", b"", EPHEMERAL));
        let mut crowd: Vec<_> = (0..1_000).map(|_| field.client()).collect();
        field.under_way();
        let mut rounds = 0;
        while !field.is_over() {
            for conn in &mut crowd {
                conn.send(op::GET_DATA, &read("/hot", true)).unwrap();
            }
            for conn in &mut crowd {
                assert_eq!(conn.answer().unwrap().err, 0);
            }
            writer.must(op::SET_DATA, &set_data("/hot", b""));
            for conn in &mut crowd {
                assert_eq!(conn.answer().unwrap().xid, EVENT);
            }
            rounds += 1;
        }
        format!("1000 watchers of one znode, told {rounds} times")
    };
    fight(&[], 64 * MIB, attack);
}
