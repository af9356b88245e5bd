//! Tests of Lockkeeper's own operations: the negotiation on each connection, and watches on predecessors.

use super::*;
use crate::model::protocol::{Condition, GetPredecessor};
use crate::model::watch::{DeleteReason, EventKind, PredecessorGone};
use crate::wire::{Ahead, Departure, Handshake, OLDEST_EXTENSION, Op, put_departure};

const WATCH: i64 = -7;

impl World {
    fn asked_versions(&mut self) -> (i32, i32) {
        let frame = self.connect();
        let handshake = Handshake::read(&frame).unwrap();
        (handshake.request.protocol_version, handshake.version)
    }

    fn depart(&mut self, watch: i64, clear: bool) {
        let departure = Departure {
            watch,
            clear,
            reason: 1,
        };
        let mut frame = Vec::new();
        put_frame(&mut frame, |to| put_departure(&departure, 9, to));
        self.session.received(&frame, self.now);
    }

    fn blocked(&mut self, watch: i64) -> WatchKey {
        self.submit(1, enqueue());
        let sent = self.sent();
        assert_eq!(sent[0].op, Op::Enqueue.number());
        let ahead = Ahead::Blocked {
            by: "/q/lock-0000000000".into(),
            watch,
            count: -1,
        };
        let path = "/q/lock-0000000001".into();
        self.answer(sent[0].xid, &Response::Enqueued(path, 5, ahead));
        match self.outputs().pop() {
            Some(Output::Reply(1, Ok(Reply::Enqueued { path, czxid, ahead }))) => {
                assert_eq!((path.as_str(), czxid), ("/q/lock-0000000001", Zxid(5)));
                let Predecessor::Blocked { by, watcher, count } = ahead else {
                    panic!("{ahead:?}");
                };
                assert_eq!((by.as_str(), count), ("/q/lock-0000000000", None));
                watcher
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_enqueue_is_one_request_and_a_departure_its_event() {
    let mut world = World::open_with(EXTENSION);
    let key = world.blocked(WATCH);
    world.depart(WATCH, true);
    let outputs = world.outputs();
    let [
        Output::Event {
            key: fired,
            is_last: true,
            event,
        },
    ] = &outputs[..]
    else {
        panic!("{outputs:?}");
    };
    let gone = PredecessorGone::new(true, DeleteReason::Released);
    assert_eq!((*fired, event.predecessor_gone), (key, Some(gone)));
    assert_eq!(event.kind, EventKind::NodeDeleted);
    assert_eq!(
        (event.path.as_str(), event.zxid),
        ("/q/lock-0000000000", Some(Zxid(9)))
    );
    // The server has already removed the watch, so the client sends no removal.
    world.session.unwatch(key, world.now);
    assert!(world.sent().is_empty());
    world.depart(WATCH, true);
    assert!(world.outputs().is_empty());
}

#[test]
fn the_watch_of_a_dropped_watcher_is_forgotten_by_its_number() {
    let mut world = World::open_with(EXTENSION);
    let (first, second) = (world.blocked(WATCH), world.blocked(WATCH + 1));
    world.session.unwatch(first, world.now);
    let sent = world.sent();
    let forget = Incoming::read(&sent[0].frame).unwrap().request;
    let watch = wire::ForgetWatch { watch: WATCH };
    assert_eq!(forget, wire::Request::ForgetWatch(watch));
    // The server may have sent the event before it received the client's removal.
    world.depart(WATCH, true);
    world.refuse(sent[0].xid, Code::NoWatcher);
    assert!(world.outputs().is_empty());
    world.depart(WATCH + 1, false);
    let fired = world.outputs();
    assert!(
        matches!(fired[..], [Output::Event { key, .. }] if key == second),
        "{fired:?}"
    );
}

#[test]
fn watches_on_predecessors_end_with_their_connection() {
    let mut world = World::open_with(EXTENSION);
    let keys = [WATCH, WATCH + 1].map(|watch| world.blocked(watch));
    world.session.disconnected(world.now);
    assert_eq!(
        kinds(&world.outputs()),
        ["suspended"],
        "as long as nothing can be asked"
    );
    world.connect();
    world.welcome(ID, TIMEOUT);
    let [first, second] = keys.map(|key| format!("{key} unwatched"));
    assert_eq!(kinds(&world.outputs()), ["opened", &first, &second]);
    assert!(world.sent().is_empty(), "no setWatches has them");
    let key = world.blocked(WATCH);
    world.depart(WATCH, true);
    assert!(matches!(world.outputs()[..], [Output::Event { key: fired, .. }] if fired == key));
}

#[test]
fn each_connection_agrees_anew() {
    let mut world = World::open();
    world.submit(1, enqueue());
    assert_eq!(world.sent_ops(), [15, 8]);
    world.version = EXTENSION;
    world.session.disconnected(world.now);
    world.submit(2, enqueue());
    assert_eq!(world.asked_versions(), (OLDEST_EXTENSION, EXTENSION));
    world.welcome(ID, TIMEOUT);
    assert_eq!(world.sent_ops(), [Op::Enqueue.number()]);
    world.version = 0;
    world.reconnect(TIMEOUT);
    world.submit(3, enqueue());
    assert_eq!(world.sent_ops(), [15, 8]);
}

#[test]
fn a_server_of_version_3_is_sent_neither_conditions_nor_get_entry() {
    for (version, conditions, read) in [
        (OLDEST_EXTENSION, 0, Op::GetData),
        (EXTENSION, 1, Op::GetEntry),
    ] {
        let mut world = World::open_with(version);
        let Request::Enqueue(mut enqueue) = enqueue() else {
            panic!("an enqueue")
        };
        let (znode, limit) = (path("/s/leases"), 1);
        enqueue.conditions = vec![Condition::Children { znode, limit }];
        world.submit(1, Request::Enqueue(enqueue));
        world.submit(2, Request::MultiRead(vec![ReadOp::GetEntry(path("/q"))]));
        let sent = world.sent();
        let requests = sent
            .iter()
            .map(|it| Incoming::read(&it.frame).unwrap().request);
        let requests: Vec<_> = requests.collect();
        let [
            wire::Request::Enqueue(enqueue),
            wire::Request::MultiRead(reads),
        ] = &requests[..]
        else {
            panic!("{requests:?}");
        };
        assert_eq!(
            (enqueue.conditions.0.len(), reads[0].op()),
            (conditions, read)
        );
    }
}

#[test]
fn an_answer_that_was_not_asked_for_is_a_plain_server() {
    // ClickHouse's server answers its own clients with version 10.
    let mut world = World::open_with(10);
    world.submit(1, enqueue());
    assert_eq!(world.sent_ops(), [15, 8]);
}

#[test]
fn each_handshake_asks_for_the_extension_however_often_the_connection_breaks() {
    let mut world = World::new();
    for _ in 0..4 {
        assert_eq!(world.asked_versions(), (OLDEST_EXTENSION, EXTENSION));
        world.session.disconnected(world.now);
    }
    for _ in 0..4 {
        assert_eq!(world.asked_versions(), (OLDEST_EXTENSION, EXTENSION));
        world.wait_for_timeout();
        assert_eq!(kinds(&world.outputs()), ["disconnect"]);
    }
}

#[test]
fn the_other_requests_of_a_queue_have_operations_of_their_own() {
    let mut world = World::open_with(EXTENSION);
    let entry = path("/q/lock-0000000001");
    world.submit(
        1,
        Request::GetPredecessor(GetPredecessor {
            entry: entry.clone(),
            blockers: Blockers::Exclusive,
            conditions: Vec::new(),
            count: true,
        }),
    );
    world.submit(
        2,
        Request::GetQueue {
            parent: path("/q"),
            limit: 3,
        },
    );
    world.submit(3, Request::Withdraw { entry });
    let sent = world.sent();
    let ops = sent.iter().map(|it| it.op).collect::<Vec<_>>();
    assert_eq!(
        ops,
        [Op::GetPredecessor, Op::GetQueue, Op::Withdraw].map(Op::number)
    );
    world.answer(sent[0].xid, &Response::Ahead(Ahead::Gone));
    world.answer(sent[1].xid, &Response::Queue(vec!["x".into()], true));
    world.answer(sent[2].xid, &Response::Empty);
    let outputs = world.outputs();
    assert!(
        matches!(
            &outputs[..],
            [
                Output::Reply(1, Ok(Reply::Predecessor(Predecessor::Gone))),
                Output::Reply(2, Ok(Reply::Queue { names, sorted: true })),
                Output::Reply(3, Ok(Reply::Done)),
            ] if *names == ["x"]
        ),
        "{outputs:?}"
    );
}

#[test]
fn paths_of_a_queue_are_relative_to_the_chroot() {
    let mut world = World::open_with(EXTENSION);
    world.session.set_chroot(&path("/app"));
    world.submit(1, enqueue());
    let sent = world.sent();
    let asked = Incoming::read(&sent[0].frame).unwrap().request;
    assert!(matches!(asked, wire::Request::Enqueue(it) if it.parent.0 == "/app/q"));
    let ahead = Ahead::Blocked {
        by: "/app/q/a-0000000000".into(),
        watch: WATCH,
        count: 2,
    };
    let entry = "/app/q/lock-0000000001".into();
    world.answer(sent[0].xid, &Response::Enqueued(entry, 5, ahead));
    world.depart(WATCH, false);
    let outputs = world.outputs();
    assert!(
        matches!(
            &outputs[..],
            [
                Output::Reply(1, Ok(Reply::Enqueued { path, .. })),
                Output::Event { event, .. },
            ] if path.as_str() == "/q/lock-0000000001" && event.path.as_str() == "/q/a-0000000000"
        ),
        "{outputs:?}"
    );
}

#[test]
fn a_number_near_the_end_of_zookeepers_counter_is_refused_and_its_znode_deleted() {
    let created = |world: &mut World, number: &str| {
        let path = format!("/q/lock-{number}");
        let sent = world.sent();
        world.answer(
            sent[0].xid,
            &Response::Created(path.as_str().into(), Stat::default()),
        );
        world.answer(sent[1].xid, &Response::Names(vec![]));
        kinds(&world.outputs())
    };
    let mut world = World::open();
    world.submit(1, enqueue());
    assert_eq!(created(&mut world, "2146483646"), ["1 ok"]);
    world.submit(2, enqueue());
    let spent = Error::SequenceExhausted { path: "/q".into() };
    assert_eq!(created(&mut world, "2146483647"), [format!("2 {spent}")]);
    assert_eq!(world.sent_ops(), [Op::Delete.number()]);
    // The client repeats the delete on each connection until a server has answered it.
    world.reconnect(TIMEOUT);
    let sent = world.sent();
    assert_eq!(
        sent.iter().map(|it| it.op).collect::<Vec<_>>(),
        [Op::Delete.number()]
    );
    world.refuse(sent[0].xid, Code::NoNode);
    world.reconnect(TIMEOUT);
    assert!(world.sent().is_empty());

    let mut numbered = create("/q/lock-");
    numbered.mode = CreateMode::EphemeralSequential;
    world.outputs();
    world.submit(3, Request::Create(numbered.clone()));
    world.submit(4, Request::Multi(vec![WriteOp::Create(numbered)]));
    let sent = world.sent();
    let path = || "/q/lock--2147483648".into();
    world.answer(sent[0].xid, &Response::Created(path(), Stat::default()));
    let results = vec![Ok((
        Op::Create2,
        Response::Created(path(), Stat::default()),
    ))];
    world.answer(sent[1].xid, &Response::Multi(results));
    assert_eq!(
        kinds(&world.outputs()),
        [format!("3 {spent}"), format!("4 {spent}")]
    );
    assert_eq!(world.sent_ops(), [Op::Delete.number(); 2]);
}
