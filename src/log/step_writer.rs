//! [`StepWriter`]: the log's writer, segment allocator and snapshotter without their threads.

use std::io;
use std::sync::atomic::AtomicBool;

use super::disk::Disk;
use super::frame::Batch;
#[cfg(feature = "simulation")]
use super::sim::Boot;
use super::{LogParts, snapshotter};
use crate::model::error::Result;

/// Log writer that runs step by step in the caller's thread, so that the same steps always give the same log.
pub(crate) struct StepWriter {
    parts: LogParts,
    batch: Option<Batch>,
    has_failed: bool,
    /// The machine that the writer runs on. After its power has failed, we report no error, because no process is left.
    #[cfg(feature = "simulation")]
    machine: Option<Boot>,
}

impl StepWriter {
    pub(crate) fn new(parts: LogParts) -> Self {
        Self {
            parts,
            batch: None,
            has_failed: false,
            #[cfg(feature = "simulation")]
            machine: None,
        }
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn on(mut self, machine: &Boot) -> Self {
        self.machine = Some(machine.clone());
        self
    }

    #[cfg(feature = "simulation")]
    pub(crate) fn work(&self) -> std::sync::Arc<tokio::sync::Notify> {
        self.parts.queue.steps()
    }

    fn is_without_power(&self) -> bool {
        #[cfg(feature = "simulation")]
        if let Some(machine) = &self.machine {
            return machine.is_off();
        }
        false
    }

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

    pub(crate) fn close(mut self) {
        self.parts.queue.append_clean();
        while self.write() || self.make_room() {}
        if !self.has_failed {
            let settled = self.parts.writer.sync_and_mark();
            self.note(settled);
        }
    }

    pub(crate) fn snapshot(&mut self, disk: &dyn Disk) -> Result<()> {
        let LogParts {
            allocator, writer, ..
        } = &mut self.parts;
        if !allocator.is_ready() {
            let room = allocator.make_room();
            room.map_err(|error| allocator.failed(&error))?;
        }
        if let Err(error) = writer.enter_next_segment() {
            let failure = allocator.failed(&error);
            self.note(Err(error));
            return Err(failure);
        }
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
            if !self.is_without_power() {
                queue.fail(allocator.failed(&error));
            }
        }
    }
}
