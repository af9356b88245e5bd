//! One file of a simulated disk.

use std::collections::BTreeSet;

/// What a medium writes as one: all of it or nothing.
const SECTOR_BYTES: u64 = 512;

/// A write, or the part of one that falls into one sector.
#[derive(Clone, Debug)]
struct Piece {
    at: u64,
    bytes: Vec<u8>,
    /// A sync of it failed: no later one makes it durable.
    is_doomed: bool,
}

impl Piece {
    fn sector(&self) -> u64 {
        self.at / SECTOR_BYTES
    }
}

#[derive(Debug, Default)]
pub(in crate::log::sim) struct File {
    /// As the process sees it.
    content: Vec<u8>,
    /// As the medium has it.
    durable: Vec<u8>,
    /// What was written since, in order.
    pieces: Vec<Piece>,
}

impl File {
    pub(in crate::log::sim) fn durable(content: Vec<u8>) -> Self {
        Self {
            durable: content.clone(),
            content,
            pieces: Vec::new(),
        }
    }

    pub(in crate::log::sim) fn content(&self) -> &[u8] {
        &self.content
    }

    pub(in crate::log::sim) fn len(&self) -> u64 {
        self.content.len() as u64
    }

    pub(in crate::log::sim) fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let rest = self.content.get(at as usize..).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        count
    }

    pub(in crate::log::sim) fn write(&mut self, at: u64, bytes: &[u8]) {
        put(&mut self.content, at, bytes);
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let count = (SECTOR_BYTES - at % SECTOR_BYTES).min(rest.len() as u64);
            let (piece, later) = rest.split_at(count as usize);
            self.pieces.push(Piece {
                at,
                bytes: piece.to_vec(),
                is_doomed: false,
            });
            at += count;
            rest = later;
        }
    }

    /// A sector that was written since is written as it is now, so nothing older of it is left.
    pub(in crate::log::sim) fn sync(&mut self) {
        let fresh = self.pieces.iter().filter(|piece| !piece.is_doomed);
        let sectors: BTreeSet<u64> = fresh.map(Piece::sector).collect();
        for sector in &sectors {
            let at = sector * SECTOR_BYTES;
            let end = (at + SECTOR_BYTES).min(self.len()) as usize;
            put(&mut self.durable, at, &self.content[at as usize..end]);
        }
        self.pieces
            .retain(|piece| !sectors.contains(&piece.sector()));
    }

    pub(in crate::log::sim) fn fail_sync(&mut self) {
        self.pieces
            .iter_mut()
            .for_each(|piece| piece.is_doomed = true);
    }

    pub(in crate::log::sim) fn crash(&mut self, keep: &mut impl FnMut() -> bool) {
        for piece in self.pieces.drain(..) {
            if keep() {
                put(&mut self.durable, piece.at, &piece.bytes);
            }
        }
        self.content.clone_from(&self.durable);
    }

    pub(in crate::log::sim) fn flip(&mut self, at: u64, bits: u8) {
        for content in [&mut self.content, &mut self.durable] {
            if let Some(byte) = content.get_mut(at as usize) {
                *byte ^= bits;
            }
        }
    }
}

fn put(content: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let (at, end) = (at as usize, at as usize + bytes.len());
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at..end].copy_from_slice(bytes);
}
