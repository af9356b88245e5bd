//! Small requests with large answers, and large requests.

use std::io::Write;

use testkit::wire::*;

use super::arena::{Field, MIB, fight};

const LARGE: usize = 1_000_000;

#[test]
fn a_multi_read_of_thirty_gigabytes_is_refused() {
    let attack = |field: &Field| {
        let mut conn = field.client();
        conn.must(op::CREATE, &create("/large", &vec![b'x'; LARGE], EPHEMERAL));
        let huge = multi_read(op::GET_DATA, "/large", 30_000);
        field.under_way();
        let mut count = 0;
        while count < 20 || !field.is_over() {
            let answer = conn.call(op::MULTI_READ, &huge).unwrap();
            assert_eq!((answer.err, answer.record.len()), (code::SYSTEM_ERROR, 0));
            count += 1;
        }
        let small = conn.must(op::MULTI_READ, &multi_read(op::GET_DATA, "/large", 2));
        assert!(small.record.len() > 2 * LARGE);
        format!("{count} requests for a znode of 1 MB, 30000 times each")
    };
    fight(&[], 64 * MIB, attack);
}

#[test]
fn long_lists_are_not_gathered_before_they_are_sent() {
    let attack = |field: &Field| {
        let mut conn = field.client();
        conn.must(op::CREATE, &create("/many", b"", 0));
        for first in (0..10_000).step_by(1_000) {
            for number in first..first + 1_000 {
                let path = format!("/many/{number:08}");
                conn.send(op::CREATE, &create(&path, b"", EPHEMERAL))
                    .unwrap();
            }
            for _ in 0..1_000 {
                assert_eq!(conn.answer().unwrap().err, 0);
            }
        }
        field.under_way();
        let mut count = 0;
        while count < 1_000 || !field.is_over() {
            let first = conn
                .send_many(500, op::GET_CHILDREN, &read("/many", false))
                .unwrap();
            for xid in first..first + 500 {
                let answer = conn.answer().unwrap();
                assert_eq!((answer.xid, answer.err), (xid, 0));
                assert_eq!(answer.record.len(), 4 + 10_000 * 12);
                count += 1;
            }
        }
        format!("{count} lists of 10000 children, 500 asked for at once")
    };
    // The limit covers the znodes, and the replies that may be queued for a client.
    fight(&["--max-outgoing", "16M"], 64 * MIB, attack);
}

#[test]
fn requests_that_never_end_go_when_others_need_the_room() {
    let attack = |field: &Field| {
        let mut large = Out::new().int(0x000f_ffff);
        large.0.resize(1_000_000, 0);
        let open = |_| {
            let mut conn = field.client();
            conn.stream.write_all(&large.0).unwrap();
            conn
        };
        let mut crowd: Vec<_> = (0..400).map(open).collect();
        field.under_way();
        // Only 268 of these requests fit into 256 MiB.
        for conn in crowd.drain(..130) {
            assert_eq!(conn.rest(), b"", "it is one of the oldest");
        }
        let data = vec![b'x'; 1_000_000];
        let mut honest = field.client();
        let mut count = 0;
        while count < 3 || !field.is_over() {
            honest.must(op::CREATE, &create("/large", &data, EPHEMERAL));
            honest.must(op::DELETE, &delete("/large"));
            count += 1;
        }
        format!("400 clients that send all but the end of a megabyte, and {count} whose end comes")
    };
    // The buffer of a growing request takes up to twice the size of its content.
    if let Some(outcome) = fight(&[], 2 * 256 * MIB + 32 * MIB, attack) {
        assert!(outcome.logged(&["incomplete request"]) >= 1);
    }
}

#[test]
fn a_store_that_is_full_says_so_and_goes_on() {
    let attack = |field: &Field| {
        let mut conn = field.client();
        conn.must(op::CREATE, &create("/full", b"", 0));
        let mut fill = |data: &[u8]| {
            let mut made = 0;
            loop {
                let path = format!("/full/{}-{made}", data.len());
                let answer = conn
                    .call(op::CREATE, &create(&path, data, EPHEMERAL))
                    .unwrap();
                match answer.err {
                    0 => made += 1,
                    code::SYSTEM_ERROR => return made,
                    other => panic!("{other}"),
                }
            }
        };
        // The well-behaved client also needs some memory.
        let made = fill(&vec![b'x'; LARGE]);
        assert!((40..100).contains(&made), "{made}");
        field.under_way();
        let mut count = 0;
        while !field.is_over() {
            let path = format!("/full/{LARGE}-0");
            for (op, record, err) in [
                (
                    op::CREATE,
                    create("/full/more", &vec![b'x'; LARGE], 0),
                    code::SYSTEM_ERROR,
                ),
                (
                    op::SET_DATA,
                    set_data("/full", &vec![b'x'; LARGE]),
                    code::SYSTEM_ERROR,
                ),
                (op::SET_DATA, set_data(&path, &vec![b'y'; LARGE]), 0),
                (op::DELETE, delete(&path), 0),
                (op::CREATE, create(&path, &vec![b'z'; LARGE], EPHEMERAL), 0),
            ] {
                let answer = conn.call(op, &record).unwrap();
                assert_eq!(answer.err, err, "{op}");
            }
            count += 1;
        }
        conn.must(op::CLOSE, &Out::new());
        format!("a store filled with {made} znodes of 1 MB, and worked on {count} times")
    };
    fight(&["--max-memory", "256M"], 248 * MIB, attack);
}
