//! A minimal writer that follows the same rules as the log's writer, so that tests know every position.

use crate::core::{Txn, TxnOp};
use crate::log::disk::{Disk, DiskFile};
use crate::log::frame::{Batch, FrameChain, mark};
use crate::log::recovery::{Facts, LogSource, Recovered, Start, Tail, recover};
use crate::log::segment::{Header, log_name, make, reuse, spare_name};
use crate::log::sim::SimDisk;
use crate::model::error::Result;
use crate::model::types::Zxid;

use super::txn;

pub(super) const STORE: [u8; 16] = *b"a store's own id";

pub(super) const SIZE: u64 = 2048;

#[derive(Clone, Debug)]
pub(super) struct LogPosition {
    pub(super) segment: u64,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) txns: usize,
}

pub(super) struct Writing {
    pub(super) disk: SimDisk,
    file: Box<dyn DiskFile>,
    unsynced: Vec<Box<dyn DiskFile>>,
    header: Header,
    tail: Tail,
    facts: Facts,
    synced: u64,
    pub(super) txns: Vec<Txn>,
    pub(super) acknowledged: usize,
    pub(super) places: Vec<LogPosition>,
}

pub(super) fn header(number: u64) -> Header {
    Header {
        salt: 0x5a17_5a17_0000_0001 + number * 0x0101_0101,
        number,
        size: SIZE,
        store: STORE,
    }
}

pub(super) fn recovered(disk: &SimDisk) -> Result<(Vec<Txn>, Recovered)> {
    let source = LogSource {
        disk,
        store: STORE,
        start: Start::default(),
    };
    let mut txns = Vec::new();
    let recovered = recover(&source, &mut |txn| {
        txns.push(txn);
        Ok(())
    })?;
    Ok((txns, recovered))
}

impl Writing {
    pub(super) fn open(disk: &SimDisk) -> Result<Self> {
        let (txns, recovered) = recovered(disk)?;
        recovered.repair(disk)?;
        let tail = recovered.tail.unwrap_or(Tail {
            segment: 0,
            offset: 64,
        });
        if recovered.tail.is_none() {
            prepare(disk, 0);
        }
        Ok(Self {
            disk: disk.clone(),
            file: disk.open(&log_name(tail.segment)).unwrap(),
            unsynced: Vec::new(),
            header: header(tail.segment),
            tail,
            facts: recovered.facts,
            synced: recovered.facts.chain,
            acknowledged: txns.len(),
            txns,
            places: Vec::new(),
        })
    }

    pub(super) fn write(&mut self, sizes: &[usize]) {
        let mut batch = Batch::default();
        batch.begin(self.facts.zxid);
        for size in sizes {
            let txn = self.next(*size);
            batch.push(&txn);
            self.facts.zxid = txn.zxid;
            self.txns.push(txn);
        }
        self.put(batch);
    }

    pub(super) fn put(&mut self, mut batch: Batch) {
        let frame_bytes = batch.frame_bytes() as u64;
        if self.tail.offset + frame_bytes > SIZE {
            self.switch();
        }
        self.facts.chain += 1;
        let link = self.link();
        let at = self.tail.offset;
        self.file.write_at(at, batch.seal(link)).unwrap();
        self.tail.offset += frame_bytes;
        self.places.push(LogPosition {
            segment: self.tail.segment,
            from: at,
            to: self.tail.offset,
            txns: self.txns.len(),
        });
    }

    fn link(&self) -> FrameChain {
        FrameChain {
            salt: self.header.salt,
            chain: self.facts.chain,
            synced: self.synced,
        }
    }

    fn next(&self, size: usize) -> Txn {
        let number = self.txns.len();
        let op = TxnOp::SetData {
            path: super::path("/a/path"),
            data: vec![number as u8; size].into(),
            version: number as i32,
        };
        txn(self.facts.zxid.0 + 1 + (number % 3) as i64, op)
    }

    /// Enters the next segment without syncing the previous one.
    fn switch(&mut self) {
        let next = self.tail.segment + 1;
        if self.disk.content(&log_name(next)).is_none() {
            prepare(&self.disk, next);
        }
        let file = self.disk.open(&log_name(next)).unwrap();
        self.unsynced.push(std::mem::replace(&mut self.file, file));
        self.header = header(next);
        self.tail = Tail {
            segment: next,
            offset: 64,
        };
    }

    pub(super) fn sync(&mut self) {
        self.unsynced
            .drain(..)
            .for_each(|file| file.sync().unwrap());
        self.file.sync().unwrap();
        self.synced = self.facts.chain;
        self.acknowledged = self.txns.len();
    }

    pub(super) fn mark(&mut self) {
        let mut link = self.link();
        link.chain += 1;
        if self.tail.offset + 48 <= SIZE {
            let mark = mark(link, self.facts.zxid);
            self.file.write_at(self.tail.offset, &mark).unwrap();
        }
    }

    pub(super) fn commit(&mut self, sizes: &[usize]) {
        self.write(sizes);
        self.sync();
    }

    pub(super) fn zxid(&self) -> Zxid {
        self.facts.zxid
    }
}

pub(super) fn prepare(disk: &SimDisk, number: u64) {
    let spare = spare_name(number);
    match disk.content(&spare) {
        Some(_) => drop(reuse(disk, &spare, &header(number)).unwrap().unwrap()),
        None => drop(make(disk, &header(number)).unwrap()),
    }
}

pub(super) fn used(number: u64) -> Vec<u8> {
    let disk = SimDisk::new();
    let mut log = Writing::open(&disk).unwrap();
    let of_then = Header {
        salt: 0x01d0 + number,
        ..header(0)
    };
    disk.open(&log_name(0))
        .unwrap()
        .write_at(0, &of_then.encode())
        .unwrap();
    log.header = of_then;
    while log.tail.offset + 160 < SIZE {
        log.commit(&[number as usize * 7 + 40]);
    }
    disk.content(&log_name(0)).unwrap()
}

pub(super) fn fresh(is_used: bool) -> SimDisk {
    let disk = SimDisk::new();
    for number in 0..3 {
        if is_used {
            disk.put(&spare_name(number), used(number));
        }
        prepare(&disk, number);
    }
    disk
}

pub(super) fn recorded(disk: &SimDisk) -> Writing {
    let mut log = Writing::open(disk).unwrap();
    let sizes: [&[usize]; 4] = [&[3, 0, 30], &[60], &[1; 5], &[200, 10]];
    for sizes in sizes.iter().cycle().take(16) {
        log.commit(sizes);
        log.mark();
    }
    assert_eq!(log.tail.segment, 1, "{:?}", log.tail);
    assert!(log.txns.len() > 40);
    log
}
