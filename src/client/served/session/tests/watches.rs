//! Tests of the number of events that watches fire, and of the removal of watches.

use super::*;

#[test]
fn a_watch_fires_once_for_each_of_its_watchers() {
    let mut world = World::open();
    world.submit(1, get("/a", true));
    world.submit(2, exists("/a", true));
    for sent in world.sent() {
        let response = match sent.op {
            4 => data(),
            _ => Response::Stat(Stat::default()),
        };
        world.answer(sent.xid, &response);
    }
    world.fire(3, "/a");
    world.fire(3, "/a");
    let changed = |key| format!("{key} NodeDataChanged /a");
    assert_eq!(
        kinds(&world.outputs()),
        ["1 ok", "2 ok", &changed(1), &changed(2)]
    );
}

#[test]
fn persistent_watches_go_on_and_are_interrupted_by_a_reconnection() {
    let mut world = World::open();
    let (at, mode) = (path("/a"), WatchMode::PersistentRecursive);
    world.submit(1, Request::AddWatch { path: at, mode });
    let sent = world.sent();
    world.answer(sent[0].xid, &Response::Watching(0));
    world.fire(1, "/a/b");
    world.fire(4, "/a");
    world.fire(2, "/a/b");
    world.fire(1, "/aside");
    let (made, gone) = ("1 NodeCreated /a/b", "1 NodeDeleted /a/b");
    assert_eq!(kinds(&world.outputs()), ["1 ok", made, gone]);
    world.reconnect(TIMEOUT);
    assert_eq!(
        kinds(&world.outputs()),
        ["suspended", "opened", "1 interrupted"]
    );
    assert_eq!(world.sent_ops(), [105]);
    world.fire(1, "/a/b");
    assert_eq!(kinds(&world.outputs()), [made]);
}

#[test]
fn the_last_watcher_takes_the_watch_back() {
    let mut world = World::open();
    for caller in [1, 2] {
        world.submit(caller, get("/a", true));
        let sent = world.sent();
        world.answer(sent[0].xid, &data());
    }
    world.session.unwatch(1, world.now);
    assert_eq!(world.sent_ops(), [0; 0]);
    world.session.unwatch(2, world.now);
    let sent = world.sent();
    let removal = Incoming::read(&sent[0].frame).unwrap().request;
    let (path, kind) = ("/a".into(), 2);
    let expected = wire::Request::RemoveWatches(wire::Watches { path, kind });
    assert_eq!(removal, expected);
    world.refuse(sent[0].xid, Code::NoWatcher);
    assert_eq!(kinds(&world.outputs()), ["1 ok", "2 ok"]);
}

#[test]
fn a_watch_that_is_being_armed_is_not_taken_back() {
    let mut world = World::open();
    world.submit(1, get("/a", true));
    let sent = world.sent();
    world.answer(sent[0].xid, &data());
    world.submit(2, get("/a", true));
    world.session.unwatch(1, world.now);
    let sent = world.sent();
    assert_eq!(sent.len(), 1, "{sent:?}");
    world.answer(sent[0].xid, &data());
    assert_eq!(world.sent_ops(), [0; 0]);

    world.submit(3, get("/a", true));
    world.session.unwatch(2, world.now);
    let sent = world.sent();
    world.refuse(sent[0].xid, Code::NoNode);
    assert_eq!(
        world.sent_ops(),
        [18],
        "no watcher has come: it was put off alone"
    );
}
