//! Writing a snapshot, chunk by chunk: what it takes beside the store is one chunk.

use std::io;

use crc32fast::hash;

use super::super::disk::DiskFile;
use super::record::{Before, Counts, Past, put_end, put_facts, put_node, put_session};
use super::{Form, HEADER_BYTES, Head};
use crate::core::Core;

/// A chunk is written when it has reached this. A record is never split, so it may be larger.
const FULL_CHUNK_BYTES: usize = 128 << 10;

/// Synced whenever so many bytes more are written: one sync of the whole at the end would keep the
/// disk busy for long, and whoever else waits for it.
const SYNC_EVERY_BYTES: u64 = 256 << 10;

/// The bytes before a chunk's payload.
const CHUNK_HEAD_BYTES: usize = 8;

/// Writes a snapshot of `core` into an empty file, and syncs it; its length in bytes. `pause` is
/// called after each chunk; an error of it ends the writing.
pub(crate) fn write(
    file: &dyn DiskFile,
    form: Form,
    head: &Head,
    core: &Core,
    pause: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<u64> {
    file.write_at(0, &head.encode(form))?;
    let mut chunks = Chunks::new(file);
    let counts = Counts {
        sessions: core.session_images().count() as u64,
        nodes: core.node_count() as u64,
    };
    let facts = &head.start.facts;
    let past = Past {
        longest_timeout_ms: facts.longest_timeout_ms,
        is_clean: facts.is_clean,
        custody: facts.custody,
        allowed_timeout_ms: facts.allowed_timeout_ms,
    };
    put_facts(&mut chunks.bytes, past, counts);
    for session in core.session_images() {
        put_session(&mut chunks.bytes, &session);
        chunks.flush_if_full(pause)?;
    }
    let mut before = Before::default();
    for node in core.node_images() {
        put_node(&mut chunks.bytes, &node, &mut before);
        if chunks.flush_if_full(pause)? {
            before.forget();
        }
    }
    put_end(&mut chunks.bytes, counts);
    chunks.flush()?;
    file.sync()?;
    Ok(chunks.at)
}

struct Chunks<'a> {
    file: &'a dyn DiskFile,
    at: u64,
    synced: u64,
    /// Room for the chunk's head, then its records.
    bytes: Vec<u8>,
}

impl<'a> Chunks<'a> {
    fn new(file: &'a dyn DiskFile) -> Self {
        let mut bytes = Vec::with_capacity(FULL_CHUNK_BYTES + FULL_CHUNK_BYTES / 4);
        bytes.resize(CHUNK_HEAD_BYTES, 0);
        Self {
            file,
            at: HEADER_BYTES as u64,
            synced: 0,
            bytes,
        }
    }

    fn flush_if_full(&mut self, pause: &mut dyn FnMut() -> io::Result<()>) -> io::Result<bool> {
        if self.bytes.len() < FULL_CHUNK_BYTES {
            return Ok(false);
        }
        self.flush()?;
        if self.at - self.synced >= SYNC_EVERY_BYTES {
            self.file.sync()?;
            self.synced = self.at;
        }
        pause()?;
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<()> {
        let payload_bytes = self.bytes.len() - CHUNK_HEAD_BYTES;
        let length = u32::try_from(payload_bytes).map_err(|_| {
            io::Error::other(format!(
                "a chunk of {payload_bytes} bytes, and its length has 32 bits"
            ))
        })?;
        self.bytes[4..8].copy_from_slice(&length.to_le_bytes());
        let crc = hash(&self.bytes[4..]);
        self.bytes[..4].copy_from_slice(&crc.to_le_bytes());
        self.file.write_at(self.at, &self.bytes)?;
        self.at += self.bytes.len() as u64;
        self.bytes.truncate(CHUNK_HEAD_BYTES);
        Ok(())
    }
}
