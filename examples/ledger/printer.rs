//! [`Printer`]: prints the locks' events as they happen.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Instant;

use lockkeeper::{EventSink, LockEvent, lock_events};
use lockkeeper_store::{sequence_of, spawn_detached};
use parking_lot::Mutex;

use crate::args::Args;

/// Number of grants whose events are printed without `--all-events`.
const FULL_GRANTS: usize = 40;

pub(crate) struct Printer {
    began: Instant,
    quiet: bool,
    full_grants: usize,
    /// Number of grants so far. It is locked while an event is printed, so that the lines appear in the order of the
    /// grants.
    grants: Mutex<usize>,
}

impl Printer {
    pub(crate) fn new(args: &Args) -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            quiet: args.quiet,
            full_grants: if args.all_events {
                usize::MAX
            } else {
                FULL_GRANTS
            },
            grants: Mutex::default(),
        })
    }

    pub(crate) fn sink(self: &Arc<Self>, worker: usize) -> EventSink {
        let (sink, mut events) = lock_events();
        let printer = self.clone();
        // The thread in which an event happens also polls this detached future, so the line is printed before that
        // thread continues.
        spawn_detached(async move {
            while let Some(event) = events.next().await {
                // This event arrives after the release, when the line of the next grant may already be printed. So the
                // worker prints the line of the release itself, before it releases the lock.
                if !matches!(event, LockEvent::Released) {
                    printer.event(worker, &event);
                }
            }
        });
        sink
    }

    pub(crate) fn event(&self, worker: usize, event: &LockEvent) {
        let mut grants = self.grants.lock();
        let is_grant = matches!(event, LockEvent::Acquired { .. });
        *grants += usize::from(is_grant);
        if *grants > self.full_grants {
            if is_grant && *grants == self.full_grants + 1 {
                self.line("from here on one line a second; --all-events prints all");
            }
            return;
        }
        match event {
            // Print only the number of the entry ahead, because its name is long.
            LockEvent::Queued { position, ahead } => {
                let number = sequence_of(ahead.name()).unwrap_or_default();
                let text = format!("queued behind {position}, waits for number {number} to leave");
                self.remark(worker, text);
            }
            event => self.remark(worker, event),
        }
    }

    pub(crate) fn remark(&self, worker: usize, text: impl Display) {
        self.line(format_args!("{:<4} {text}", format!("w{worker}")));
    }

    pub(crate) fn line(&self, text: impl Display) {
        if !self.quiet {
            let at = self.began.elapsed().as_secs_f64();
            // Continue the run even if the output is a closed pipe.
            let _ = writeln!(io::stdout(), "{at:9.4} s  {text}");
        }
    }
}
