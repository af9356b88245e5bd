//! A store whose disk fails or is full. The log runs on its own threads.

use std::sync::mpsc;

use super::bench::{LIMIT, TIMEOUT};
use super::world::*;
use super::*;
use crate::engine::file;
use crate::log::{Boot, Faults, SimDisk};
use crate::model::protocol::{Create, Request};
use crate::runtime::process::LocalProcess;

fn create(at: &str, size: usize) -> Request {
    Request::Create(Create {
        path: path(at),
        data: vec![b'd'; size].into(),
        mode: CreateMode::Persistent,
        acl: Acl::open(),
    })
}

fn opened(disk: &SimDisk) -> (Store, Arc<dyn Backend>) {
    let world = World::open_with_threads(Boot::new(disk), &options(&Clock::system())).unwrap();
    let backend = now(world.store.connector().open(&ConnectOptions::new())).unwrap();
    (world.store, backend)
}

#[test]
fn after_a_failure_nothing_is_acknowledged_and_all_hear_of_it() {
    let write = Faults {
        write_error_every: 1,
        ..Faults::default()
    };
    let short = Faults {
        short_write_every: 1,
        ..Faults::default()
    };
    let sync = Faults {
        sync_error_every: 1,
        ..Faults::default()
    };
    for faults in [write, short, sync] {
        let disk = SimDisk::new();
        let (store, backend) = opened(&disk);
        wait(backend.submit(create("/kept", 10))).unwrap();
        let session = Session::new(backend.clone(), Acl::open());
        let (_, watcher) = wait(session.watch_exists(&path("/x"))).unwrap();
        let (_, _, other) = wait(session.watch_data(&path("/kept"))).unwrap();
        let end = std::thread::spawn({
            let store = store.clone();
            move || wait(store.failed())
        });
        disk.fail(1, faults);
        let failed = |error: Error| assert!(matches!(error, Error::StoreFailed { .. }), "{error}");
        failed(wait(backend.submit(create("/x", 10))).unwrap_err());
        failed(wait(watcher).unwrap_err());
        failed(wait(other).unwrap_err());
        wait(async { while session.states().next().await.is_some() {} });
        assert_eq!(session.state(), SessionState::Expired);
        disk.fail(0, Faults::default());
        failed(wait(backend.submit(create("/y", 10))).unwrap_err());
        failed(wait(session.exists(&path("/kept"))).unwrap_err());
        failed(wait(store.connect()).unwrap_err());
        failed(end.join().unwrap());
        failed(wait(store.failed()));
        drop((store, backend, session));
        disk.crash(7);
        let (_store, backend) = opened(&disk);
        let session = Session::new(backend, Acl::open());
        assert!(wait(session.exists(&path("/kept"))).unwrap().is_some());
        assert!(wait(session.exists(&path("/y"))).unwrap().is_none());
    }
}

#[test]
fn a_full_disk_refuses_writes_and_takes_them_again_when_there_is_room() {
    let disk = SimDisk::new();
    let (_store, backend) = opened(&disk);
    wait(backend.submit(create("/queue", 0))).unwrap();
    let session = Session::new(backend.clone(), Acl::open());
    disk.fail(
        0,
        Faults {
            room_bytes: Some(0),
            ..Faults::default()
        },
    );
    let mut made = 0;
    let refused = loop {
        match wait(backend.submit(create(&format!("/k{made}"), 4_000))) {
            Ok(_) => made += 1,
            Err(Error::LimitReached { .. }) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::DiskFull { .. }), "{refused}");
    assert!(made > 1);
    let gone = path(&format!("/k{made}"));
    assert!(wait(session.exists(&gone)).unwrap().is_none());
    let enqueued = wait(session.create(&path("/queue/e"), "", CreateMode::Ephemeral));
    assert!(enqueued.is_ok(), "{enqueued:?}");
    wait(session.delete(&path("/k0"), None)).unwrap();
    disk.fail(0, Faults::default());
    while wait(backend.submit(create(gone.as_str(), 4_000))).is_err() {
        std::thread::yield_now();
    }
    drop((_store, backend, session));
    let (_store, backend) = opened(&disk);
    let session = Session::new(backend, Acl::open());
    assert!(wait(session.exists(&gone)).unwrap().is_some());
    assert!(wait(session.exists(&path("/k0"))).unwrap().is_none());
}

#[test]
fn a_disk_that_is_full_from_the_start_is_said_to_be() {
    let disk = SimDisk::new();
    disk.fail(
        0,
        Faults {
            room_bytes: Some(1_000),
            ..Faults::default()
        },
    );
    let clock = Clock::system();
    let opened = World::open_with_threads(Boot::new(&disk), &options(&clock));
    assert!(matches!(opened.err(), Some(Error::DiskFull { .. })));
    disk.fail(0, Faults::default());
    assert!(World::open_with_threads(Boot::new(&disk), &options(&clock)).is_ok());
}

/// The log's thread wakes tasks, and one of these tasks may drop the last handle to the store.
#[test]
fn the_last_handle_may_go_in_the_thread_of_the_log() {
    let disk = SimDisk::new();
    let (told, ended) = mpsc::channel();
    let held = Arc::new(Ends(told));
    let boot: Arc<dyn crate::log::Disk> = Arc::new(Boot::new(&disk));
    let opened = file::open_disk(&boot, "file:/sim".into(), &options(&Clock::system()), held);
    let store = Store(opened.unwrap());
    let backend = now(store.connector().open(&ConnectOptions::new())).unwrap();
    let last = backend.submit(create("/b", 10));
    let reply = backend.submit(create("/a", 10));
    crate::spawn_detached(async move {
        reply.await.unwrap();
        drop((store, backend));
    });
    wait(last).unwrap();
    ended.recv().unwrap();
    let (_store, backend) = self::opened(&disk);
    assert!(wait(backend.submit(create("/a", 10))).is_err());
}

struct Ends(mpsc::Sender<()>);

impl crate::log::Exclusive for Ends {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.send(()).unwrap();
    }
}

/// After a clean close, every byte of the log must be correct.
#[test]
fn a_changed_bit_is_noticed_or_harmless() {
    let disk = SimDisk::new();
    let (store, backend) = opened(&disk);
    for key in 0..20 {
        wait(backend.submit(create(&format!("/k{key}"), 100))).unwrap();
    }
    drop((store, backend));
    let mut random = Random(11);
    for name in crate::log::Disk::list(&disk).unwrap() {
        let size = disk.content(&name).unwrap().len() as u64;
        for _ in 0..scaled(60) {
            let copy = disk.copy();
            copy.flip(&name, random.below(size.min(5_000)), 1 << random.below(8));
            let clock = Clock::new_virtual();
            match World::open(Boot::new(&copy), &options(&clock)) {
                Err(Error::StoreDamaged { .. }) => {}
                Err(error) => panic!("{error}"),
                Ok(world) => {
                    let count = world.store.0.state.lock().core.node_count();
                    assert_eq!(count, 20 + 4, "in {name}");
                }
            }
        }
    }
}

/// A client that gets an error tries again. If the second attempt succeeded without a write, a restart would use the
/// wrong process.
#[test]
fn a_process_that_cannot_be_recorded_is_refused_at_the_next_try_as_well() {
    let disk = SimDisk::new();
    let (store, _) = opened(&disk);
    let remote = store.attach().unwrap();
    let connection = wait(remote.open(TIMEOUT, LIMIT)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.unwrap();
    let end_with = |pid| {
        let process = LocalProcess { pid, start_time: 1 };
        runtime.block_on(connection.end_with(Some(process)))
    };
    end_with(1).unwrap();
    disk.crash_keeping(|| false);
    for _ in 0..2 {
        assert!(matches!(end_with(2), Err(Error::StoreFailed { .. })));
    }
}
