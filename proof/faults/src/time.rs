//! Times that processes of one machine can compare: CLOCK_MONOTONIC in nanoseconds.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub(crate) fn nanos(length: Duration) -> u64 {
    length.as_nanos() as u64
}

pub(crate) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
