//! Small requests that cause much work. The well-behaved client keeps its session and its entries.

use testkit::wire::*;

use super::arena::{Field, MIB, fight};

/// Sends credentials, with the xid that the protocol reserves for them.
fn prove(conn: &mut Conn, secret: &str) {
    let record = Out::new().int(0).text("digest").text(secret);
    let frame = request(-4, op::AUTH, &record);
    std::io::Write::write_all(&mut conn.stream, &frame).unwrap();
    let answer = conn.answer().unwrap();
    assert_eq!((answer.xid, answer.err), (-4, 0), "{answer:?}");
}

/// Returns the record of a create whose access control list has this many entries. No entry matches this client.
fn create_listed(path: &str, entries: i32) -> Out {
    let mut record = Out::new().text(path).bytes(b"").int(entries);
    for number in 0..entries {
        let id = format!("somebody-{number}:hash");
        record = record.int(1).text("digest").text(&id);
    }
    record.int(0)
}

/// Returns a multiRead of 960 KB that reads the same znode many times, and the number of reads.
fn reads(path: &str) -> (Out, usize) {
    let one = Out::new().int(op::GET_DATA).bool(false).int(-1).0;
    let one = [one, read(path, false).0].concat();
    let count = (960 << 10) / one.len();
    let end = Out::new().int(-1).bool(true).int(-1).0;
    (Out([one.repeat(count), end].concat()), count)
}

fn make(conn: &mut Conn, parent: &str, count: usize, flags: i32) {
    for first in (0..count).step_by(1_000) {
        for number in first..first + 1_000 {
            let path = format!("{parent}/{number:08}");
            conn.send(op::CREATE, &create(&path, b"", flags)).unwrap();
        }
        for _ in 0..1_000 {
            assert_eq!(conn.answer().unwrap().err, 0);
        }
    }
}

/// Keeps 256 copies of a request in flight until the attack ends. Returns the number of replies.
fn flood(field: &Field, conn: &mut Conn, op: i32, record: &Out) -> usize {
    const WINDOW: i32 = 256;
    let mut count = 0;
    while count == 0 || !field.is_over() {
        let first = conn.send_many(WINDOW, op, record).unwrap();
        for at in 0..WINDOW {
            let answer = conn.answer().unwrap();
            assert_eq!((answer.xid, answer.err), (first + at, 0));
        }
        count += WINDOW as usize;
    }
    count
}

#[test]
fn a_long_list_is_not_compared_with_all_identities_for_each_of_many_reads() {
    let attack = |field: &Field| {
        let mut conn = field.client();
        for user in 0..63 {
            prove(&mut conn, &format!("user-{user}:secret"));
        }
        conn.must(op::CREATE, &create_listed("/l", 1_024));
        let (record, count) = reads("/l");
        field.under_way();
        let mut rounds = 0;
        while rounds < 3 || !field.is_over() {
            conn.must(op::MULTI_READ, &record);
            rounds += 1;
        }
        format!("{rounds} requests for {count} reads of a znode with 1024 entries, as 63 users")
    };
    fight(&[], 128 * MIB, attack);
}

#[test]
fn counts_of_descendants_touch_none_of_them() {
    let attack = |field: &Field| {
        let mut conn = field.client();
        conn.must(op::CREATE, &create("/top", b"", 0));
        make(&mut conn, "/top", 50_000, EPHEMERAL);
        field.under_way();
        let count = flood(field, &mut conn, op::COUNT, &Out::new().text("/top"));
        format!("{count} counts of 50000 znodes")
    };
    fight(&[], 128 * MIB, attack);
}

#[test]
fn a_search_among_many_ephemerals_is_cut() {
    let attack = |field: &Field| {
        let mut conn = field.client();
        conn.must(op::CREATE, &create("/top", b"", 0));
        make(&mut conn, "/top", 50_000, EPHEMERAL);
        field.under_way();
        let none = Out::new().text("/none");
        let count = flood(field, &mut conn, op::EPHEMERALS, &none);
        format!("{count} searches among 50000 ephemeral znodes")
    };
    fight(&[], 128 * MIB, attack);
}

#[test]
fn one_path_among_the_watches_again_and_again_is_one_watch() {
    const TIMES: i32 = 100_000;
    let attack = |field: &Field| {
        let crowd: Vec<_> = (0..1_000)
            .map(|_| {
                let mut conn = field.client();
                conn.must(op::GET_DATA, &read("/", true));
                conn
            })
            .collect();
        let mut conn = field.client();
        let mut record = Out::new().long(i64::MAX).int(TIMES);
        record
            .0
            .extend(Out::new().text("/").0.repeat(TIMES as usize));
        let record = record.int(0).int(0);
        field.under_way();
        let mut rounds = 0;
        while rounds < 3 || !field.is_over() {
            conn.must(op::SET_WATCHES, &record);
            rounds += 1;
        }
        drop(crowd);
        format!("{rounds} requests with one path {TIMES} times, which 1000 others watch")
    };
    fight(&[], 128 * MIB, attack);
}
