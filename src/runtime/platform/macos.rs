//! macOS.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Returns nanoseconds since boot, including suspended time.
///
/// Unlike on Linux, `CLOCK_MONOTONIC` "will continue to increment while the system is asleep" (clock_gettime(3)).
#[inline]
pub(crate) fn boot_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns nanoseconds since the first call, excluding suspended time.
///
/// [`Instant`] is `CLOCK_UPTIME_RAW` here, which "does not increment while the system is asleep".
#[inline]
pub(crate) fn awake_nanos() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

#[inline]
pub(crate) fn unix_ms() -> i64 {
    let date = SystemTime::UNIX_EPOCH.elapsed();
    date.map_or(0, |date| date.as_millis() as i64)
}

/// Does nothing. `PRIO_DARWIN_THREAD` and quality-of-service classes have no safe interface, and POSIX's `setpriority`
/// would slow down the whole process.
pub(crate) fn lower_thread_priority() -> std::io::Result<()> {
    Ok(())
}
