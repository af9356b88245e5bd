//! Entry point of the fuzzer `opening`. A store opens arbitrary bytes as a data directory, writes to it, and opens it
//! again. The fuzzer `conversation` uses the checks of a whole store in memory.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Durability, Store, StoreOptions};
use crate::backend::{Backend, ConnectOptions};
use crate::core::{Journal, NodeKind};
use crate::log::{self, Boot, Disk, SimDisk, StepWriter};
use crate::model::acl::Acl;
use crate::model::error::{Error, Result};
use crate::model::protocol::{Create, Request};
use crate::model::types::{CreateMode, Zxid};
use crate::runtime::clock::Clock;

/// Flags in the first byte of the input. Bits 2 and 3 of this byte select the durability class with which the store is
/// first opened, and bits 4 and 5 the class with which it is opened again.
const IS_BACKUP: u8 = 1;
const IS_CLOSED_IN_ORDER: u8 = 2;
/// Flag that selects a salvaged copy of the directory.
const IS_SALVAGED: u8 = 1 << 6;

/// Longer than the longest pause after a restart, which is the longest timeout that a log can contain plus a margin.
const LONGEST_PAUSE: Duration = Duration::from_secs(26 * 24 * 3600);

impl Store {
    /// Keeps every transaction for [`check_replay`](Self::check_replay). Call this before the first transaction.
    pub(crate) fn keep_transactions(&self) {
        self.0.state.lock().core.set_journal(Journal::All);
    }

    /// Checks every count of the core, and that replaying the kept transactions gives the same content.
    ///
    /// # Panics
    /// If a check fails.
    pub(crate) fn check_replay(&self) {
        self.0.state.lock().core.check_replay();
    }
}

/// Opens bytes as a data directory, which is either a backup to restore or the segments of a log. Returns true if the
/// bytes are such a directory.
///
/// An inspection must find problems exactly when the store refuses to open. A store that opens writes something, and is
/// then closed or killed. When it is opened again, it must contain everything that it acknowledged.
pub(crate) fn opening(bytes: &[u8]) -> bool {
    let Some((flags, bytes)) = bytes.split_first() else {
        return false;
    };
    let Some(mut disk) = log::fuzz::directory(flags & IS_BACKUP != 0, bytes) else {
        return false;
    };
    let clock = Clock::new_virtual();
    if flags & IS_SALVAGED != 0 {
        match salvaged(&disk, clock.unix_ms()) {
            Some(copy) => disk = copy,
            None => return false,
        }
    }
    let options = |bits| options(&clock, bits);
    let Some(mut world) = inspected_and_opened(&disk, &options(flags >> 2)) else {
        assert!(flags & IS_SALVAGED == 0, "a salvaged store does not open");
        return false;
    };
    world.write();
    let (before, last) = world.image();
    world.end(flags & IS_CLOSED_IN_ORDER != 0);
    let mut again = match World::open(&disk, &options(flags >> 4)) {
        Ok(again) => again,
        // Opening a store uses up an epoch, so none may be left when it is opened again.
        Err(Error::StoreFailed { .. }) if log::epoch::is_nearly_exhausted(last) => return true,
        Err(error) => panic!("it does not open again: {error}"),
    };
    let (after, next) = again.image();
    assert_eq!(after, before);
    assert!(next > last, "{next} after {last}");
    again.write();
    true
}

fn options(clock: &Clock, bits: u8) -> StoreOptions {
    let class = match bits & 3 {
        1 => Durability::DelayedRestart,
        2 => Durability::None,
        _ => Durability::Fsync,
    };
    let options = StoreOptions::new().clock(clock.clone());
    options.segment_bytes(1, 1).durability(class)
}

/// Opens a directory. If the store refuses to open, an inspection must find problems.
fn inspected_and_opened(disk: &SimDisk, options: &StoreOptions) -> Option<World> {
    let seen = log::inspect::inspect_on(disk).expect("it is a store's directory");
    let (shown, has_problems) = (seen.to_string(), !seen.problems.is_empty());
    match World::open(disk, options) {
        Ok(world) => {
            assert!(!has_problems, "it opens, in spite of problems: {shown}");
            Some(world)
        }
        Err(error @ (Error::StoreDamaged { .. } | Error::StoreTooNew { .. })) => {
            assert!(
                has_problems,
                "{error}, and of this nothing is shown: {shown}"
            );
            None
        }
        Err(Error::StoreFailed { .. }) => None,
        Err(other) => panic!("bytes alone do no such thing: {other}"),
    }
}

fn salvaged(disk: &SimDisk, now_ms: i64) -> Option<SimDisk> {
    let copy = SimDisk::new();
    match log::salvage::salvage_on(disk, &copy, "/", now_ms) {
        Ok(is_done) => is_done.then_some(copy),
        Err(Error::StoreDamaged { .. } | Error::StoreTooNew { .. } | Error::StoreFailed { .. }) => {
            None
        }
        Err(other) => panic!("bytes alone do no such thing: {other}"),
    }
}

pub(crate) fn openings() -> Vec<(&'static str, Vec<u8>)> {
    let led = |flags: u8, inputs: log::fuzz::Inputs, chosen: &[(&str, &'static str)]| {
        let inputs: BTreeMap<_, _> = inputs.into_iter().collect();
        let input = |(of, name): &(&str, &'static str)| (*name, [&[flags], &*inputs[of]].concat());
        chosen.iter().map(input).collect::<Vec<_>>()
    };
    const NO_DURABILITY: u8 = 2 << 2;
    let backup = IS_BACKUP | IS_CLOSED_IN_ORDER;
    let mut inputs = led(
        backup,
        log::fuzz::backups(),
        &[("all", "backup"), ("cut", "cut")],
    );
    let logs = [("whole", "log"), ("damaged", "damaged")];
    inputs.extend(led(0, log::fuzz::logs(), &logs));
    let logs = [("torn", "torn-without-durability")];
    inputs.extend(led(NO_DURABILITY, log::fuzz::logs(), &logs));
    let logs = [("damaged", "damaged-salvaged"), ("whole", "salvaged")];
    inputs.extend(led(IS_SALVAGED, log::fuzz::logs(), &logs));
    inputs
}

struct World {
    store: Store,
    writer: StepWriter,
    clock: Clock,
}

type Image = BTreeMap<String, (Vec<u8>, i32, Zxid, Zxid)>;

impl World {
    fn open(disk: &SimDisk, options: &StoreOptions) -> Result<Self> {
        let disk: Arc<dyn Disk> = Arc::new(Boot::new(disk));
        let (store, parts) = Store::on_disk(&disk, options)?;
        Ok(Self {
            store,
            writer: StepWriter::new(parts),
            clock: options.clock.clone(),
        })
    }

    fn write(&mut self) {
        let connector = self.store.connector();
        let mut opening = connector.open(&ConnectOptions::new());
        let mut opened = self.poll(&mut opening);
        if opened.is_pending() {
            // The restart has ended the earlier sessions, so the store pauses.
            self.clock.advance(LONGEST_PAUSE);
            opened = self.poll(&mut opening);
        }
        let session = match opened {
            Poll::Ready(Ok(session)) => session,
            Poll::Ready(Err(_)) => return,
            Poll::Pending => panic!("the pause does not end"),
        };
        let path = || "/written".parse().expect("a path");
        let requests = [
            Request::Create(Create {
                path: path(),
                data: "one".into(),
                mode: CreateMode::Persistent,
                acl: Acl::open(),
            }),
            Request::SetData {
                path: path(),
                data: "two".into(),
                version: None,
            },
            Request::Create(Create {
                path: "/written/n-".parse().expect("a path"),
                data: "".into(),
                mode: CreateMode::PersistentSequential,
                acl: Acl::open(),
            }),
        ];
        for request in requests {
            self.ask(&*session, request);
        }
    }

    fn ask(&mut self, session: &dyn Backend, request: Request) {
        let mut response = session.submit(request);
        let answer = self.poll(&mut response);
        assert!(answer.is_ready(), "there is no answer");
        assert_eq!(
            self.store.log_failure().map(|error| error.to_string()),
            None
        );
    }

    fn poll<F: Future + Unpin>(&mut self, future: &mut F) -> Poll<F::Output> {
        let context = &mut Context::from_waker(Waker::noop());
        if let Poll::Ready(done) = Pin::new(&mut *future).poll(context) {
            return Poll::Ready(done);
        }
        while self.writer.write() || self.writer.make_room() {}
        Pin::new(future).poll(context)
    }

    fn image(&mut self) -> (Image, Zxid) {
        while self.writer.write() || self.writer.make_room() {}
        let state = self.store.0.state.lock();
        let nodes = state.core.node_images();
        let nodes = nodes.filter(|node| node.kind != NodeKind::Ephemeral);
        let image = nodes.map(|node| {
            let shown = (node.data.to_vec(), node.version, node.czxid, node.mzxid);
            (node.path.to_string(), shown)
        });
        (image.collect(), state.core.last_zxid())
    }

    fn end(self, in_order: bool) {
        let Self { store, writer, .. } = self;
        drop(store);
        if in_order {
            writer.close();
        }
    }
}
