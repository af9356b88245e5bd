//! Helpers of the log's tests.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::disk::{Disk, DiskFile};
use super::frame::{Batch, Link, mark};
use super::recovery::Start;
use super::segment::{HEADER_BYTES, Header, make};
use super::sim::SimDisk;
use super::snapshot::{self, Form, Head};
use super::{LogParts, Record, identity, snapshotter};
use crate::acl::Acl;
use crate::core::{Core, Effects, Journal, NodeImage, Now, SessionImage, SessionRef};
use crate::error::Result;
use crate::log::recovery::bare_core;
use crate::path::ZnodePath;
use crate::protocol::{Create, Request};
use crate::types::{CreateMode, SessionId, Zxid};

/// Temporary folder of one test, removed with it.
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lockkeeper-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Of a process of that id that was killed.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a folder can be made");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) const STORE: [u8; 16] = *b"a store's own id";

/// The bytes of a scribe's segment.
pub(crate) const SEGMENT_BYTES: u64 = 8192;

/// All that a store holds.
pub(crate) fn content(core: &Core) -> (Vec<SessionImage>, Vec<NodeImage>) {
    let mut sessions: Vec<_> = core.session_images().collect();
    sessions.sort_by_key(|session| session.id);
    (sessions, core.node_images().collect())
}

/// Keeps a log of a core in small segments, without any threads: tests know what stands where.
pub(crate) struct TestLog<D> {
    pub(crate) disk: D,
    pub(crate) core: Core,
    pub(crate) session: SessionRef,
    file: Box<dyn DiskFile>,
    header: Header,
    offset: u64,
    chain: u64,
    last: Zxid,
    made: usize,
}

impl<D: Disk> TestLog<D> {
    pub(crate) fn new(disk: D) -> Self {
        identity::write(&disk, STORE).unwrap();
        let header = header(0);
        let mut core = bare_core();
        core.set_journal(Journal::All);
        let (session, _) = core
            .open_session(SessionId(1), [1; 16], None, false, Now::default())
            .unwrap();
        let mut scribe = Self {
            file: make(&disk, &header).unwrap(),
            disk,
            core,
            session,
            header,
            offset: HEADER_BYTES,
            chain: 1,
            last: Zxid(0),
            made: 0,
        };
        scribe.record(&Record::Epoch(7));
        scribe.record(&Record::LongestTimeout { ms: 30_000 });
        scribe.keep();
        scribe
    }

    /// The number of the segment that is being written.
    pub(crate) fn segment(&self) -> u64 {
        self.header.number
    }

    /// Makes some znodes, one frame each, until segment `number` is being written.
    pub(crate) fn go_on_to(&mut self, number: u64) {
        while self.header.number < number {
            self.create();
        }
    }

    pub(crate) fn create(&mut self) {
        let number = self.made;
        self.made += 1;
        let mode = [CreateMode::Persistent, CreateMode::EphemeralSequential][number % 2];
        let create = Request::Create(Create {
            path: ZnodePath::new(format!("/node-{number:04}-")).unwrap(),
            data: vec![number as u8; 100].into(),
            mode,
            acl: Acl::open(),
        });
        let effects = &mut Effects::default();
        let created = self
            .core
            .submit(self.session, create, Now::default(), effects);
        created.unwrap();
        self.keep();
    }

    fn keep(&mut self) {
        let mut batch = Batch::default();
        batch.begin(self.last);
        for txn in self.core.kept().drain(..) {
            batch.push(&txn);
        }
        self.put(batch);
    }

    pub(crate) fn record(&mut self, record: &Record) {
        let mut batch = Batch::default();
        batch.begin(self.last);
        batch.push_record(record);
        self.put(batch);
    }

    fn put(&mut self, mut batch: Batch) {
        if self.offset + batch.frame_bytes() as u64 > SEGMENT_BYTES {
            self.header = header(self.header.number + 1);
            self.file = make(&self.disk, &self.header).unwrap();
            self.offset = HEADER_BYTES;
        }
        let frame = batch.seal(self.link());
        self.file.write_at(self.offset, frame).unwrap();
        self.file.sync().unwrap();
        self.offset += batch.frame_bytes() as u64;
        self.chain += 1;
        self.last = batch.last();
        if self.offset + 48 <= SEGMENT_BYTES {
            let mark = mark(self.link(), self.last);
            self.file.write_at(self.offset, &mark).unwrap();
        }
    }

    fn link(&self) -> Link {
        Link {
            salt: self.header.salt,
            chain: self.chain,
            synced: self.chain - 1,
        }
    }
}

fn header(number: u64) -> Header {
    Header {
        salt: 0x5a17_5a17_0000_0001 + number * 0x0101_0101,
        number,
        size: SEGMENT_BYTES,
        store: STORE,
    }
}
/// Log writer in the thread of a test, step by step: the same turns give the same log.
pub(crate) struct StepWriter {
    parts: LogParts,
    /// The next batch, when it waits for room.
    batch: Option<Batch>,
    has_failed: bool,
}

impl StepWriter {
    pub(crate) fn new(parts: LogParts) -> Self {
        Self {
            parts,
            batch: None,
            has_failed: false,
        }
    }

    /// Writes the next batch; false when there is none, or no room for it, or one has failed.
    pub(crate) fn write(&mut self) -> bool {
        if self.has_failed {
            return false;
        }
        let LogParts {
            queue,
            allocator,
            writer,
        } = &mut self.parts;
        let Some(batch) = self.batch.take().or_else(|| queue.try_next()) else {
            return false;
        };
        if !writer.has_room_for(&batch) && !allocator.is_ready() {
            self.batch = Some(batch);
            return false;
        }
        let written = writer.write_batch(batch);
        let is_written = written.is_ok();
        self.note(written.map(drop));
        is_written
    }

    /// Prepares a segment, if room is low; false when it is not, or cannot be made.
    pub(crate) fn make_room(&self) -> bool {
        let LogParts {
            queue,
            allocator,
            writer,
        } = &self.parts;
        let is_low = queue.is_low(writer.position.header.size);
        let is_wanted = is_low || (self.batch.is_some() && !allocator.is_ready());
        !self.has_failed && is_wanted && allocator.make_room().is_ok()
    }

    /// Writes all that is left, while there is room, and says that the store was closed in order.
    pub(crate) fn close(mut self) {
        self.parts.queue.append_clean();
        while self.write() || self.make_room() {}
        if !self.has_failed {
            let settled = self.parts.writer.sync_and_mark();
            self.note(settled);
        }
    }

    /// Goes on in the next segment, and makes a snapshot of all before it.
    pub(crate) fn snapshot(&mut self, disk: &dyn Disk) -> Result<()> {
        let LogParts {
            allocator, writer, ..
        } = &mut self.parts;
        if !allocator.is_ready() {
            allocator.make_room().expect("the disk has room");
        }
        writer.enter_next_segment().expect("the disk does not fail");
        let header = &writer.position.header;
        let made = snapshotter::make(&snapshotter::SnapshotJob {
            disk,
            store: header.store,
            current: header.number,
            ends: &AtomicBool::new(false),
        });
        made.map(drop)
    }

    fn note(&mut self, written: io::Result<()>) {
        let LogParts {
            queue, allocator, ..
        } = &self.parts;
        if let Err(error) = written {
            self.has_failed = true;
            queue.fail(allocator.failed(&error));
        }
    }
}

/// The content of a disk by way of a backup.
pub(crate) fn backed_up(disk: &dyn Disk) -> Result<Core> {
    let store = identity::read(disk)?.expect("a store is there").store;
    let content = super::recovery::read(disk, store, &bare_core)?;
    let head = Head {
        store,
        start: Start {
            segment: 0,
            facts: content.recovered.facts,
        },
        made: 0,
    };
    let unreadable = |unreadable: snapshot::Unreadable| unreadable.of("backup".into());
    let file = SimDisk::new().create("backup").expect("the disk is good");
    let written = snapshot::write(&*file, Form::Backup, &head, &content.core, &mut || Ok(()));
    written.map_err(|error| unreadable(error.into()))?;
    let mut core = bare_core();
    snapshot::load(&*file, Form::Backup, &mut core, &mut || Ok(())).map_err(unreadable)?;
    Ok(core)
}
