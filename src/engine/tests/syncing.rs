//! Replies and events that leave a store while its disk syncs.

use std::io;
use std::path::PathBuf;

use parking_lot::{Condvar, Mutex};

use super::world::{World, wait};
use super::*;
use crate::engine::file;
use crate::log::disk::{Disk, DiskFile, FileIdentity};
use crate::log::{Boot, SimDisk};
use crate::model::protocol::{Condition, Create, Op, Request};

#[derive(Clone, Default)]
struct SlowDisk {
    disk: SimDisk,
    syncs: Arc<Syncs>,
}

#[derive(Default)]
struct Syncs {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Syncs {
    fn pass(&self) {
        let mut state = self.state.lock();
        state.1 += 1;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |(held, _)| *held);
        state.1 -= 1;
    }

    fn hold_back(&self) {
        self.state.lock().0 = true;
    }

    fn await_one(&self) {
        let mut state = self.state.lock();
        self.changed
            .wait_while(&mut state, |(_, waiting)| *waiting == 0);
    }

    fn let_go(&self) {
        self.state.lock().0 = false;
        self.changed.notify_all();
    }
}

impl SlowDisk {
    fn slow(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        let syncs = self.syncs.clone();
        Box::new(SlowFile { file, syncs })
    }
}

impl Disk for SlowDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.slow(self.disk.open(name)?))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.slow(self.disk.create(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.disk.sync_folder()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.disk.path(name)
    }
}

struct SlowFile {
    file: Box<dyn DiskFile>,
    syncs: Arc<Syncs>,
}

impl DiskFile for SlowFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(at, into)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(at, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.pass();
        self.file.sync()
    }

    fn identity(&self) -> io::Result<FileIdentity> {
        self.file.identity()
    }
}

fn create(at: &str, mode: CreateMode) -> Request {
    Request::Create(Create {
        path: path(at),
        data: "".into(),
        mode,
        acl: Acl::open(),
    })
}

fn exists(at: &str) -> Request {
    let (path, watch) = (path(at), false);
    Request::Exists { path, watch }
}

fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    let context = &mut Context::from_waker(Waker::noop());
    pin!(future).poll(context).is_pending()
}

fn store_on(slow: &SlowDisk) -> Store {
    let disk: Arc<dyn Disk> = Arc::new(slow.clone());
    let options = StoreOptions::new().segment_bytes(1 << 20, 1 << 20);
    let engine = file::open_disk(&disk, "file:/sim".into(), &options, Arc::new(()));
    Store(engine.unwrap())
}

#[test]
fn answers_that_show_a_write_wait_for_its_sync_and_others_leave_at_once() {
    let slow = SlowDisk::default();
    let store = store_on(&slow);
    let connect = || wait(store.connector().open(&ConnectOptions::new())).unwrap();
    let (writer, reader, other) = (connect(), connect(), connect());
    wait(writer.submit(create("/old", CreateMode::Persistent))).unwrap();
    let session = Session::new(reader.clone(), Acl::open());
    let (_, mut watcher) = wait(session.watch_exists(&path("/new"))).unwrap();

    slow.syncs.hold_back();
    let mut made = writer.submit(create("/new", CreateMode::Persistent));
    slow.syncs.await_one();
    let mut seen = reader.submit(exists("/new"));
    let mut after_it = reader.submit(exists("/old"));
    let mut refused = other.submit(create("/new", CreateMode::Persistent));
    let waits = [
        is_pending(&mut made),
        is_pending(&mut watcher),
        is_pending(&mut seen),
        is_pending(&mut after_it),
        is_pending(&mut refused),
    ];
    let third = connect();
    let leaves = [exists("/old"), create("/mine", CreateMode::Ephemeral)]
        .map(|request| third.submit(request).now_or_never().is_ok());
    // Let the syncs finish before an assertion can fail, because dropping the store waits for the disk.
    slow.syncs.let_go();

    assert_eq!(waits, [true; 5]);
    assert_eq!(leaves, [true; 2]);
    wait(made).unwrap();
    assert_eq!(wait(watcher).unwrap().kind, EventKind::NodeCreated);
    assert!(matches!(
        wait(seen),
        Ok(crate::Reply::Exists { stat: Some(_), .. })
    ));
    wait(after_it).unwrap();
    assert!(matches!(wait(refused), Err(Error::NodeExists { .. })));
}

#[test]
fn a_condition_that_holds_waits_for_the_write_that_it_shows() {
    let slow = SlowDisk::default();
    let store = store_on(&slow);
    let connect = || {
        let backend = wait(store.connector().open(&ConnectOptions::new())).unwrap();
        Session::new(backend, Acl::open())
    };
    let writer = connect();
    for at in ["/old", "/number", "/quiet"] {
        wait(writer.create(&path(at), "4", CreateMode::Persistent)).unwrap();
    }
    slow.syncs.hold_back();
    let mut written = writer.set_data(&path("/number"), "5", None);
    slow.syncs.await_one();
    let mut made = writer.create(&path("/old/child"), "", CreateMode::Persistent);
    let is = |at: &str, data: &'static str| {
        Op::Require(Condition::Data {
            znode: path(at),
            data: data.into(),
        })
    };
    let has_at_most = |at: &str, limit| {
        Op::Require(Condition::Children {
            znode: path(at),
            limit,
        })
    };
    let version = |at: &str, version| Op::Check {
        path: path(at),
        version: Some(version),
    };
    let own = Op::Create(Create {
        path: path("/own"),
        data: "".into(),
        mode: CreateMode::Ephemeral,
        acl: Acl::open(),
    });
    // Send each request in a separate session, because the answers to one session keep their order.
    let waits = [
        vec![is("/number", "5")],
        vec![version("/number", 1)],
        vec![has_at_most("/old", 1)],
        vec![own, is("/number", "5")],
    ];
    let waits = waits.map(|ops| {
        let mut answer = connect().multi(ops);
        (is_pending(&mut answer), answer)
    });
    let unrelated = vec![
        version("/quiet", 0),
        is("/quiet", "4"),
        has_at_most("/quiet", 0),
        has_at_most("/missing", 0),
    ];
    let leaves = connect().multi(unrelated).now_or_never().is_ok();
    let pending = [is_pending(&mut written), is_pending(&mut made)];
    slow.syncs.let_go();
    assert_eq!(pending, [true; 2]);
    assert_eq!(
        waits.each_ref().map(|(is_pending, _)| *is_pending),
        [true; 4]
    );
    assert!(leaves);
    for (_, answer) in waits {
        wait(answer).unwrap();
    }
    wait(written).unwrap();
    wait(made).unwrap();
}

const PATIENCE: Duration = Duration::from_secs(20);

/// No answer waits for the creation of a container by this process, but the container must reach the disk.
#[test]
fn a_write_that_no_answer_waits_for_is_durable_on_an_idle_store() {
    for durability in [Durability::Fsync, Durability::DelayedRestart] {
        let disk = SimDisk::new();
        let options = StoreOptions::new().durability(durability);
        let options = options.segment_bytes(1 << 16, 1 << 16);
        let store = World::open_with_threads(Boot::new(&disk), &options)
            .unwrap()
            .store;
        let backend = wait(store.connector().open(&ConnectOptions::new())).unwrap();
        wait(backend.submit(create("/p", CreateMode::Persistent))).unwrap();
        let queue = store.0.log_queue().unwrap();
        while !queue.writer_sleeps() {
            std::thread::yield_now();
        }
        now(backend.submit(create("/c", CreateMode::Container))).unwrap();
        let zxid = store.0.state.lock().core.last_zxid();
        let (sender, synced) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(wait(queue.barrier.passage(zxid))));
        let synced = synced.recv_timeout(PATIENCE);
        disk.crash_keeping(|| false);
        assert_eq!(synced, Ok(Ok(())));

        let world = World::open_with_threads(Boot::new(&disk), &options).unwrap();
        let session = session_of(&world.store, None).1;
        assert!(wait(session.exists(&path("/c"))).unwrap().is_some());
    }
}
