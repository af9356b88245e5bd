//! Lockkeeper's own operations, byte by byte as in `docs/protocol.md`, and a client that asks other servers for them.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper_store::{
    Call, ConnectOptions, CreateMode, DeleteReason, Error, Predecessor, connect_with,
};
use testkit::wire::{Conn, Out, Session, code, op};
use testkit::{Proxy, Served, unique, within_reason, zookeeper};

use crate::common::*;

const VERSION: i32 = 0x4c4b_0004;
const OLDEST: i32 = 0x4c4b_0003;
const ENQUEUE: i32 = 4001;
const GET_PREDECESSOR: i32 = 4002;
const GET_QUEUE: i32 = 4003;
const WITHDRAW: i32 = 4004;
const FORGET_WATCH: i32 = 4005;
const CHECK_DATA: i32 = 4006;
const CHECK_CHILDREN: i32 = 4007;
const NO_WATCHER: i32 = -121;
const DEPARTURE: i32 = -16;

/// Returns a handshake frame that offers a range of versions.
fn handshake(oldest: i32, newest: Option<i32>) -> Vec<u8> {
    let mut frame = Session::none(Duration::from_secs(30)).handshake();
    frame[4..8].copy_from_slice(&oldest.to_be_bytes());
    frame.extend(newest.iter().flat_map(|newest| newest.to_be_bytes()));
    let length = frame.len() as i32 - 4;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    frame
}

/// Makes a handshake. Returns the version in the server's answer.
fn agreed(conn: &mut Conn, oldest: i32, newest: Option<i32>) -> i32 {
    conn.stream.write_all(&handshake(oldest, newest)).unwrap();
    let mut length = [0; 4];
    conn.stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; i32::from_be_bytes(length) as usize];
    conn.stream.read_exact(&mut answer).unwrap();
    i32::from_be_bytes(answer[..4].try_into().unwrap())
}

fn extended(server: SocketAddr) -> Conn {
    let mut conn = Conn::bare(server).unwrap();
    assert_eq!(agreed(&mut conn, OLDEST, Some(VERSION)), VERSION);
    conn
}

fn enqueue(parent: &str, name: &str, queue_data: Option<&str>) -> Out {
    enqueue_behind(parent, name, &Out::new().int(0), queue_data)
}

fn enqueue_behind(parent: &str, name: &str, blockers: &Out, queue_data: Option<&str>) -> Out {
    let record = Out::new().text(parent).text(name).bytes(b"");
    let record = record.int(1).int(31).text("world").text("anyone");
    let record = record.and(blockers).bool(false);
    match queue_data {
        Some(data) => record.text(data),
        None => record.int(-1),
    }
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("another field");
        self.0 = rest;
        *field
    }

    fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.take())
    }

    fn long(&mut self) -> i64 {
        i64::from_be_bytes(self.take())
    }

    fn text(&mut self) -> String {
        let length = self.int() as usize;
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8(text.to_vec()).unwrap()
    }

    fn end(self) {
        assert!(self.0.is_empty(), "{:?}", self.0);
    }
}

#[test]
fn a_lock_is_entered_by_one_request_and_passed_on_by_one_event() {
    let server = Served::start(Duration::from_secs(60));
    let (mut holder, mut waiter) = (extended(server.address()), extended(server.address()));
    let held = holder.must(ENQUEUE, &enqueue("/x/q", "a-", Some("of the queue")));
    let mut fields = Fields(&held.record);
    assert_eq!(fields.text(), "/x/q/a-0000000000");
    assert_eq!((fields.long(), fields.int()), (held.zxid, 0));
    fields.end();
    let data = holder.must(op::GET_DATA, &testkit::wire::read("/x/q", false));
    assert_eq!(&data.record[4..16], b"of the queue");

    let waiting = waiter.must(ENQUEUE, &enqueue("/x/q", "b-", None));
    let mut fields = Fields(&waiting.record);
    let entry = fields.text();
    assert_eq!(entry, "/x/q/b-0000000001");
    assert_eq!((fields.long(), fields.int()), (waiting.zxid, 1));
    assert_eq!(fields.text(), "/x/q/a-0000000000");
    let (watch, count) = (fields.long(), fields.int());
    assert_eq!(count, -1);
    fields.end();

    holder.must(op::DELETE, &testkit::wire::delete("/x/q/a-0000000000"));
    let departure = waiter.answer().unwrap();
    assert_eq!((departure.xid, departure.err), (DEPARTURE, 0));
    let expected = Out::new().long(watch).bool(true).int(1);
    assert_eq!(departure.record, expected.0);

    let look = Out::new().text(&entry).int(0).bool(true);
    assert_eq!(
        waiter.must(GET_PREDECESSOR, &look).record,
        Out::new().int(0).0
    );
    let queue = waiter.must(GET_QUEUE, &Out::new().text("/x/q").int(0));
    assert_eq!(
        queue.record,
        Out::new().int(1).text("b-0000000001").bool(true).0
    );
}

/// The conditions of a semaphore: its permit count, and at most `limit` leases.
fn permits(number: &[u8], limit: i32) -> Out {
    let data = Out::new().int(CHECK_DATA).text("/s/permits").bytes(number);
    data.int(CHECK_CHILDREN).text("/s/leases").int(limit)
}

#[test]
fn the_head_of_a_queue_is_told_when_its_conditions_hold() {
    const BAD_ARGUMENTS: i32 = -8;
    let server = Served::start(Duration::from_secs(60));
    let (mut holder, mut waiter) = (extended(server.address()), extended(server.address()));
    for at in ["/s", "/s/locks", "/s/leases", "/s/leases/a", "/s/leases/b"] {
        holder.must(op::CREATE, &testkit::wire::create(at, b"", 0));
    }
    holder.must(op::CREATE, &testkit::wire::create("/s/permits", b"2", 0));
    let full = enqueue("/s/locks", "w-", None)
        .int(2)
        .and(&permits(b"2", 1));
    let first = waiter.must(ENQUEUE, &full);
    let mut fields = Fields(&first.record);
    assert_eq!(fields.text(), "/s/locks/w-0000000000");
    assert_eq!((fields.long(), fields.int()), (first.zxid, 1));
    assert_eq!(fields.text(), "/s/leases");
    let watch = fields.long();
    assert_eq!(fields.int(), -1);
    fields.end();
    // Queued behind the first, and requires that there are no leases.
    let empty = enqueue("/s/locks", "w-", None)
        .int(2)
        .and(&permits(b"2", 0));
    let second = waiter.must(ENQUEUE, &empty);
    let mut fields = Fields(&second.record);
    let (entry, _, _) = (fields.text(), fields.long(), fields.int());
    assert_eq!(fields.text(), "/s/locks/w-0000000000");
    let behind = fields.long();

    let clear = |watch: i64| Out::new().long(watch).bool(true).int(0).0;
    holder.must(op::DELETE, &testkit::wire::delete("/s/leases/a"));
    let turn = waiter.answer().unwrap();
    assert_eq!((turn.xid, turn.record), (DEPARTURE, clear(watch)));
    // Its predecessor leaves, but a lease is left. No event may arrive before this answer.
    waiter.must(WITHDRAW, &Out::new().text("/s/locks/w-0000000000"));
    let two = |number: &[u8], limit| Out::new().int(2).and(&permits(number, limit));
    let look = |blockers: &Out, conditions: &Out| {
        let record = Out::new().text(&entry).and(blockers);
        record.bool(false).and(conditions)
    };
    let all = &Out::new().int(0);
    // Blockers of a version 3 client, read as 0 because it counts the leases itself.
    let leases = &Out::new().int(2).int(0).long(0);
    let mut ahead = Vec::new();
    for (blockers, conditions, expected) in [
        (leases, Out::new(), 0),
        (all, two(b"2", 1), 0),
        (all, two(b"3", 0), 0),
        (all, two(b"2", 0), 1),
    ] {
        let answer = waiter.must(GET_PREDECESSOR, &look(blockers, &conditions));
        ahead = answer.record;
        assert_eq!(
            Fields(&ahead).int(),
            expected,
            "{blockers:?} {conditions:?}"
        );
    }
    let three = Out::new().int(3).and(&permits(b"2", 0));
    let three = three.int(CHECK_CHILDREN).text("/s").int(9);
    for (blockers, conditions) in [
        (all, two(b"2", -1)),
        (all, two(&[b'2'; 1025], 0)),
        (all, three),
        (&Out::new().int(3), Out::new()),
    ] {
        let refused = waiter.call(GET_PREDECESSOR, &look(blockers, &conditions));
        assert_eq!(refused.unwrap().err, BAD_ARGUMENTS, "{conditions:?}");
    }
    holder.must(op::DELETE, &testkit::wire::delete("/s/leases/b"));
    // The watch of the later look has replaced the one set by the enqueue.
    let mut fields = Fields(&ahead);
    assert_eq!((fields.int(), fields.text()), (1, "/s/leases".into()));
    let watch = fields.long();
    assert_ne!(watch, behind);
    assert_eq!(waiter.answer().unwrap().record, clear(watch));
}

#[test]
fn the_example_of_the_documentation_is_what_is_sent() {
    let server = Served::start(Duration::from_secs(60));
    let (mut holder, mut waiter) = (extended(server.address()), extended(server.address()));
    let page = std::fs::read_to_string("docs/protocol.md").unwrap();
    // Compares the frames' lengths and the numbers after them that are the same in each run.
    let line = |start: &str| page.lines().any(|line| line.starts_with(start));
    holder.must(ENQUEUE, &enqueue("/q", "a-", Some("")));
    let record = enqueue("/q", "b-", None);
    let sent = testkit::wire::request(1, ENQUEUE, &record).len() - 4;
    assert!(line(&format!("client  {sent:08x} 00000001 {ENQUEUE:08x}")));
    let waiting = waiter.must(ENQUEUE, &record);
    assert!(line(&format!(
        "server  {:08x} 00000001 ",
        16 + waiting.record.len()
    )));
    holder.must(op::DELETE, &testkit::wire::delete("/q/a-0000000000"));
    let departure = waiter.answer().unwrap();
    let length = 16 + departure.record.len();
    assert!(line(&format!(
        "server  {length:08x} {:08x} ",
        departure.xid
    )));
    let handshake = handshake(OLDEST, Some(VERSION)).len() - 4;
    assert!(line(&format!("client  {handshake:08x} {OLDEST:08x} ")));
}

#[test]
fn a_watch_is_forgotten_by_its_number_and_by_its_own_session_alone() {
    let server = Served::start(Duration::from_secs(60));
    let (mut holder, mut waiter) = (extended(server.address()), extended(server.address()));
    holder.must(ENQUEUE, &enqueue("/q", "a-", Some("")));
    let waiting = waiter.must(ENQUEUE, &enqueue("/q", "b-", None)).record;
    let mut fields = Fields(&waiting);
    let (_, _, _, _) = (fields.text(), fields.long(), fields.int(), fields.text());
    let watch = Out::new().long(fields.long());
    assert_eq!(holder.call(FORGET_WATCH, &watch).unwrap().err, NO_WATCHER);
    assert_eq!(waiter.call(FORGET_WATCH, &watch).unwrap().err, 0);
    assert_eq!(waiter.call(FORGET_WATCH, &watch).unwrap().err, NO_WATCHER);
    holder.must(WITHDRAW, &Out::new().text("/q/a-0000000000"));
    // No event may arrive before this answer.
    waiter.must(op::PING, &Out::new());
}

#[test]
fn nobody_is_answered_a_version_that_was_not_asked_for_and_its_operations_are_unknown() {
    let server = Served::start(Duration::from_secs(60));
    for (oldest, newest, agree_on) in [
        (OLDEST, None, OLDEST),
        (OLDEST, Some(OLDEST), OLDEST),
        (OLDEST, Some(VERSION + 1), VERSION),
        (VERSION, None, VERSION),
    ] {
        let mut conn = Conn::bare(server.address()).unwrap();
        assert_eq!(agreed(&mut conn, oldest, newest), agree_on);
        conn.must(GET_QUEUE, &Out::new().text("/").int(0));
    }
    for version in [0, 1, 10, OLDEST - 1, VERSION + 1, -1] {
        let mut conn = Conn::bare(server.address()).unwrap();
        assert_eq!(agreed(&mut conn, version, Some(version)), 0, "{version}");
        let refused = conn.call(GET_QUEUE, &Out::new().text("/").int(0)).unwrap();
        assert_eq!((refused.err, refused.zxid), (code::UNIMPLEMENTED, -1));
        assert_eq!(conn.rest(), b"");
    }
    for condition in [check_children("/", 9), check_data("/", b"")] {
        let mut conn = Conn::bare(server.address()).unwrap();
        assert_eq!(agreed(&mut conn, 0, None), 0);
        let refused = conn.call(op::MULTI, &multi(&[condition])).unwrap();
        assert_eq!((refused.err, refused.zxid), (code::UNIMPLEMENTED, -1));
        assert_eq!(conn.rest(), b"");
    }
}

fn check_data(path: &str, data: &[u8]) -> (i32, Out) {
    (CHECK_DATA, Out::new().text(path).bytes(data))
}

fn check_children(path: &str, limit: i32) -> (i32, Out) {
    (CHECK_CHILDREN, Out::new().text(path).int(limit))
}

fn multi(ops: &[(i32, Out)]) -> Out {
    let mut record = Out::new();
    for (kind, op) in ops {
        record = record.int(*kind).bool(false).int(-1);
        record.0.extend_from_slice(&op.0);
    }
    record.int(-1).bool(true).int(-1)
}

#[test]
fn conditions_of_a_multi_are_answered_as_checks_or_by_the_code_of_the_one_that_failed() {
    const CHECK: i32 = 13;
    let (bad_version, not_empty, bad_arguments) = (-103, -111, -8);
    let server = Served::start(Duration::from_secs(60));
    let mut conn = extended(server.address());
    conn.must(op::CREATE, &testkit::wire::create("/a", b"data", 0));
    let create = || (op::CREATE, testkit::wire::create("/a/b", b"", 0));
    let held = multi(&[
        check_data("/a", b"data"),
        check_children("/a", 0),
        check_children("/x", 0),
    ]);
    let checked = |record: Out| record.int(CHECK).bool(false).int(0);
    let expected = checked(checked(checked(Out::new())))
        .int(-1)
        .bool(true)
        .int(-1);
    assert_eq!(conn.must(op::MULTI, &held).record, expected.0);
    for (condition, code) in [
        (check_data("/a", b"other"), bad_version),
        (check_data("/x", b""), code::NO_NODE),
        (check_children("/", 0), not_empty),
        (check_children("/a", -1), bad_arguments),
    ] {
        let refused = conn.must(op::MULTI, &multi(&[create(), condition])).record;
        let failed = |record: Out, code: i32| record.int(-1).bool(false).int(code).int(code);
        let expected = failed(failed(Out::new(), 0), code)
            .int(-1)
            .bool(true)
            .int(-1);
        assert_eq!(refused, expected.0);
    }
    assert_eq!(
        conn.call(op::EXISTS, &testkit::wire::read("/a/b", false))
            .unwrap()
            .err,
        code::NO_NODE
    );
    // Neither is an operation on its own.
    for (kind, record) in [check_data("/a", b"data"), check_children("/a", 9)] {
        let mut conn = extended(server.address());
        let refused = conn.call(kind, &record).unwrap();
        assert_eq!(refused.err, code::UNIMPLEMENTED);
    }
}

#[test]
fn a_real_server_ignores_the_version() {
    let mut conn = Conn::bare(zookeeper().address()).unwrap();
    assert_eq!(agreed(&mut conn, OLDEST, Some(VERSION)), 0);
    conn.must(op::EXISTS, &testkit::wire::read("/zookeeper", false));
}

/// How our client queues at a server that only speaks ZooKeeper's protocol.
#[tokio::test]
async fn a_client_makes_do_with_a_server_that_does_not_know_it() {
    within_reason(async {
        let server = zookeeper();
        let url = format!("lockkeeper://{}/{}", server.hosts(), unique("plain"));
        let client = connect_with(url.as_str(), ConnectOptions::new().create_chroot()).await;
        let session = client.unwrap().session().await.unwrap();
        let missing = session.enqueue(entry("/q", "a-")).await.unwrap_err();
        assert_eq!(missing, no_node("/q"));
        session
            .create(&path("/q"), "", CreateMode::Container)
            .await
            .unwrap();
        let (first, _, _) = session.enqueue(entry("/q", "a-")).await.unwrap();
        let (_, _, ahead) = session.enqueue(entry("/q", "b-")).await.unwrap();
        let Predecessor::Listed(names) = ahead else {
            panic!("{ahead:?}");
        };
        assert_eq!(names.len(), 2);
        session.withdraw(&first).await.unwrap();
    })
    .await;
}

/// Repeats a request that a lost connection interrupts.
async fn retried<T>(mut request: impl FnMut() -> Call<T>) -> T {
    loop {
        match request().await {
            Err(Error::ConnectionLoss) => {}
            reply => return reply.unwrap(),
        }
    }
}

/// A proxy changes the handshakes of a living session, as if its server were replaced by one without the extension and
/// then by one with it.
#[tokio::test]
async fn a_waiter_outlives_a_server_that_forgets_the_extension() {
    within_reason(async {
        let server = Served::start(Duration::from_secs(60));
        let proxy = Proxy::to(server.address());
        let url = format!("lockkeeper://{}", proxy.hosts());
        let client = connect_with(url.as_str(), ConnectOptions::new())
            .await
            .unwrap();
        let session = client.session().await.unwrap();
        session
            .create(&path("/q"), "", CreateMode::Persistent)
            .await
            .unwrap();
        let direct = format!("lockkeeper://{}", server.hosts());
        let other = connect_with(direct.as_str(), ConnectOptions::new());
        let other = other.await.unwrap().session().await.unwrap();
        let (held, _, _) = other.enqueue(entry("/q", "a-")).await.unwrap();
        let (_, _, ahead) = session.enqueue(entry("/q", "b-")).await.unwrap();
        let Predecessor::Blocked { watcher, .. } = ahead else {
            panic!("{ahead:?}");
        };
        proxy.speak_plainly(true);
        proxy.break_off();
        // The watch ended with its connection, and the client reports that on the next.
        let lost = watcher.await.unwrap_err();
        assert_eq!(lost, Error::ConnectionLoss);
        let (_, _, ahead) = session.enqueue(entry("/q", "c-")).await.unwrap();
        assert!(matches!(ahead, Predecessor::Listed(names) if names.len() == 3));

        proxy.speak_plainly(false);
        proxy.break_off();
        let (_, _, ahead) = retried(|| session.enqueue(entry("/q", "d-"))).await;
        let Predecessor::Blocked { by, watcher, .. } = ahead else {
            panic!("{ahead:?}");
        };
        session.delete(&by, None).await.unwrap();
        let gone = watcher.await.unwrap().predecessor_gone.unwrap();
        assert_eq!((gone.clear, gone.reason), (false, DeleteReason::Released));
        other.delete(&held, None).await.unwrap();
    })
    .await;
}
