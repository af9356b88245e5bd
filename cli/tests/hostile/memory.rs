//! Clients that make the server store or build as much data as possible. The process stays within `--max-memory`, and
//! the well-behaved client does not notice the attack.

use std::io::Write;

use testkit::wire::*;

use super::arena::{Field, MIB, Outcome, fight};

const PROMISED: u64 = 256 * MIB;

/// Minimum memory of a server before its first request.
const AT_REST: u64 = 8 * MIB;

fn fight_for_memory(attack: impl FnOnce(&Field) -> String) -> Option<Outcome> {
    fight(&["--max-memory", "256M"], PROMISED - AT_REST, attack)
}

/// Returns a name with this many bytes, which differs for each number.
fn name_of(bytes: usize, number: usize) -> String {
    let number = number.to_string();
    "0".repeat(bytes - number.len()) + &number
}

#[test]
fn watched_paths_take_no_more_than_their_share() {
    let attack = |field: &Field| {
        let mut conn = field.client();
        let mut watched = 0;
        let refused = loop {
            let path = format!("/{}", name_of(1_000_000, watched));
            match conn.call(op::EXISTS, &read(&path, true)).unwrap().err {
                code::NO_NODE => watched += 1,
                err => break err,
            }
            assert!(watched < 400, "400 MB of watched paths are kept");
        };
        assert_eq!(refused, code::SYSTEM_ERROR);
        field.under_way();
        while !field.is_over() {
            let path = format!("/{}", name_of(1_000_000, watched));
            let answer = conn.call(op::EXISTS, &read(&path, true)).unwrap();
            assert_eq!(answer.err, code::SYSTEM_ERROR);
        }
        conn.must(op::CLOSE, &Out::new());
        format!("{watched} watches of absent paths of 1 MB each")
    };
    fight_for_memory(attack);
}

/// Returns the record of a create. Its access control list has entries for this many unknown users, and one that lets
/// every user read.
fn create_with_a_long_list(path: &str, entries: usize, user_bytes: usize) -> Out {
    let mut record = Out::new().text(path).bytes(b"").int(entries as i32 + 1);
    for number in 0..entries {
        let user = format!("{}:hash", name_of(user_bytes, number));
        record = record.int(31).text("digest").text(&user);
    }
    record.int(1).text("world").text("anyone").int(0)
}

#[test]
fn access_lists_in_answers_count() {
    let attack = |field: &Field| {
        let mut conn = field.client();
        let list = create_with_a_long_list("/listed", 1_000, 900);
        conn.must(op::CREATE, &list);
        let ask = |_| {
            let mut silent = field.client();
            silent
                .send_many(1_000, op::GET_ACL, &Out::new().text("/listed"))
                .unwrap();
            silent
        };
        let crowd: Vec<_> = (0..4).map(ask).collect();
        field.under_way();
        field.wait();
        format!(
            "{} clients that ask 1000 times for a list of 900 KB",
            crowd.len()
        )
    };
    fight_for_memory(attack);
}

#[test]
fn an_answer_that_is_too_large_is_not_built() {
    let attack = |field: &Field| {
        let mut conn = field.client();
        conn.must(op::CREATE, &create("/many", b"", 0));
        for number in 0..1_000 {
            let path = format!("/many/{}", name_of(1_000, number));
            conn.send(op::CREATE, &create(&path, b"", EPHEMERAL))
                .unwrap();
        }
        for _ in 0..1_000 {
            assert_eq!(conn.answer().unwrap().err, 0);
        }
        let huge = multi_read(op::GET_CHILDREN, "/many", 600);
        field.under_way();
        let mut count = 0;
        while count == 0 || !field.is_over() {
            let answer = conn.call(op::MULTI_READ, &huge).unwrap();
            assert_eq!((answer.err, answer.record.len()), (code::SYSTEM_ERROR, 0));
            count += 1;
        }
        conn.must(op::MULTI_READ, &multi_read(op::GET_CHILDREN, "/many", 1));
        format!("{count} requests for 1 MB of names, 600 times each")
    };
    fight_for_memory(attack);
}

/// Returns a transaction that changes the same znode this many times.
fn multi_set(path: &str, times: usize) -> Out {
    let mut record = Out::new();
    for _ in 0..times {
        record = record.int(op::SET_DATA).bool(false).int(-1);
        record.0.extend_from_slice(&set_data(path, b"").0);
    }
    record.int(-1).bool(true).int(-1)
}

#[test]
fn the_events_of_one_transaction_count() {
    let attack = |field: &Field| {
        let silent = |_| {
            let mut conn = field.client();
            conn.must(op::ADD_WATCH, &Out::new().text("/").int(1));
            conn
        };
        let crowd: Vec<_> = (0..100).map(silent).collect();
        let mut writer = field.client();
        writer.must(op::CREATE, &create("/a", b"", EPHEMERAL));
        writer.must(op::MULTI, &multi_set("/a", 20_000));
        field.under_way();
        field.wait();
        writer.must(op::CLOSE, &Out::new());
        format!("{} watchers of a transaction of 20000 changes", crowd.len())
    };
    fight_for_memory(attack);
}

#[test]
fn slow_readers_count_together() {
    let attack = |field: &Field| {
        let mut owner = field.client();
        owner.must(
            op::CREATE,
            &create("/large", &vec![b'x'; 1_000_000], EPHEMERAL),
        );
        let large = request(1, op::MULTI_READ, &multi_read(op::GET_DATA, "/large", 5));
        let silent = |_| {
            let mut conn = field.client();
            // The server may close the connection before everything is written.
            let _ = conn.stream.write_all(&large.repeat(10));
            conn
        };
        let crowd: Vec<_> = (0..120).map(silent).collect();
        field.under_way();
        let mut count = 0;
        while !field.is_over() {
            // The server does not cut off a client that reads its replies.
            owner.must(op::GET_DATA, &read("/large", false));
            count += 1;
        }
        format!(
            "{} that read nothing of 5 MB, beside one that read {count} MB",
            crowd.len()
        )
    };
    if let Some(outcome) = fight_for_memory(attack) {
        let log = &outcome.log;
        assert!(outcome.logged(&["does not read"]) >= 1, "{log:#?}");
    }
}

/// Sends a request without its end. The server may close the connection before everything is written.
fn unfinished(field: &Field) -> Conn {
    let mut conn = field.client();
    let mut part = Out::new().int(0x000f_ffff);
    part.0.resize(1_000_000, 0);
    let _ = conn.stream.write_all(&part.0);
    conn
}

/// Creates small znodes with these numbers, and watches as many missing paths. Returns `false` if the server has
/// refused any of these requests.
fn fill(conn: &mut Conn, numbers: std::ops::Range<usize>) -> bool {
    for number in numbers.clone() {
        let small = create(&format!("/small{number}"), b"", EPHEMERAL);
        conn.send(op::CREATE, &small).unwrap();
        let absent = read(&format!("/absent{number}"), true);
        conn.send(op::EXISTS, &absent).unwrap();
    }
    let answers = (0..2 * numbers.len()).map(|_| conn.answer().unwrap().err);
    answers.filter(|err| *err == code::SYSTEM_ERROR).count() == 0
}

#[test]
fn all_that_can_be_taken_at_once_is_within_the_promise() {
    let attack = |field: &Field| {
        let mut owner = field.client();
        let large = vec![b'x'; 1_000_000];
        owner.must(op::CREATE, &create("/large", &large, EPHEMERAL));
        owner.must(op::CREATE, &create("/many", b"", 0));
        for number in 0..1_000 {
            let path = format!("/many/{}", name_of(1_000, number));
            owner.must(op::CREATE, &create(&path, b"", EPHEMERAL));
        }
        // Fill the store first, with many small znodes and watches. The estimate of their memory is the least exact.
        let mut small = 0;
        while fill(&mut owner, small..small + 500) {
            small += 500;
        }
        let watcher = |_| {
            let mut conn = field.client();
            conn.must(op::ADD_WATCH, &Out::new().text("/large").int(1));
            conn
        };
        let watchers: Vec<_> = (0..50).map(watcher).collect();
        let halves: Vec<_> = (0..40).map(|_| unfinished(field)).collect();
        let reads = request(1, op::MULTI_READ, &multi_read(op::GET_DATA, "/large", 5));
        let silent = |_| {
            let mut conn = field.client();
            let _ = conn.stream.write_all(&reads.repeat(10));
            conn
        };
        let silent: Vec<_> = (0..60).map(silent).collect();
        owner.must(op::MULTI, &multi_set("/large", 20_000));
        let lists = multi_read(op::GET_CHILDREN, "/many", 6);
        owner.must(op::MULTI_READ, &lists);
        field.under_way();
        while !field.is_over() {
            owner.must(op::MULTI_READ, &lists);
        }
        drop((watchers, halves, silent));
        owner.must(op::CLOSE, &Out::new());
        format!("{small} watches, as many znodes, and all the rest")
    };
    fight_for_memory(attack);
}
