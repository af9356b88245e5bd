//! Tests of the session against a scripted server, in virtual time.

mod extension;
mod outages;
mod watches;

use proptest::prelude::*;

use super::resume::REARMING_BYTES;
use super::*;
use crate::model::acl::Acl;
use crate::model::protocol::{Blockers, Enqueue, Op as WriteOp, OpReply};
use crate::model::types::{CreateMode, Stat};
use crate::model::watch::WatchMode;
use crate::wire::{
    Code, ConnectResponse, Incoming, Op, Reader, ReplyHeader, RequestHeader, Response,
    WatcherEvent, put_event,
};

pub(in crate::client::served) const TIMEOUT: Duration = Duration::from_secs(12);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const ID: i64 = 0x1234;
const PASSWORD: [u8; 16] = *b"sixteen letters.";

struct World {
    session: ClientSession<u32>,
    now: BootInstant,
    received: Frames,
    earlier: Vec<Output<u32>>,
    version: i32,
}

#[derive(Debug, PartialEq)]
struct Received {
    xid: i32,
    op: i32,
    frame: Vec<u8>,
}

pub(in crate::client::served) fn options() -> SessionOptions {
    SessionOptions {
        is_plain: false,
        servers: 1,
        tick: Duration::from_secs(2),
        timeout: TIMEOUT,
        close_timeout: TIMEOUT,
        auth: Vec::new(),
        process: None,
        longest_pause: LONGEST_PAUSE,
        seed: 7,
    }
}

impl World {
    fn new() -> Self {
        Self::of(options())
    }

    fn of(options: SessionOptions) -> Self {
        let now = BootInstant::from_nanos(1_000_000_000);
        Self {
            session: ClientSession::new(options, now),
            now,
            received: Frames::new(1 << 20),
            earlier: Vec::new(),
            version: 0,
        }
    }

    fn open() -> Self {
        Self::open_with(0)
    }

    fn open_with(version: i32) -> Self {
        let mut world = Self::new();
        world.version = version;
        world.connect();
        world.welcome(ID, TIMEOUT);
        assert!(matches!(world.outputs()[..], [Output::Opened(_)]));
        world
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.session.handle_timeout(self.now);
    }

    fn wait_for_timeout(&mut self) {
        let next = self.session.next_timeout().expect("it waits for a time");
        let now = self.now;
        self.wait(next.since(now));
    }

    fn connect(&mut self) -> Vec<u8> {
        self.wait_for_timeout();
        self.earlier = self.outputs();
        assert!(matches!(self.earlier.pop(), Some(Output::Connect(_))));
        self.received = Frames::new(1 << 20);
        self.session.connected(self.now);
        self.sent_frames().remove(0)
    }

    fn welcome(&mut self, id: i64, timeout: Duration) {
        let response = ConnectResponse {
            protocol_version: self.version,
            timeout_ms: timeout.as_millis() as i32,
            session: id,
            password: &PASSWORD,
            read_only: Some(false),
        };
        let mut frame = Vec::new();
        put_frame(&mut frame, |to| response.put(to));
        self.session.received(&frame, self.now);
    }

    fn reconnect(&mut self, timeout: Duration) {
        self.session.disconnected(self.now);
        self.connect();
        self.welcome(ID, timeout);
    }

    fn outputs(&mut self) -> Vec<Output<u32>> {
        let mut outputs = std::mem::take(&mut self.earlier);
        outputs.extend(std::iter::from_fn(|| self.session.next_output()));
        outputs
    }

    fn sent_frames(&mut self) -> Vec<Vec<u8>> {
        let bytes = self.session.outgoing().to_vec();
        self.session.advance(bytes.len());
        self.received.push(&bytes);
        let mut frames = Vec::new();
        while let Some(frame) = self.received.next().unwrap() {
            frames.push(frame.to_vec());
        }
        frames
    }

    fn sent(&mut self) -> Vec<Received> {
        let frames = self.sent_frames().into_iter();
        let read = frames.map(|frame| {
            let RequestHeader { xid, op } = Reader::new(&frame).next().unwrap();
            Received { xid, op, frame }
        });
        read.collect()
    }

    fn sent_ops(&mut self) -> Vec<i32> {
        self.sent().iter().map(|sent| sent.op).collect()
    }

    fn submit(&mut self, caller: u32, request: Request) {
        self.session.submit(caller, request, self.now);
    }

    fn answer(&mut self, xid: i32, response: &Response<'_>) {
        let bytes = reply_frame(xid, response);
        self.session.received(&bytes, self.now);
    }

    fn refuse(&mut self, xid: i32, code: Code) {
        let mut frame = Vec::new();
        put_frame(&mut frame, |to| ReplyHeader::new(xid, 5, code).put(to));
        self.session.received(&frame, self.now);
    }

    fn fire(&mut self, kind: i32, path: &str) {
        let bytes = event_frame(kind, path);
        self.session.received(&bytes, self.now);
    }
}

fn reply_frame(xid: i32, response: &Response<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    put_frame(&mut frame, |to| response.put_with_header(xid, 9, to));
    frame
}

fn event_frame(kind: i32, path: &str) -> Vec<u8> {
    let mut frame = Vec::new();
    let (state, path) = (3, path.into());
    let event = WatcherEvent { kind, state, path };
    put_frame(&mut frame, |to| put_event(&event, Some(9), to));
    frame
}

fn path(text: &str) -> ZnodePath {
    text.parse().unwrap()
}

fn get(at: &str, watch: bool) -> Request {
    let path = path(at);
    Request::GetData { path, watch }
}

fn exists(at: &str, watch: bool) -> Request {
    let path = path(at);
    Request::Exists { path, watch }
}

fn create(at: &str) -> Create {
    Create {
        path: path(at),
        data: "".into(),
        mode: CreateMode::Persistent,
        acl: Acl::open(),
    }
}

fn enqueue() -> Request {
    Request::Enqueue(Enqueue {
        parent: path("/q"),
        name: "lock-".into(),
        data: "".into(),
        acl: Acl::open(),
        blockers: Blockers::All,
        conditions: Vec::new(),
        count: false,
        queue_data: None,
    })
}

fn data() -> Response<'static> {
    Response::Data(b"x", Stat::default())
}

fn kinds(outputs: &[Output<u32>]) -> Vec<String> {
    let name = |output: &Output<u32>| match output {
        Output::Reply(caller, Ok(_)) => format!("{caller} ok"),
        Output::Reply(caller, Err(error)) => format!("{caller} {error}"),
        Output::Event { key, event, .. } => format!("{key} {:?} {}", event.kind, event.path),
        Output::Interrupted(key) => format!("{key} interrupted"),
        Output::Unwatched(key) => format!("{key} unwatched"),
        Output::Ended(end) => format!("{end:?}"),
        Output::Opened(_) => "opened".to_owned(),
        Output::Connect(_) => "connect".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    };
    outputs.iter().map(name).collect()
}

const LOST: &str = "the connection was lost before the answer came";

#[test]
fn requests_leave_together_and_are_answered_in_turn() {
    let mut world = World::open();
    world.submit(1, get("/a", false));
    world.submit(2, exists("/b", false));
    world.submit(3, Request::Create(create("/c")));
    let sent = world.sent();
    let ops = sent.iter().map(|sent| sent.op).collect::<Vec<_>>();
    assert_eq!(ops, [4, 3, 15]);
    let mut all = reply_frame(sent[0].xid, &data());
    let mut refused = Vec::new();
    let header = ReplyHeader::new(sent[1].xid, 5, Code::NoNode);
    put_frame(&mut refused, |to| header.put(to));
    all.extend(refused);
    let created = Response::Created("/c".into(), Stat::default());
    all.extend(reply_frame(sent[2].xid, &created));
    world.session.received(&all, world.now);
    assert_eq!(kinds(&world.outputs()), ["1 ok", "2 ok", "3 ok"]);
}

#[test]
fn a_reply_to_no_request_ends_the_connection_and_not_the_session() {
    let mut world = World::open();
    world.submit(1, get("/a", false));
    let sent = world.sent();
    world.answer(sent[0].xid + 1, &data());
    assert_eq!(
        kinds(&world.outputs()),
        ["disconnect", "suspended", &format!("1 {LOST}")]
    );
    world.connect();
    world.welcome(ID, TIMEOUT);
    assert_eq!(kinds(&world.outputs()), ["opened"]);
}

#[test]
fn a_request_under_way_is_lost_and_a_later_one_waits_for_the_connection() {
    let mut world = World::open();
    world.submit(1, get("/a", false));
    world.sent();
    world.session.disconnected(world.now);
    world.submit(2, get("/b", false));
    assert_eq!(kinds(&world.outputs()), ["suspended", &format!("1 {LOST}")]);
    let handshake = world.connect();
    let handshake = Reader::new(&handshake)
        .next::<ConnectRequest<'_>>()
        .unwrap();
    assert_eq!((handshake.session, handshake.password), (ID, &PASSWORD[..]));
    assert!(
        world.sent().is_empty(),
        "nothing is sent before the session is open"
    );
    world.welcome(ID, TIMEOUT);
    let sent = world.sent();
    world.answer(sent[0].xid, &data());
    assert_eq!(kinds(&world.outputs()), ["opened", "2 ok"]);
}

#[test]
fn a_silent_connection_is_pinged_and_then_given_up() {
    let mut world = World::open();
    world.wait_for_timeout();
    assert_eq!(world.sent_ops(), [11]);
    world.wait_for_timeout();
    assert_eq!(
        world.outputs().len(),
        2,
        "two thirds of the timeout have passed"
    );
    assert!(matches!(world.session.phase, Phase::Pausing(_)));
}

#[test]
fn replies_to_pings_keep_a_connection() {
    let mut world = World::open();
    for _ in 0..100 {
        world.wait_for_timeout();
        assert_eq!(world.sent_ops(), [11]);
        world.answer(xid::PING, &Response::Empty);
    }
    assert!(world.outputs().is_empty());
}

#[test]
fn attempts_pause_for_longer_and_longer_and_the_session_is_given_up_in_the_end() {
    let mut world = World::open();
    let begun = world.now;
    world.session.disconnected(world.now);
    assert_eq!(kinds(&world.outputs()), ["suspended"]);
    let mut pauses = Vec::new();
    let ended = loop {
        let before = world.now;
        world.wait_for_timeout();
        match kinds(&world.outputs())[..] {
            [ref connect] if connect == "connect" => pauses.push(world.now.since(before)),
            ref ended => break ended.to_vec(),
        }
        world.session.disconnected(world.now);
    };
    assert_eq!(ended, ["Expired"]);
    assert_eq!(world.now.since(begun), TIMEOUT * 14 / 10);
    assert_eq!(pauses[0], Duration::ZERO);
    assert!(
        pauses[1..5].windows(2).all(|two| two[0] < two[1]),
        "{pauses:?}"
    );
    assert!(pauses.iter().all(|pause| *pause <= LONGEST_PAUSE));
    world.submit(1, get("/a", false));
    let session = SessionId(ID);
    let expired = Error::SessionExpired { session };
    assert_eq!(kinds(&world.outputs()), [format!("1 {expired}")]);
}

/// A server may admit a session and then close the connection, for example on a request that it cannot read.
#[test]
fn a_server_that_closes_every_connection_is_tried_less_and_less_often() {
    let mut world = World::open();
    let start = world.now;
    for _ in 0..100 {
        world.reconnect(TIMEOUT);
    }
    assert!(world.now.since(start) > LONGEST_PAUSE * 30);
    // After the loss of a connection that has lasted, the client reconnects immediately.
    world.wait(LONGEST_PAUSE);
    let lost = world.now;
    world.reconnect(TIMEOUT);
    assert_eq!(world.now, lost);
}

#[test]
fn an_attempt_that_takes_too_long_makes_room_for_the_next() {
    let mut world = World::new();
    world.connect();
    world.wait_for_timeout();
    assert_eq!(kinds(&world.outputs()), ["disconnect"]);
    world.connect();
}

#[test]
fn a_server_that_does_not_know_the_session_has_expired_it() {
    let mut world = World::open();
    world.submit(1, get("/a", true));
    let sent = world.sent();
    world.answer(sent[0].xid, &data());
    world.session.disconnected(world.now);
    world.submit(2, get("/b", false));
    world.connect();
    world.outputs();
    world.welcome(0, Duration::ZERO);
    let session = SessionId(ID);
    let expired = Error::SessionExpired { session };
    assert_eq!(
        kinds(&world.outputs()),
        ["disconnect", "Expired", &format!("2 {expired}")]
    );
    assert_eq!(world.session.next_timeout(), None);
}

#[test]
fn the_timeout_of_the_last_handshake_counts() {
    let mut world = World::open();
    world.reconnect(TIMEOUT / 4);
    let outputs = world.outputs();
    let [_, Output::Opened(opened)] = outputs[..] else {
        panic!("{outputs:?}");
    };
    assert_eq!(opened.timeout, TIMEOUT / 4);
    let next = world.session.next_timeout().unwrap();
    assert_eq!(next.since(world.now), TIMEOUT / 12);
}

#[test]
fn watches_are_armed_again_in_pieces_behind_the_proofs_and_before_the_requests() {
    let mut world = World::open();
    let names: Vec<_> = (0..3_000).map(|n| format!("/{n:0100}")).collect();
    for name in &names {
        world.submit(0, get(name, true));
    }
    for sent in world.sent() {
        world.answer(sent.xid, &data());
    }
    let (scheme, secret) = ("digest".to_owned(), Secret::new("a:b"));
    world.submit(1, Request::AddAuth { scheme, secret });
    assert_eq!(world.sent_ops(), [100]);
    world.answer(xid::AUTH, &Response::Empty);
    world.session.disconnected(world.now);
    world.submit(2, exists("/last", false));
    world.outputs();
    world.connect();
    world.welcome(ID, TIMEOUT);
    let sent = world.sent();
    let ops: Vec<_> = sent.iter().map(|sent| sent.op).collect();
    assert_eq!(ops, [100, 101, 101, 101, 3]);
    let mut armed = Vec::new();
    for piece in &sent[1..4] {
        assert!(piece.frame.len() < REARMING_BYTES + 1_000);
        match Incoming::read(&piece.frame).unwrap().request {
            wire::Request::SetWatches(lists) => {
                assert_eq!(lists.relative_zxid, 9);
                armed.extend(lists.data.0.into_iter().map(|path| path.0.into_owned()));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(armed, names);
}

#[test]
fn all_servers_are_tried_in_turn_before_a_pause() {
    let mut world = World::of(SessionOptions {
        servers: 3,
        ..options()
    });
    let mut dials = Vec::new();
    while dials.len() < 6 {
        let before = world.now;
        world.wait_for_timeout();
        let Some(Output::Connect(dial)) = world.session.next_output() else {
            panic!("it gave up");
        };
        let is_paused = world.now > before;
        assert_eq!(is_paused, dials.len() > 3, "only the first round has none");
        dials.push((dial.round, dial.server));
        match dials.len() {
            1 => {
                world.wait_for_timeout();
                assert_eq!(world.now.since(before), TIMEOUT / 5);
                assert_eq!(kinds(&world.outputs()), ["disconnect"]);
            }
            _ => world.session.disconnected(world.now),
        }
    }
    assert_eq!(dials[0].1, dials[3].1, "the order stays");
    dials.sort_unstable();
    assert_eq!(dials, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
}

/// ZooKeeper before 3.6 answers a multiRead with `Unimplemented`, and then closes the connection.
#[test]
fn a_server_without_multi_read_is_asked_for_each_part() {
    let mut world = World::open();
    let ops = || [ReadOp::GetData, ReadOp::GetChildren, ReadOp::GetEntry].map(|op| op(path("/a")));
    world.submit(1, Request::MultiRead(ops().into()));
    world.submit(2, get("/b", false));
    let sent = world.sent();
    world.refuse(sent[0].xid, Code::Unimplemented);
    assert_eq!(
        kinds(&world.outputs()),
        ["disconnect", "suspended", &format!("2 {LOST}")]
    );
    world.connect();
    world.welcome(ID, TIMEOUT);
    world.submit(3, Request::MultiRead(ops().into()));
    let sent = world.sent();
    let ops: Vec<_> = sent.iter().map(|sent| sent.op).collect();
    assert_eq!(ops, [4, 8, 4, 4, 8, 4]);
    for sent in &sent[..4] {
        match sent.op {
            4 => world.answer(sent.xid, &data()),
            _ => world.refuse(sent.xid, Code::NoNode),
        }
    }
    let outputs = world.outputs();
    let [_, Output::Reply(1, Ok(Reply::MultiRead(parts)))] = &outputs[..] else {
        panic!("{outputs:?}");
    };
    assert!(matches!(
        parts[..],
        [
            ReadReply::Data { .. },
            ReadReply::Failed(Error::NoNode { .. }),
            ReadReply::Entry { .. }
        ]
    ));
    world.session.disconnected(world.now);
    assert_eq!(kinds(&world.outputs()), ["suspended", &format!("3 {LOST}")]);
    assert_eq!(world.session.held_bytes, 0);
}

#[test]
fn paths_are_relative_to_the_chroot() {
    let mut world = World::open();
    world.session.set_chroot(&path("/app"));
    world.submit(1, Request::Create(create("/a")));
    world.submit(2, exists("/", true));
    let prefix = path("/");
    world.submit(3, Request::GetEphemerals { prefix });
    let sent = world.sent();
    for (sent, expected) in sent.iter().zip(["/app/a", "/app", "/app"]) {
        let text = String::from_utf8_lossy(&sent.frame);
        assert!(text.contains(expected), "{text:?}");
    }
    let created = Response::Created("/app/a".into(), Stat::default());
    world.answer(sent[0].xid, &created);
    world.answer(sent[1].xid, &Response::Stat(Stat::default()));
    let names = ["/app/x", "/apple", "/app"].map(wire::Text::from);
    world.answer(sent[2].xid, &Response::Names(names.into()));
    world.fire(4, "/apple");
    world.fire(3, "/app");
    let outputs = world.outputs();
    assert!(
        matches!(&outputs[0], Output::Reply(1, Ok(Reply::Created { path, .. })) if path.as_str() == "/a")
    );
    assert!(
        matches!(&outputs[2], Output::Reply(3, Ok(Reply::Paths(paths))) if *paths == [path("/x"), path("/")])
    );
    assert_eq!(kinds(&outputs[3..]), ["1 NodeDataChanged /"]);
    world.submit(4, Request::Create(create("/b")));
    let sent = world.sent();
    let outside = Response::Created("/other/b".into(), Stat::default());
    world.answer(sent[0].xid, &outside);
    assert!(matches!(
        world.outputs()[..],
        [Output::Reply(4, Err(Error::Protocol(_)))]
    ));
}

#[test]
fn closing_ends_the_session_with_its_reply() {
    let mut world = World::open();
    world.submit(1, Request::Close);
    world.submit(2, get("/a", false));
    let sent = world.sent();
    assert_eq!(sent.len(), 1);
    world.answer(sent[0].xid, &Response::Empty);
    let session = SessionId(ID);
    let closed = Error::SessionClosed { session };
    assert_eq!(
        kinds(&world.outputs()),
        [&format!("2 {closed}"), "disconnect", "Closed", "1 ok"]
    );
}

#[test]
fn closing_has_a_limit_with_a_connection_and_without_one() {
    let closed_without_reply = |mut world: World| {
        world.submit(1, Request::Close);
        let begun = world.now;
        while !world.session.is_over() {
            world.wait_for_timeout();
            world.session.connected(world.now);
        }
        assert!(world.now.since(begun) <= TIMEOUT);
        let outputs = kinds(&world.outputs());
        assert!(outputs.contains(&"Closed".to_owned()), "{outputs:?}");
        assert!(outputs.contains(&format!("1 {LOST}")), "{outputs:?}");
    };
    closed_without_reply(World::open());
    let mut suspended = World::open();
    suspended.session.disconnected(suspended.now);
    closed_without_reply(suspended);
}

#[test]
fn an_enqueue_is_a_create_and_a_list() {
    let made = || Response::Created("/q/lock-0000000001".into(), Stat::default());
    let mut world = World::open();
    world.submit(1, enqueue());
    let sent = world.sent();
    assert_eq!(sent.iter().map(|it| it.op).collect::<Vec<_>>(), [15, 8]);
    world.answer(sent[0].xid, &made());
    assert!(world.outputs().is_empty());
    world.answer(sent[1].xid, &Response::Names(vec!["x".into()]));
    let listed = &world.outputs()[0];
    assert!(matches!(
        listed,
        Output::Reply(1, Ok(Reply::Enqueued { ahead: Predecessor::Listed(names), .. })) if *names == ["x"]
    ));

    // The reply contains the entry, although the list was lost.
    world.submit(2, enqueue());
    let sent = world.sent();
    world.answer(sent[0].xid, &made());
    world.session.disconnected(world.now);
    let outputs = world.outputs();
    assert!(matches!(
        outputs[1],
        Output::Reply(
            2,
            Ok(Reply::Enqueued {
                ahead: Predecessor::Unknown,
                ..
            })
        )
    ));

    world.connect();
    world.welcome(ID, TIMEOUT);
    world.outputs();
    world.submit(3, enqueue());
    let sent = world.sent();
    world.refuse(sent[0].xid, Code::NoNode);
    world.refuse(sent[1].xid, Code::NoNode);
    let missing = Error::NoNode { path: "/q".into() };
    assert_eq!(kinds(&world.outputs()), [format!("3 {missing}")]);
}

#[test]
fn a_refused_proof_ends_the_session() {
    let mut world = World::open();
    let (scheme, secret) = ("digest".to_owned(), Secret::new("a"));
    world.submit(1, Request::AddAuth { scheme, secret });
    world.submit(2, get("/a", false));
    world.sent();
    world.refuse(xid::AUTH, Code::AuthFailed);
    assert_eq!(
        kinds(&world.outputs()),
        [
            "disconnect",
            "AuthFailed",
            &format!("2 {LOST}"),
            "1 authentication failed"
        ]
    );
    assert!(world.session.is_refused());
}

#[test]
fn the_failed_operation_of_a_multi_is_named() {
    let mut world = World::open();
    let delete = |at: &str| WriteOp::Delete {
        path: path(at),
        version: None,
    };
    let ops = vec![WriteOp::Create(create("/a")), delete("/b"), delete("/c")];
    world.submit(1, Request::Multi(ops.clone()));
    world.submit(2, Request::Multi(ops));
    let sent = world.sent();
    let failed = [0, Code::NoNode.number(), -2].map(Err);
    world.answer(sent[0].xid, &Response::Multi(failed.into()));
    let done = vec![
        Ok((Op::Create2, Response::Created("/a".into(), Stat::default()))),
        Ok((Op::Delete, Response::Empty)),
        Ok((Op::Delete, Response::Empty)),
    ];
    world.answer(sent[1].xid, &Response::Multi(done));
    let outputs = world.outputs();
    let missing = Error::NoNode { path: "/b".into() };
    assert!(matches!(
        &outputs[0],
        Output::Reply(1, Err(Error::MultiFailed { index: 1, source })) if **source == missing
    ));
    let Output::Reply(2, Ok(Reply::Multi(replies))) = &outputs[1] else {
        panic!("{outputs:?}");
    };
    assert_eq!(replies[1..], [OpReply::Deleted, OpReply::Deleted]);
}

#[test]
fn requests_are_limited_by_number_and_by_bytes() {
    let mut world = World::open();
    world.session.disconnected(world.now);
    let large = |caller| {
        let (data, version) = (vec![0; 1 << 20].into(), None);
        let path = path("/a");
        let set = Request::SetData {
            path,
            data,
            version,
        };
        (caller, set)
    };
    for number in 0..300 {
        let (caller, set) = large(number);
        world.submit(caller, set);
    }
    let refused = kinds(&world.outputs()).len() - 1;
    assert_eq!(refused, 300 - 255, "255 of them and their framing fit");
    let mut many = World::open();
    for _ in 0..MAX_UNDER_WAY {
        many.submit(0, get("/a", false));
    }
    assert!(many.outputs().is_empty());
    many.submit(1, get("/a", false));
    assert_eq!(many.outputs().len(), 1);
    let sent = many.sent();
    many.answer(sent[0].xid, &data());
    many.outputs();
    many.submit(1, get("/a", false));
    assert!(many.outputs().is_empty());
}

fn conversation(world: &mut World) -> Vec<u8> {
    world.submit(1, get("/a", true));
    world.submit(2, exists("/b", true));
    world.submit(3, Request::Create(create("/c")));
    let sent = world.sent();
    [
        reply_frame(sent[0].xid, &data()),
        event_frame(3, "/a"),
        reply_frame(sent[1].xid, &Response::Stat(Stat::default())),
        event_frame(2, "/b"),
        reply_frame(
            sent[2].xid,
            &Response::Created("/c".into(), Stat::default()),
        ),
    ]
    .concat()
}

proptest! {
    #[test]
    fn pieces_of_any_size_mean_the_same(sizes in prop::collection::vec(1..40_usize, 1..200)) {
        let mut whole = World::open();
        let bytes = conversation(&mut whole);
        whole.session.received(&bytes, whole.now);
        let expected = kinds(&whole.outputs());
        prop_assert_eq!(expected.len(), 5);

        let mut pieces = World::open();
        let mut rest = &conversation(&mut pieces)[..];
        let mut told = Vec::new();
        for size in sizes.iter().cycle() {
            let (piece, left) = rest.split_at((*size).min(rest.len()));
            pieces.session.received(piece, pieces.now);
            told.extend(kinds(&pieces.outputs()));
            rest = left;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(told, expected);
    }

    #[test]
    fn no_bytes_of_a_server_stop_the_session(
        at in 0..400_usize,
        flips in prop::collection::vec((0..400_usize, any::<u8>()), 0..8),
    ) {
        let mut world = World::open();
        let mut bytes = conversation(&mut world);
        for (place, byte) in flips {
            let place = place % bytes.len();
            bytes[place] = byte;
        }
        bytes.truncate(at.min(bytes.len()));
        world.session.received(&bytes, world.now);
        world.session.disconnected(world.now);
        let replies = world.outputs().into_iter();
        let replied = replies.filter(|output| matches!(output, Output::Reply(..)));
        prop_assert_eq!(replied.count(), 3, "each request is answered once");
        world.connect();
        world.welcome(ID, TIMEOUT);
        prop_assert!(world.session.phase == Phase::Connected);
    }
}
