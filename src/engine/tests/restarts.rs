//! Sessions of other processes across restarts, copies and changes of the durability class. No session is admitted
//! while a client may still consider its ended session alive.

use super::bench::*;
use super::world::*;
use super::*;
use crate::engine::connection::Connection;
use crate::engine::remote::Remote;
use crate::log::{self, Boot, SimDisk, TempFolder, backup};
use crate::model::protocol::Request;
use crate::model::types::Zxid;

const ALL: [Durability; 3] = [
    Durability::Fsync,
    Durability::DelayedRestart,
    Durability::None,
];

/// The durability classes in which a kill may undo acknowledged writes of sessions.
const LAX: [Durability; 2] = [Durability::DelayedRestart, Durability::None];

/// The longest timeout that the store of a [`Bench`] grants, plus the margin of a pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(40_400);

/// Length of the pause after a run whose sessions had the timeout [`TIMEOUT`].
const PAUSE: Duration = Duration::from_millis(10_100);

impl Bench {
    fn open_as(&self, durability: Durability) -> World {
        let options = self.options.clone().durability(durability);
        World::open(Boot::new(&self.disk), &options).unwrap()
    }
}

fn entered(world: &mut World, remote: &Remote, timeout: Duration) -> Connection {
    let mut opening = Box::pin(remote.open(timeout, LIMIT));
    if let Poll::Ready(opened) = poll(&mut opening) {
        return opened.unwrap();
    }
    write_all(world);
    now(opening).unwrap()
}

fn holder(world: &mut World, remote: &Remote, timeout: Duration) -> Connection {
    let connection = entered(world, remote, timeout);
    ask(&connection, create("/held", CreateMode::Ephemeral));
    write_all(world);
    answer(&connection).unwrap().unwrap();
    connection
}

fn admits(world: &mut World, remote: &Remote) -> bool {
    let mut opening = Box::pin(remote.open(TIMEOUT, LIMIT));
    if poll(&mut opening).is_pending() {
        write_all(world);
        return poll(&mut opening).is_ready();
    }
    true
}

fn lives(world: &World, id: SessionId) -> bool {
    world.store.0.state.lock().core.slot_of(id).is_some()
}

fn killed_run(bench: &Bench, durability: Durability) -> (SessionId, [u8; 16]) {
    let mut world = bench.open_as(durability);
    let remote = world.store.attach().unwrap();
    let connection = holder(&mut world, &remote, TIMEOUT);
    (connection.id(), connection.password())
}

#[test]
fn an_acknowledged_release_is_not_undone_in_a_session_that_lives_on() {
    for durability in LAX {
        let bench = Bench::new(durability);
        let mut world = bench.open();
        let remote = world.store.attach().unwrap();
        let connection = holder(&mut world, &remote, TIMEOUT);
        let (id, password) = (connection.id(), connection.password());
        let (path, version) = (path("/held"), None);
        ask(&connection, Request::Delete { path, version });
        answer(&connection).unwrap().unwrap();
        drop((world, remote, connection));

        let mut world = bench.open();
        let remote = world.store.attach().unwrap();
        bench.clock.advance(PAUSE);
        assert!(taken_up(&remote, id, password).is_none(), "{durability:?}");
        assert!(!exists(&mut world, "/held"), "{durability:?}");
    }
}

#[test]
fn the_class_of_the_run_that_was_killed_decides() {
    for durability in LAX {
        let bench = Bench::new(durability);
        let (id, password) = killed_run(&bench, durability);
        let world = bench.open_as(Durability::Fsync);
        let remote = world.store.attach().unwrap();
        bench.clock.advance(PAUSE);
        assert!(taken_up(&remote, id, password).is_none(), "{durability:?}");
    }
    for durability in ALL {
        let bench = Bench::new(durability);
        let (id, password) = killed_run(&bench, Durability::Fsync);
        let mut world = bench.open_as(durability);
        let remote = world.store.attach().unwrap();
        assert!(taken_up(&remote, id, password).is_some(), "{durability:?}");
        assert!(exists(&mut world, "/held"), "{durability:?}");
    }
}

#[test]
fn a_run_that_ends_in_the_pause_leaves_the_pause_to_the_next() {
    for durability in ALL {
        for is_killed in [false, true] {
            let bench = Bench::new(Durability::DelayedRestart);
            killed_run(&bench, Durability::DelayedRestart);
            for _ in 0..2 {
                let mut world = bench.open_as(durability);
                let remote = world.store.attach().unwrap();
                bench.clock.advance(TIMEOUT);
                assert!(!admits(&mut world, &remote));
                drop(remote);
                match is_killed {
                    true => write_all(&mut world),
                    false => close(world),
                }
            }
            let mut world = bench.open_as(durability);
            let remote = world.store.attach().unwrap();
            bench.clock.advance(TIMEOUT);
            assert!(!admits(&mut world, &remote), "{durability:?} {is_killed}");
            bench.clock.advance(TIMEOUT / 100);
            assert!(admits(&mut world, &remote), "{durability:?} {is_killed}");
        }
    }
}

#[test]
fn a_pause_that_is_over_is_not_made_again() {
    for enters in [false, true] {
        let bench = Bench::new(Durability::DelayedRestart);
        killed_run(&bench, Durability::DelayedRestart);
        let mut world = bench.open_as(Durability::Fsync);
        let remote = world.store.attach().unwrap();
        bench.clock.advance(PAUSE);
        if enters {
            assert!(admits(&mut world, &remote));
            drop((world, remote));
        } else {
            drop(remote);
            close(world);
        }
        let mut world = bench.open_as(Durability::DelayedRestart);
        let remote = world.store.attach().unwrap();
        assert!(admits(&mut world, &remote));
    }
}

#[test]
fn a_crash_after_a_change_of_durability_waits_for_the_sessions_of_before() {
    for durability in LAX {
        for is_killed in [false, true] {
            let bench = Bench::new(durability);
            let mut world = bench.open_as(Durability::Fsync);
            let remote = world.store.attach().unwrap();
            let connection = holder(&mut world, &remote, TIMEOUT);
            let (id, password) = (connection.id(), connection.password());
            drop((remote, connection));
            match is_killed {
                true => drop(world),
                false => close(world),
            }
            let mut world = bench.open();
            let remote = world.store.attach().unwrap();
            assert!(taken_up(&remote, id, password).is_some());
            write_all(&mut world);
            drop((world, remote));

            let mut world = bench.open();
            let remote = world.store.attach().unwrap();
            bench.clock.advance(TIMEOUT);
            assert!(!admits(&mut world, &remote), "{durability:?}");
            bench.clock.advance(TIMEOUT / 100);
            assert!(taken_up(&remote, id, password).is_none());
            assert!(admits(&mut world, &remote), "{durability:?}");
        }
    }
}

/// A client considers its session alive until the timeout has passed, even if the server is killed.
#[test]
fn a_restart_waits_for_every_timeout_that_a_client_was_told() {
    for durability in ALL {
        let bench = Bench::new(durability);
        let mut world = bench.open();
        let remote = world.store.attach().unwrap();
        let _longest = entered(&mut world, &remote, 2 * TIMEOUT);
        let short = holder(&mut world, &remote, TIMEOUT / 2);
        let (id, password) = (short.id(), short.password());
        let again = now(remote.reattach(id, password, 4 * TIMEOUT, LIMIT));
        let told = again.unwrap().unwrap().timeout();
        write_all(&mut world);
        drop((world, remote, short));

        let world = bench.open();
        drop(poll(
            &mut world.store.connector().open(&ConnectOptions::new()),
        ));
        bench.clock.advance(told);
        let is_paused = world.store.0.pause().is_some();
        assert!(is_paused || lives(&world, id), "{durability:?}: {told:?}");
    }
}

/// With `Durability::None`, only an answer that grants a longer timeout waits for the log, because a restart must know
/// the timeout.
#[test]
fn a_client_is_told_of_a_longer_timeout_when_the_log_has_it() {
    for durability in ALL {
        let bench = Bench::new(durability);
        let mut world = bench.open();
        let remote = world.store.attach().unwrap();
        let _first = entered(&mut world, &remote, TIMEOUT / 2);
        let mut opening = Box::pin(remote.open(TIMEOUT, LIMIT));
        assert!(poll(&mut opening).is_pending(), "{durability:?}");
        write_all(&mut world);
        now(opening).unwrap();
    }
}

#[test]
fn a_client_is_told_of_a_timeout_that_the_log_is_about_to_have_when_it_has_it() {
    for durability in ALL {
        let bench = Bench::new(durability);
        let mut world = bench.open();
        let remote = world.store.attach().unwrap();
        let mut first = Box::pin(remote.open(TIMEOUT, LIMIT));
        assert!(poll(&mut first).is_pending(), "{durability:?}");
        let mut second = Box::pin(remote.open(TIMEOUT, LIMIT));
        assert!(poll(&mut second).is_pending(), "{durability:?}");
        write_all(&mut world);
        now(first).unwrap();
        now(second).unwrap();
    }
}

#[test]
fn a_lower_limit_of_timeouts_does_not_shorten_the_pause() {
    let bench = Bench::new(Durability::DelayedRestart);
    killed_run(&bench, Durability::DelayedRestart);
    let options = bench.options.clone();
    let options = options.session_timeouts(TIMEOUT / 10, TIMEOUT / 5);
    let mut world = World::open(Boot::new(&bench.disk), &options).unwrap();
    let remote = world.store.attach().unwrap();
    bench.clock.advance(TIMEOUT);
    assert!(!admits(&mut world, &remote));
    bench.clock.advance(TIMEOUT / 100);
    assert!(admits(&mut world, &remote));
}

/// The original may have continued to run. It may have released locks that the copy still has, and granted longer
/// timeouts.
#[test]
fn a_copy_has_no_sessions_and_admits_none_while_those_of_the_original_are_believed() {
    for durability in ALL {
        for is_clean in [false, true] {
            let original = Bench::new(durability);
            let mut world = original.open();
            let remote = world.store.attach().unwrap();
            let connection = holder(&mut world, &remote, TIMEOUT);
            let (id, password) = (connection.id(), connection.password());
            drop((remote, connection));
            if is_clean {
                close(world);
            }
            let copy = Bench {
                disk: original.disk.copy(),
                ..original
            };
            for _ in 0..2 {
                let mut world = copy.open();
                let remote = world.store.attach().unwrap();
                copy.clock.advance(LONGEST_PAUSE - TIMEOUT / 100);
                assert!(!admits(&mut world, &remote), "{durability:?}");
            }
            let mut world = copy.open();
            let remote = world.store.attach().unwrap();
            copy.clock.advance(LONGEST_PAUSE);
            assert!(taken_up(&remote, id, password).is_none(), "{durability:?}");
            assert!(!exists(&mut world, "/held"), "{durability:?}");
            assert!(admits(&mut world, &remote), "{durability:?}");
        }
    }
}

/// The original store may have granted longer timeouts after the backup.
#[test]
fn a_restored_store_waits_for_every_timeout_that_was_allowed() {
    let folder = TempFolder::new();
    let [data, backup, restored] =
        ["data", "backup", "restored"].map(|name| folder.path().join(name));
    let clock = Clock::new_virtual();
    let opened = |at, longest| {
        let options = options(&clock).session_timeouts(TIMEOUT / 10, longest);
        Store::file_with(at, options).unwrap()
    };
    let store = opened(&data, 4 * TIMEOUT);
    let remote = store.attach().unwrap();
    let connection = wait(remote.open(TIMEOUT, LIMIT)).unwrap();
    let (id, password) = (connection.id(), connection.password());
    log::backup::backup(&data, &backup).unwrap();
    drop((store, remote, connection));
    log::backup::restore(&backup, &restored).unwrap();

    for longest in [TIMEOUT, TIMEOUT / 2] {
        let store = opened(&restored, longest);
        clock.advance(LONGEST_PAUSE - TIMEOUT / 100);
        assert!(store.0.pause().is_some(), "{longest:?}");
    }
    let store = opened(&restored, TIMEOUT / 2);
    clock.advance(LONGEST_PAUSE);
    assert!(store.0.pause().is_none());
    let remote = store.attach().unwrap();
    assert!(taken_up(&remote, id, password).is_none());
}

/// The longest timeout that the protocol can express, plus twice the margin of a pause.
const ALL_TIMEOUTS: Duration = Duration::from_millis(i32::MAX as u64 / 100 * 102);

#[test]
fn a_pause_ends_though_the_timeouts_that_were_allowed_have_no_end() {
    let mut bench = Bench::new(Durability::Fsync);
    bench.options = bench.options.session_timeouts(TIMEOUT, Duration::MAX);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    write_all(&mut world);
    drop((world, remote));
    let (backup, restored) = (SimDisk::new(), SimDisk::new());
    let now_ms = bench.clock.unix_ms();
    backup::backup_on(&bench.disk, &backup, now_ms).unwrap();
    backup::restore_on(&backup, &restored, now_ms).unwrap();
    bench.disk = restored;
    let world = bench.open();
    assert!(world.store.0.pause().is_some());
    bench.clock.advance(ALL_TIMEOUTS);
    assert!(world.store.0.pause().is_none());
}

#[test]
fn timeouts_have_an_end_and_a_tick_has_one() {
    let longest = Duration::from_millis(i32::MAX as u64);
    let options = StoreOptions::new().session_timeouts(Duration::MAX, Duration::MAX);
    let core = options.core(0, 0);
    assert_eq!(
        (core.shortest_timeout, core.longest_timeout),
        (longest, longest)
    );
    let core = StoreOptions::new().tick(Duration::MAX).core(0, 0);
    assert_eq!(
        (core.shortest_timeout, core.longest_timeout),
        (longest, longest)
    );
}

#[test]
fn a_store_that_was_never_served_does_not_pause() {
    for durability in ALL {
        let original = Bench::new(durability);
        let mut world = original.open();
        world.connect().unwrap();
        write_all(&mut world);
        let copy = original.disk.copy();
        drop(world);
        original.open().connect().unwrap();
        let mut copied = World::open(Boot::new(&copy), &original.options).unwrap();
        copied.connect().unwrap();
    }
}

#[test]
fn a_crash_while_sessions_are_ended_is_as_good_as_the_one_before() {
    for changes in 0.. {
        let bench = Bench::new(Durability::DelayedRestart);
        let mut world = bench.open();
        let remote = world.store.attach().unwrap();
        let sessions: Vec<_> = (0..5)
            .map(|_| entered(&mut world, &remote, TIMEOUT))
            .collect();
        write_all(&mut world);
        drop((world, remote));
        let boot = Boot::until(&bench.disk, changes);
        let reopened = World::open(boot, &bench.options);
        let is_over = reopened.is_ok_and(|mut world| {
            write_all(&mut world);
            world.failure().is_none()
        });
        bench.disk.crash(changes);

        let mut world = bench.open();
        let remote = world.store.attach().unwrap();
        bench.clock.advance(TIMEOUT);
        assert!(!admits(&mut world, &remote), "after {changes} changes");
        bench.clock.advance(TIMEOUT / 100);
        for session in &sessions {
            let again = taken_up(&remote, session.id(), session.password());
            assert!(again.is_none(), "after {changes} changes");
        }
        if is_over {
            break;
        }
    }
}

const HALF_AN_EPOCH: i64 = 1 << 31;

fn use_up(world: &World, count: i64) -> Zxid {
    let mut state = world.store.0.state.lock();
    let last = Zxid(state.core.last_zxid().0 + count);
    state.core.leave_behind(last, 0);
    last
}

#[test]
fn zxids_do_not_go_back_after_a_store_has_used_up_its_epoch() {
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let connection = entered(&mut world, &remote, TIMEOUT);
    for number in 0..5 {
        use_up(&world, HALF_AN_EPOCH - 10_000);
        let at = format!("/{number}");
        ask(&connection, create(&at, CreateMode::Persistent));
        write_all(&mut world);
        answer(&connection).unwrap().unwrap();
    }
    let last = use_up(&world, HALF_AN_EPOCH / 2);
    drop((world, remote, connection));
    let world = bench.open();
    let next = world.store.0.state.lock().core.last_zxid();
    assert!(next > last, "{next} after {last}");
}

#[test]
fn zxids_do_not_go_back_after_a_restored_store_has_used_up_the_rest_of_an_epoch() {
    const EPOCH_MS: i64 = 4096;
    let mut bench = Bench::new(Durability::Fsync);
    drop(bench.open());
    let (backup, restored) = (SimDisk::new(), SimDisk::new());
    let late_ms = bench.clock.unix_ms() / EPOCH_MS * EPOCH_MS + EPOCH_MS - 100;
    backup::backup_on(&bench.disk, &backup, late_ms).unwrap();
    backup::restore_on(&backup, &restored, late_ms).unwrap();
    bench.disk = restored;
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let connection = entered(&mut world, &remote, TIMEOUT);
    let last = use_up(&world, HALF_AN_EPOCH - 10_000);
    drop((world, remote, connection));
    let world = bench.open();
    let next = world.store.0.state.lock().core.last_zxid();
    assert!(next > last, "{next} after {last}");
}

/// The clock reaches the last zxids in the year 2109, but a forged backup can reach them earlier.
#[test]
fn a_store_at_the_end_of_all_zxids_is_refused_before_it_is_written() {
    const END_MS: i64 = 1 << 42;
    let mut bench = Bench::new(Durability::Fsync);
    drop(bench.open());
    let backup = SimDisk::new();
    backup::backup_on(&bench.disk, &backup, bench.clock.unix_ms()).unwrap();
    let (mut opened, mut refused) = (0, 0);
    for epochs in [100_000, 4_100, 4_098, 4_097, 4_096, 4_095, 4_094, 1] {
        let restored = SimDisk::new();
        let now_ms = END_MS - (epochs << 12);
        if backup::restore_on(&backup, &restored, now_ms).is_err() {
            refused += 1;
            continue;
        }
        opened += 1;
        bench.disk = restored;
        let mut world = bench.open();
        let remote = world.store.attach().unwrap();
        let connection = entered(&mut world, &remote, TIMEOUT);
        ask(&connection, create("/a", CreateMode::Persistent));
        write_all(&mut world);
        answer(&connection).unwrap().unwrap();
        drop((world, remote, connection));
        bench.open();
    }
    assert!(refused > 0, "{opened} are opened");
}

#[test]
fn a_store_that_has_used_up_all_epochs_is_not_opened() {
    const LAST: i64 = (1 << 30) - (1 << 20);
    let bench = Bench::new(Durability::Fsync);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let connection = entered(&mut world, &remote, TIMEOUT);
    let used = world.store.0.state.lock().core.last_zxid().0;
    use_up(&world, (LAST << 32) - used);
    ask(&connection, create("/a", CreateMode::Persistent));
    write_all(&mut world);
    answer(&connection).unwrap().unwrap();
    drop((world, remote, connection));
    let refused = World::open(Boot::new(&bench.disk), &bench.options);
    let Err(Error::StoreFailed { reason, .. }) = refused else {
        panic!("it is opened");
    };
    assert!(reason.contains("beyond the last one"), "{reason}");
}

#[test]
fn with_delayed_restart_nothing_waits_for_what_dies_with_a_session() {
    let bench = Bench::new(Durability::DelayedRestart);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let _first = opened(&mut world, &remote);
    let second = now(remote.open(TIMEOUT, LIMIT)).unwrap();
    ask(&second, create("/e", CreateMode::Ephemeral));
    answer(&second).unwrap().unwrap();
    ask(&second, create("/p", CreateMode::Persistent));
    assert!(answer(&second).is_none());
    write_all(&mut world);
    answer(&second).unwrap().unwrap();
}

#[test]
fn with_delayed_restart_no_session_enters_after_a_crash_until_the_longest_timeout_has_passed() {
    let bench = Bench::new(Durability::DelayedRestart);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let connection = opened(&mut world, &remote);
    let (id, password) = (connection.id(), connection.password());
    bench.crash();
    drop((world, remote, connection));

    for durability in [Durability::DelayedRestart, Durability::Fsync] {
        let options = bench.options.clone().durability(durability);
        let mut world = World::open(Boot::new(&bench.disk), &options).unwrap();
        let remote = world.store.attach().unwrap();
        let mut remotes = Box::pin(remote.open(TIMEOUT, LIMIT));
        let mut again = Box::pin(remote.reattach(id, password, TIMEOUT, LIMIT));
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
    }
}

#[test]
fn with_delayed_restart_all_may_enter_at_once_after_an_end_in_order() {
    let bench = Bench::new(Durability::DelayedRestart);
    let mut world = bench.open();
    let remote = world.store.attach().unwrap();
    let connection = opened(&mut world, &remote);
    let (id, password) = (connection.id(), connection.password());
    drop((remote, connection));
    close(world);
    let world = bench.open();
    let remote = world.store.attach().unwrap();
    now(remote.open(TIMEOUT, LIMIT)).unwrap();
    assert!(taken_up(&remote, id, password).is_some());
}

/// The store may be full of old sessions whose clients no longer exist. Then no new session and no request sets the
/// alarm.
#[test]
fn sessions_that_nobody_takes_up_after_a_restart_end_without_a_request() {
    let bench = Bench::new(Durability::Fsync);
    let (id, _) = killed_run(&bench, Durability::Fsync);
    let world = bench.open_as(Durability::Fsync);
    let _remote = world.store.attach().unwrap();
    assert!(lives(&world, id));
    bench.clock.advance(2 * TIMEOUT);
    assert!(!lives(&world, id));
}
