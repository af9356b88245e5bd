//! Helpers for the log's tests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::disk::{Disk, DiskFile};
use super::frame::{Batch, FrameChain, mark};
use super::recovery::Start;
use super::segment::{HEADER_BYTES, Header, make};
use super::sim::SimDisk;
use super::snapshot::{self, Form, Head};
use super::{Record, identity};
use crate::core::{Core, Effects, Journal, NodeImage, Now, SessionImage, SessionRef};
use crate::log::recovery::bare_core;
use crate::model::acl::Acl;
use crate::model::error::Result;
use crate::model::path::ZnodePath;
use crate::model::protocol::{Create, Request};
use crate::model::types::{CreateMode, SessionId, Zxid};

pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lockkeeper-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
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

pub(crate) const SEGMENT_BYTES: u64 = 8192;

pub(crate) fn content(core: &Core) -> (Vec<SessionImage>, Vec<NodeImage>) {
    let mut sessions: Vec<_> = core.session_images().collect();
    sessions.sort_by_key(|session| session.id);
    (sessions, core.node_images().collect())
}

/// Writer of a core's log into small segments. It uses no threads, so that tests know every position.
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
        identity::write(&disk, STORE, false).unwrap();
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

    pub(crate) fn segment(&self) -> u64 {
        self.header.number
    }

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

    fn link(&self) -> FrameChain {
        FrameChain {
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
