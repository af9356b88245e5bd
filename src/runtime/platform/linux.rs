//! Linux.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns nanoseconds since boot, including suspended time.
#[inline]
pub(crate) fn boot_nanos() -> u64 {
    nanos(clock_gettime(ClockId::Boottime))
}

/// Returns nanoseconds since boot, excluding suspended time.
#[inline]
pub(crate) fn awake_nanos() -> u64 {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Returns milliseconds since the Unix epoch, at most one kernel tick (1 to 10 ms) old.
#[inline]
pub(crate) fn unix_ms() -> i64 {
    // Every enqueue reads this clock, and reading the coarse clock takes a quarter as long as reading the exact one.
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

#[inline]
fn nanos(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Gives the calling thread the lowest priority (nice value 19). The system may refuse this, for example in a sandbox.
pub(crate) fn lower_thread_priority() -> std::io::Result<()> {
    // POSIX applies a nice value to the whole process, but Linux applies it to one thread (setpriority(2), "C
    // library/kernel differences"). So only the calling thread loses priority.
    let thread = rustix::thread::gettid();
    Ok(rustix::process::setpriority_process(Some(thread), 19)?)
}
