//! Sessions of other processes, including when the store's process ends.

use super::bench::*;
use super::*;
use crate::engine::connection::{Connection, SessionRequest};
use crate::engine::outbox::{Ending, Message, Taken};
use crate::engine::remote::Remote;
use crate::model::protocol::{Reply, Request};

#[test]
fn a_remote_session_and_what_it_holds_survive_a_crash_with_a_full_timeout() {
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let connection = opened(&mut world, &remote);
    let (id, password) = (connection.id(), connection.password());
    ask(&connection, create("/e", CreateMode::Ephemeral));
    assert!(answer(&connection).is_none(), "it is not synced yet");
    write_all(&mut world);
    answer(&connection).unwrap().unwrap();
    bench.clock.advance(Duration::from_secs(9));
    bench.crash();
    drop((world, remote, connection));

    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    bench.clock.advance(Duration::from_secs(9));
    assert!(exists(&mut world, "/e"));
    assert!(taken_up(&remote, id, [0; 16]).is_none());
    let connection = taken_up(&remote, id, password).unwrap();
    assert_eq!(connection.timeout(), TIMEOUT);
    bench.clock.advance(Duration::from_secs(9));
    assert!(exists(&mut world, "/e"));
    drop(connection);
    bench.clock.advance(Duration::from_secs(4));
    assert!(!exists(&mut world, "/e"));
    assert!(taken_up(&remote, id, password).is_none());
}

#[test]
fn a_session_that_is_not_taken_up_again_expires_after_a_restart() {
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let connection = opened(&mut world, &remote);
    ask(&connection, create("/e", CreateMode::Ephemeral));
    write_all(&mut world);
    drop((remote, connection));
    close(world);
    let mut world = bench.open();
    assert!(exists(&mut world, "/e"));
    bench.clock.advance(TIMEOUT + Duration::from_secs(4));
    assert!(!exists(&mut world, "/e"));
}

#[test]
fn a_session_that_moves_is_refused_on_its_former_connection() {
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let former = opened(&mut world, &remote);
    let id = former.id();
    let next = taken_up(&remote, id, former.password()).unwrap();
    assert_eq!(told(&former).1, Taken::End(Ending::Moved));
    let sync = || Request::Sync { path: path("/") };
    ask(&former, sync());
    let (said, end) = told(&former);
    assert!(said.is_empty());
    assert_eq!(end, Taken::End(Ending::Moved));
    drop(former);
    ask(&next, sync());
    assert!(answer(&next).unwrap().is_ok());
}

#[test]
fn a_wrong_password_leaves_the_owner_s_connection_alone() {
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let owner = opened(&mut world, &remote);
    ask(&owner, create("/e", CreateMode::Ephemeral));
    write_all(&mut world);
    answer(&owner).unwrap().unwrap();
    assert!(taken_up(&remote, owner.id(), [0; 16]).is_none());
    assert_eq!(
        told(&owner).1,
        Taken::Nothing,
        "nobody has shown the password"
    );
    ask(&owner, Request::Sync { path: path("/") });
    assert!(answer(&owner).unwrap().is_ok());
    assert!(exists(&mut world, "/e"));
    let next = taken_up(&remote, owner.id(), owner.password());
    assert!(next.is_some(), "the password is still the session's");
    assert_eq!(told(&owner).1, Taken::End(Ending::Moved));
}

#[test]
fn messages_leave_in_the_order_of_their_events() {
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let (me, other) = (opened(&mut world, &remote), opened(&mut world, &remote));
    ask(&me, create("/a", CreateMode::Persistent));
    let watch = true;
    ask(
        &me,
        Request::GetData {
            path: path("/a"),
            watch,
        },
    );
    let (path_a, data) = (path("/a"), bytes::Bytes::from("new"));
    ask(
        &other,
        Request::SetData {
            path: path_a,
            data,
            version: None,
        },
    );
    ask(
        &me,
        Request::Exists {
            path: path("/a"),
            watch,
        },
    );
    ask(
        &me,
        Request::Delete {
            path: path("/a"),
            version: None,
        },
    );
    ask(&me, create("/e", CreateMode::Ephemeral));
    ask(
        &me,
        Request::Exists {
            path: path("/e"),
            watch,
        },
    );
    ask(&me, Request::Close);
    assert!(told(&me).0.is_empty(), "nothing is synced yet");
    write_all(&mut world);
    let (said, end) = told(&me);
    let said: Vec<_> = said
        .iter()
        .map(|what| match what {
            Message::WatchUpdate { news, .. } => {
                let event = news.event();
                format!("{:?} {}", event.kind, event.path)
            }
            Message::Answer { answer, .. } => answer.as_ref().map_or_else(
                |error| format!("{error}"),
                |reply| {
                    format!("{reply:?}")
                        .chars()
                        .take_while(|c| c.is_alphabetic())
                        .collect()
                },
            ),
        })
        .collect();
    let expected = [
        "Created",
        "Data",
        "NodeDataChanged /a",
        "Exists",
        "NodeDeleted /a",
        "Done",
        "Created",
        "Exists",
        "NodeDeleted /e",
        "Done",
    ];
    assert_eq!(said, expected);
    assert_eq!(end, Taken::End(Ending::Closed));
}

#[test]
fn a_client_that_does_not_read_is_cut_off_at_the_limit() {
    let store = Store::memory();
    let remote = store.attach().unwrap();
    let me = now(remote.open(TIMEOUT, 10_000)).unwrap();
    let other = now(remote.open(TIMEOUT, LIMIT)).unwrap();
    let mode = crate::model::watch::WatchMode::PersistentRecursive;
    ask(
        &me,
        Request::AddWatch {
            path: path("/"),
            mode,
        },
    );
    let mut count = 0;
    while me.outbox().is_cut().is_none() {
        ask(&other, create("/a-", CreateMode::PersistentSequential));
        assert!(answer(&other).unwrap().is_ok());
        count += 1;
    }
    assert!((50..200).contains(&count), "{count}");
    let (said, end) = told(&me);
    assert!(said.is_empty());
    assert_eq!(end, Taken::End(Ending::Overflow));
    assert!(
        taken_up(&remote, me.id(), me.password()).is_some(),
        "its session lives"
    );
}

#[derive(Default)]
struct Woken(std::sync::atomic::AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

#[test]
fn a_connection_that_takes_nothing_out_hears_of_its_end() {
    let store = Store::memory();
    let remote = store.attach().unwrap();
    let other = now(remote.open(TIMEOUT, LIMIT)).unwrap();
    let watching = || {
        let me = now(remote.open(TIMEOUT, 10_000)).unwrap();
        let mode = crate::model::watch::WatchMode::PersistentRecursive;
        let path = path("/");
        ask(&me, Request::AddWatch { path, mode });
        assert!(answer(&me).unwrap().is_ok());
        me
    };
    let write = || ask(&other, create("/a-", CreateMode::PersistentSequential));
    let woken = Arc::<Woken>::default();
    let waker = woken.clone().into();
    let is_woken = || woken.0.swap(false, std::sync::atomic::Ordering::SeqCst);

    let me = watching();
    me.outbox().register(&waker);
    write();
    assert!(is_woken(), "of the first event");
    me.outbox().register(&waker);
    while me.outbox().is_cut().is_none() {
        assert!(!is_woken(), "once is enough");
        write();
    }
    assert!(is_woken(), "of its end");

    let me = watching();
    write();
    me.outbox().register(&waker);
    let again = taken_up(&remote, me.id(), me.password());
    assert!(again.is_some() && is_woken(), "it has moved");
}

#[test]
fn an_answer_too_many_waits_until_the_client_has_read() {
    let store = Store::memory();
    let remote = store.attach().unwrap();
    let me = now(remote.open(TIMEOUT, LIMIT)).unwrap();
    let data = bytes::Bytes::from(vec![0; 200_000]);
    ask(
        &me,
        Request::SetData {
            path: path("/zookeeper"),
            data,
            version: None,
        },
    );
    let get = || {
        SessionRequest::Request(Request::GetData {
            path: path("/zookeeper"),
            watch: false,
        })
    };
    let mut asks = (0..10).map(|_| get()).collect();
    assert_eq!(me.submit(&mut asks), 2);
    assert_eq!(asks.len(), 8);
    assert_eq!(me.submit(&mut asks), 0, "nothing was read yet");
    assert_eq!(told(&me).0.len(), 3);
    assert_eq!(me.submit(&mut asks), 2);
}

#[test]
fn the_watches_of_a_connection_go_with_it_and_come_back_with_what_was_missed() {
    let store = Store::memory();
    let remote = store.attach().unwrap();
    let other = now(remote.open(TIMEOUT, LIMIT)).unwrap();
    let me = now(remote.open(TIMEOUT, LIMIT)).unwrap();
    for at in ["/changed", "/same", "/gone"] {
        ask(&other, create(at, CreateMode::Persistent));
    }
    ask(
        &me,
        Request::GetData {
            path: path("/same"),
            watch: true,
        },
    );
    let since = remote.last_zxid();
    let (id, password) = (me.id(), me.password());
    drop(me);
    ask(&other, create("/changed/child", CreateMode::Persistent));
    ask(&other, create("/new", CreateMode::Persistent));
    ask(
        &other,
        Request::Delete {
            path: path("/gone"),
            version: None,
        },
    );
    let data = bytes::Bytes::from("x");
    ask(
        &other,
        Request::SetData {
            path: path("/changed"),
            data: data.clone(),
            version: None,
        },
    );
    let me = taken_up(&remote, id, password).unwrap();
    let asked = crate::core::SetWatches {
        since,
        data: vec![path("/changed"), path("/same"), path("/gone")],
        exist: vec![path("/new"), path("/absent")],
        child: vec![path("/changed"), path("/same"), path("/gone")],
        persistent: vec![path("/same")],
        ..crate::core::SetWatches::default()
    };
    me.submit(&mut [SessionRequest::SetWatches(asked)].into());
    let (said, _) = told(&me);
    let said: Vec<_> = said
        .iter()
        .map(|what| match what {
            Message::WatchUpdate { news, .. } => {
                let event = news.event();
                format!("{:?} {} {:?}", event.kind, event.path, event.zxid)
            }
            Message::Answer { .. } => "answer".to_owned(),
        })
        .collect();
    let expected = [
        "NodeDataChanged /changed None",
        "NodeDeleted /gone None",
        "NodeCreated /new None",
        "NodeChildrenChanged /changed None",
        "NodeDeleted /gone None",
        "answer",
    ];
    assert_eq!(said, expected);
    let has = |which| {
        me.submit(&mut [SessionRequest::CheckWatches(path("/same"), which)].into());
        matches!(answer(&me), Some(Ok(Reply::Count(1))))
    };
    assert!(has(crate::core::WatchFilter::Data) && has(crate::core::WatchFilter::Child));
    assert!(has(crate::core::WatchFilter::Mode(
        crate::model::watch::WatchMode::Persistent
    )));
    let which = crate::core::WatchFilter::Any;
    me.submit(&mut [SessionRequest::RemoveWatches(path("/same"), which)].into());
    assert!(matches!(answer(&me), Some(Ok(Reply::Count(1)))));
    assert!(!has(which));
    ask(
        &other,
        Request::SetData {
            path: path("/same"),
            data,
            version: None,
        },
    );
    assert!(told(&me).0.is_empty());
}

#[test]
fn missed_changes_are_told_when_they_are_on_the_disk() {
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let (me, other) = (opened(&mut world, &remote), opened(&mut world, &remote));
    ask(&other, create("/new", CreateMode::Persistent));
    let asked = crate::core::SetWatches {
        exist: vec![path("/new")],
        ..crate::core::SetWatches::default()
    };
    me.submit(&mut [SessionRequest::SetWatches(asked)].into());
    assert!(told(&me).0.is_empty(), "it is not synced yet");
    write_all(&mut world);
    assert_eq!(told(&me).0.len(), 2, "the event, and the answer");
}

/// Attaching the server logs the znodes and sessions that existed before.
#[test]
fn with_a_server_the_sessions_of_before_enter_the_log() {
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    world.connect().unwrap();
    let backend = world.sessions[0].backend.clone();
    let mut made = Vec::new();
    for (at, mode) in [
        ("/q", CreateMode::Persistent),
        ("/q/e", CreateMode::Ephemeral),
        ("/q/s-", CreateMode::EphemeralSequential),
        ("/q/p-", CreateMode::PersistentSequential),
    ] {
        let reply = backend.submit(create(at, mode));
        write_all(&mut world);
        let Reply::Created { path, .. } = now(reply).unwrap() else {
            panic!()
        };
        made.push(path.to_string());
    }
    assert_eq!(made[2..], ["/q/s-0000000001", "/q/p-0000000002"]);
    let remote = world.store.attach().unwrap();
    write_all(&mut world);
    let late = backend.submit(create("/q/t-", CreateMode::EphemeralSequential));
    drop(backend.submit(Request::Delete {
        path: path("/q/e"),
        version: None,
    }));
    write_all(&mut world);
    let Reply::Created { path: late, .. } = now(late).unwrap() else {
        panic!()
    };
    assert!(late.name() > "t-0000000002");
    bench.crash();
    drop((world, remote, backend));

    let mut world = bench.open();
    assert_eq!(world.store.0.state.lock().core.session_images().count(), 0);
    for gone in ["/q/e", "/q/s-0000000001", late.as_str()] {
        assert!(!exists(&mut world, gone), "{gone}");
    }
    assert!(exists(&mut world, "/q/p-0000000002"));
    world.connect().unwrap();
    let backend = world.sessions[0].backend.clone();
    let reply = backend.submit(create("/q/u-", CreateMode::PersistentSequential));
    write_all(&mut world);
    let Reply::Created { path, .. } = now(reply).unwrap() else {
        panic!()
    };
    assert!(path.name()[2..] > late.name()[2..], "{path} after {late}");
}

/// A container belongs to no session, so its creator must find it again after a restart.
#[test]
fn a_container_of_another_process_is_on_the_disk_before_its_answer_leaves() {
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let connection = opened(&mut world, &remote);
    ask(&connection, create("/c", CreateMode::Container));
    assert!(answer(&connection).is_none(), "it is not synced yet");
    write_all(&mut world);
    answer(&connection).unwrap().unwrap();
    bench.crash();
    drop((world, remote, connection));
    assert!(exists(&mut bench.open(), "/c"));
}

fn prove(connection: &Connection) {
    let proved = Identity::proved("digest", b"alice:secret").unwrap();
    assert_eq!(
        connection.submit(&mut [SessionRequest::Identify(proved)].into()),
        1
    );
}

fn opened_unproven(remote: &Remote) -> Connection {
    match poll(&mut Box::pin(remote.open(TIMEOUT, LIMIT))) {
        Poll::Ready(opened) => opened.unwrap(),
        Poll::Pending => panic!("an unproven session waits for the log"),
    }
}

/// Unproven clients can neither fill the log nor make it sync.
#[test]
fn a_session_is_logged_when_it_is_proved_and_not_before() {
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap().requiring_proof(true);
    write_all(&mut world);
    let zxid = remote.last_zxid();
    let (unproven, proven) = (opened_unproven(&remote), opened_unproven(&remote));
    assert_eq!(remote.last_zxid(), zxid, "nothing has happened yet");
    unproven.submit(&mut [SessionRequest::Ping].into());
    assert!(answer(&unproven).unwrap().is_ok());

    prove(&proven);
    ask(&proven, create("/e", CreateMode::Ephemeral));
    assert!(told(&proven).0.is_empty(), "the session is not synced yet");
    write_all(&mut world);
    assert_eq!(told(&proven).0.len(), 2);
    let sessions = |unproven: &Connection, proven: &Connection| {
        [unproven, proven].map(|connection| (connection.id(), connection.password()))
    };
    let [left, kept] = sessions(&unproven, &proven);
    bench.crash();
    drop((world, remote, unproven, proven));

    let mut world = bench.open();
    let remote = world.store.attach().unwrap().requiring_proof(true);
    assert!(taken_up(&remote, left.0, left.1).is_none());
    let again = taken_up(&remote, kept.0, kept.1).unwrap();
    drop(again);
    assert!(exists(&mut world, "/e"), "a session was proved once");
}

/// A restart waits for the longest granted timeout, so the log must have the timeout before the client does.
#[test]
fn a_proof_is_answered_when_the_timeout_is_written_in_any_class() {
    for durability in [Durability::DelayedRestart, Durability::None] {
        let bench = Bench::new(durability);
        let mut world = bench.open();
        let remote = world.store.attach().unwrap().requiring_proof(true);
        write_all(&mut world);
        let connection = opened_unproven(&remote);
        prove(&connection);
        ask(&connection, create("/e", CreateMode::Ephemeral));
        let (said, taken) = told(&connection);
        let Taken::Held(bound) = taken else {
            panic!("it was told {said:?}, then {taken:?}");
        };
        let mut passage = connection.passage(bound);
        assert!(poll(&mut passage).is_pending());
        write_all(&mut world);
        now(passage).unwrap();
        assert_eq!(told(&connection).0.len(), 2);
    }
}

#[test]
fn unproven_sessions_take_no_places_of_proven_ones() {
    let options = StoreOptions::new().max_sessions(2);
    let store = Store::memory_with(options);
    let remote = store.attach().unwrap().requiring_proof(true);
    let open = || now(remote.open(TIMEOUT, LIMIT));
    let unproven: Vec<_> = (0..4).map(|_| open()).collect();
    let unproven: Vec<_> = unproven.into_iter().map(Result::unwrap).collect();
    let [one, other, third, ..] = &unproven[..] else {
        panic!("there are four");
    };
    for connection in [one, other] {
        prove(connection);
        assert!(answer(connection).unwrap().is_ok());
    }
    assert!(open().is_err(), "there are two sessions");
    prove(third);
    assert_eq!(told(third).1, Taken::End(Ending::Expired));
    ask(third, create("/e", CreateMode::Ephemeral));
    assert!(told(third).0.is_empty(), "it is over");
    ask(one, Request::Close);
    open().unwrap();
}
