//! Sessions of other processes, over the ends of the store's.

use super::world::*;
use super::*;
use crate::backend::{Create, Reply, Request};
use crate::engine::remote::{Connection, Remote};
use crate::log::{Boot, Hand, SimDisk};

const TIMEOUT: Duration = Duration::from_secs(10);

struct Bench {
    disk: SimDisk,
    options: StoreOptions,
    clock: Clock,
}

impl Bench {
    fn new(durability: Durability) -> Self {
        let clock = Clock::new_virtual();
        Self {
            disk: SimDisk::new(),
            options: options(&clock).durability(durability),
            clock,
        }
    }

    fn open(&self) -> World {
        World::open(Boot::new(&self.disk), &self.options).unwrap()
    }

    /// The power fails; nothing that was not synced is left.
    fn crash(&self) {
        self.disk.crash_keeping(|| false);
    }
}

fn write_all(world: &mut World) {
    let hand = world.hand.as_mut().unwrap();
    while hand.write() || hand.make_room() {}
}

fn close(mut world: World) {
    drop(std::mem::take(&mut world.sessions));
    world.hand.take().map(Hand::close).unwrap();
}

fn opened(world: &mut World, remote: &Remote) -> Connection {
    let mut opening = Box::pin(remote.open(TIMEOUT));
    assert!(poll(&mut opening).is_pending(), "it is not synced yet");
    write_all(world);
    now(opening).unwrap()
}

fn create(at: &str, mode: CreateMode) -> Request {
    Request::Create(Create {
        path: path(at),
        data: bytes::Bytes::new(),
        mode,
        acl: Acl::open(),
    })
}

fn exists(world: &mut World, at: &str) -> bool {
    world.connect().unwrap();
    let asker = world.sessions.pop().unwrap();
    let (path, watch) = (path(at), false);
    let response = asker.backend.submit(Request::Exists { path, watch });
    write_all(world);
    match now(response).unwrap() {
        Reply::Exists { stat, .. } => stat.is_some(),
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn a_remote_session_and_what_it_holds_survive_a_crash_with_a_full_timeout() {
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let connection = opened(&mut world, &remote);
    let (id, password) = (connection.backend.status().id(), connection.password);
    let mut reply = connection
        .backend
        .submit(create("/e", CreateMode::Ephemeral));
    assert!(poll(&mut reply).is_pending(), "it is not synced yet");
    write_all(&mut world);
    now(reply).unwrap();
    bench.clock.advance(Duration::from_secs(9));
    bench.crash();
    drop((world, remote, connection));

    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    bench.clock.advance(Duration::from_secs(9));
    assert!(exists(&mut world, "/e"));
    assert!(now(remote.reattach(id, [0; 16], true)).unwrap().is_none());
    let connection = now(remote.reattach(id, password, true)).unwrap().unwrap();
    assert_eq!(connection.backend.status().timeout(), Some(TIMEOUT));
    bench.clock.advance(Duration::from_secs(9));
    assert!(exists(&mut world, "/e"));
    drop(connection);
    bench.clock.advance(Duration::from_secs(4));
    assert!(!exists(&mut world, "/e"));
    assert!(now(remote.reattach(id, password, true)).unwrap().is_none());
}

#[test]
fn a_session_that_nobody_takes_up_again_expires_after_a_restart() {
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let connection = opened(&mut world, &remote);
    drop(
        connection
            .backend
            .submit(create("/e", CreateMode::Ephemeral)),
    );
    write_all(&mut world);
    drop((remote, connection));
    close(world);
    let mut world = bench.open();
    assert!(exists(&mut world, "/e"));
    bench.clock.advance(TIMEOUT + Duration::from_secs(4));
    assert!(!exists(&mut world, "/e"));
}

#[test]
fn who_moves_to_another_connection_is_refused_on_the_former() {
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let former = opened(&mut world, &remote);
    let id = former.backend.status().id();
    let next = now(remote.reattach(id, former.password, true)).unwrap();
    assert!(!former.backend.status().is_alive());
    let refused = now(former.backend.submit(Request::Sync { path: path("/") }));
    assert_eq!(refused.unwrap_err(), Error::SessionMoved { session: id });
    drop(former);
    let sync = Request::Sync { path: path("/") };
    assert!(now(next.unwrap().backend.submit(sync)).is_ok());
}

/// What was there before a server came is logged late, as made once more; it dies with its process.
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

#[test]
fn with_delayed_restart_nobody_waits_for_what_dies_with_a_session() {
    let bench = Bench::new(Durability::DelayedRestart);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let _first = opened(&mut world, &remote);
    // The longest timeout is on the disk: another of that length waits for nothing.
    let second = now(remote.open(TIMEOUT)).unwrap();
    now(second.backend.submit(create("/e", CreateMode::Ephemeral))).unwrap();
    let mut reply = second.backend.submit(create("/p", CreateMode::Persistent));
    assert!(poll(&mut reply).is_pending());
    write_all(&mut world);
    now(reply).unwrap();
}

#[test]
fn with_delayed_restart_nobody_enters_after_a_crash_until_the_longest_timeout_has_passed() {
    let bench = Bench::new(Durability::DelayedRestart);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let connection = opened(&mut world, &remote);
    let (id, password) = (connection.backend.status().id(), connection.password);
    bench.crash();
    drop((world, remote, connection));

    for durability in [Durability::Fsync, Durability::DelayedRestart] {
        let options = bench.options.clone().durability(durability);
        let mut world = World::open(Boot::new(&bench.disk), &options).unwrap();
        let remote = world.store.attach().unwrap();
        let mut remotes = Box::pin(remote.open(TIMEOUT));
        let mut again = Box::pin(remote.reattach(id, password, true));
        let mut locals = world.store.connector().open(&ConnectOptions::new());
        bench.clock.advance(TIMEOUT);
        assert!(poll(&mut remotes).is_pending());
        assert!(poll(&mut again).is_pending());
        assert!(poll(&mut locals).is_pending());
        bench.clock.advance(TIMEOUT / 100);
        assert!(poll(&mut locals).is_ready());
        assert!(poll(&mut again).is_ready());
        if let Poll::Ready(opened) = poll(&mut remotes) {
            drop(opened.unwrap());
        } else {
            write_all(&mut world);
            drop(now(remotes).unwrap());
        }
        // Killed once more.
    }
}

#[test]
fn with_delayed_restart_all_may_enter_at_once_after_an_end_in_order() {
    let bench = Bench::new(Durability::DelayedRestart);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let connection = opened(&mut world, &remote);
    let (id, password) = (connection.backend.status().id(), connection.password);
    drop((remote, connection));
    close(world);
    let world = bench.open();
    let remote = world.store.attach().unwrap();
    now(remote.open(TIMEOUT)).unwrap();
    assert!(now(remote.reattach(id, password, true)).unwrap().is_some());
}
