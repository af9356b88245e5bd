//! [`AuditLog`]: writes audit records as JSON lines to a file or stdout, on its own thread.
//!
//! The server never waits for the audit log. A record is lost if it does not fit into the bounded queue or cannot be
//! written. Lost records are counted, and a later record reports their number.

mod file;
mod json;

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockkeeper_store::{AuditEvent, AuditOutcome, AuditRecord, AuditSink};
use parking_lot::{Condvar, Mutex};
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tracing::{error, info};

pub(super) use self::file::Output;
use crate::values::AuditPlace;

/// Maximum size of the queued lines, in bytes. Large enough to bridge disk delays, and smaller than a server's memory
/// reserve.
const MAX_WAITING_BYTES: usize = 2 << 20;

const LONGEST_END: Duration = Duration::from_secs(2);

const REPORT_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(super) struct AuditLog(Arc<Queue>);

struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    ended: Condvar,
    written: IntCounter,
    lost: IntCounterVec,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Line>,
    bytes: usize,
    dropped: u64,
    reopens: bool,
    is_over: bool,
    has_ended: bool,
}

struct Line {
    text: String,
    /// Number of operations that the line reports.
    count: u64,
}

pub(super) struct AuditWriter {
    log: AuditLog,
    thread: Option<JoinHandle<()>>,
}

impl AuditSink for AuditLog {
    fn record(&self, record: AuditRecord) {
        // Format the record before taking the lock, because other threads wait for the lock.
        let line = Line {
            text: json::line(&record),
            count: record.count,
        };
        let mut state = self.0.state.lock();
        if state.bytes + line.text.len() > MAX_WAITING_BYTES {
            state.dropped += line.count;
            drop(state);
            self.0.lost.with_label_values(&["queue"]).inc_by(line.count);
            return;
        }
        state.bytes += line.text.len();
        state.lines.push_back(line);
        drop(state);
        self.0.wake.notify_one();
    }
}

impl AuditLog {
    /// Opens the file. Nothing is written before [`begin`](Self::begin).
    pub(super) fn open(place: &AuditPlace) -> Result<(Self, Output), String> {
        let output = Output::open(place)?;
        let written = IntCounter::new(
            "lockkeeper_audit_records_total",
            "Audit records that were written.",
        );
        let lost = IntCounterVec::new(
            Opts::new(
                "lockkeeper_audit_records_lost_total",
                "Audit records that were lost, because the queue was full or a write failed.",
            ),
            &["reason"],
        );
        let (Ok(written), Ok(lost)) = (written, lost) else {
            unreachable!("the names are valid")
        };
        for reason in ["queue", "write"] {
            lost.with_label_values(&[reason]).inc_by(0);
        }
        let queue = Queue {
            state: Mutex::default(),
            wake: Condvar::new(),
            ended: Condvar::new(),
            written,
            lost,
        };
        Ok((Self(Arc::new(queue)), output))
    }

    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.0.written.clone()))?;
        registry.register(Box::new(self.0.lost.clone()))
    }

    pub(super) fn begin(&self, output: Output) -> std::io::Result<AuditWriter> {
        let queue = self.0.clone();
        let thread = std::thread::Builder::new().name("lockkeeper-audit".into());
        let thread = thread.spawn(move || {
            queue.write(output);
            queue.state.lock().has_ended = true;
            queue.ended.notify_all();
        })?;
        Ok(AuditWriter {
            log: self.clone(),
            thread: Some(thread),
        })
    }

    /// Reopens the file before the next record, because logrotate may have renamed it.
    pub(super) fn reopen(&self) {
        self.0.state.lock().reopens = true;
        self.0.wake.notify_one();
    }

    pub(super) fn note(
        &self,
        event: AuditEvent,
        outcome: AuditOutcome,
        fill: impl FnOnce(&mut AuditRecord),
    ) {
        let mut record = AuditRecord::new(event, outcome);
        fill(&mut record);
        self.record(record);
    }
}

impl Queue {
    fn write(&self, mut output: Output) {
        let mut failing = Failing::default();
        loop {
            let mut state = self.state.lock();
            while state.lines.is_empty() && !state.reopens && !state.is_over {
                self.wake.wait(&mut state);
            }
            let lines = std::mem::take(&mut state.lines);
            state.bytes = 0;
            let dropped = std::mem::take(&mut state.dropped);
            let (reopens, is_over) = (std::mem::take(&mut state.reopens), state.is_over);
            drop(state);
            failing.unwritten += dropped;
            for line in lines {
                self.put(&mut output, &mut failing, &line);
            }
            // Write these lines before reopening, because they belong to the old file.
            if reopens {
                match output.reopen() {
                    Ok(true) => info!("audit log reopened"),
                    Ok(false) => {}
                    Err(error) => {
                        error!(%error, "audit log not reopened: the old file stays in use")
                    }
                }
            }
            // Report the losses now, because no further record will report them.
            if is_over {
                self.tell_of_losses(&mut output, &mut failing);
                return;
            }
        }
    }

    fn put(&self, output: &mut Output, failing: &mut Failing, line: &Line) {
        self.tell_of_losses(output, failing);
        match output.write(&line.text) {
            Ok(()) => {
                self.written.inc();
                failing.has_recovered();
            }
            Err(error) => {
                self.lost.with_label_values(&["write"]).inc_by(line.count);
                failing.unwritten += line.count;
                failing.report(&error);
            }
        }
    }

    fn tell_of_losses(&self, output: &mut Output, failing: &mut Failing) {
        if failing.unwritten == 0 {
            return;
        }
        let mut record = AuditRecord::new(AuditEvent::Dropped, AuditOutcome::Failure);
        record.count = failing.unwritten;
        if output.write(&json::line(&record)).is_ok() {
            failing.unwritten = 0;
        }
    }
}

#[derive(Default)]
struct Failing {
    unwritten: u64,
    reported: Option<Instant>,
}

impl Failing {
    fn report(&mut self, error: &std::io::Error) {
        if self
            .reported
            .is_none_or(|at| at.elapsed() >= REPORT_INTERVAL)
        {
            self.reported = Some(Instant::now());
            let lost = self.unwritten;
            error!(%error, lost, "audit record not written: the server continues, and loses records until the audit log can be written");
        }
    }

    fn has_recovered(&mut self) {
        if self.reported.take().is_some() {
            info!("audit log is written again");
        }
    }
}

impl Drop for AuditWriter {
    fn drop(&mut self) {
        let queue = &self.log.0;
        let mut state = queue.state.lock();
        state.is_over = true;
        queue.wake.notify_one();
        // Limit the wait, because a pipe without a reader must not keep the process from ending.
        let until = Instant::now() + LONGEST_END;
        while !state.has_ended {
            if queue.ended.wait_until(&mut state, until).timed_out() {
                error!("the last audit records were not written: nobody reads them");
                return;
            }
        }
        drop(state);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
