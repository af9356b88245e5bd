//! Resource usage of a server's process, as counted by the kernel.

use std::time::Instant;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::figures::Row;

pub(crate) struct Usage {
    process: Option<u32>,
    at: Instant,
    cpu_seconds: f64,
}

impl Usage {
    pub(crate) fn of(process: Option<u32>) -> Self {
        Self {
            process,
            at: Instant::now(),
            cpu_seconds: process.and_then(cpu_seconds).unwrap_or(0.0),
        }
    }

    /// Writes the share of one core that it has used since, if known.
    pub(crate) fn write_since(&self, row: &mut Row) {
        if let Some(now) = self.process.and_then(cpu_seconds) {
            let share = (now - self.cpu_seconds) / self.at.elapsed().as_secs_f64();
            row.insert("server_cores".into(), share);
        }
    }
}

/// Returns a process's user and system time.
fn cpu_seconds(process: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS_PER_S)
}

/// Unit of the kernel's times in `/proc`.
const TICKS_PER_S: f64 = 100.0;

/// Raises the limit of open files, because each connection is one, here and in the servers, which inherit the limit.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        eprintln!("the limit of open files stays as it is: {error}");
    }
}
