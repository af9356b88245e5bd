//! Linux.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns the nanoseconds since the machine's start, suspended time included.
#[inline]
pub(crate) fn boot_nanos() -> u64 {
    nanos(clock_gettime(ClockId::Boottime))
}

/// Returns the nanoseconds since the machine's start in which it was not suspended.
#[inline]
pub(crate) fn awake_nanos() -> u64 {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Returns the date in milliseconds since the epoch, at most one tick of the kernel (1 to 10 ms) old.
#[inline]
pub(crate) fn unix_ms() -> i64 {
    // Every enqueue has a date: the coarse clock costs a quarter of the exact one.
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

#[inline]
fn nanos(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Gives the calling thread the lowest priority (nice value 19).
///
/// # Errors
/// The refusal of the system, a sandbox's for example.
pub(crate) fn lower_thread_priority() -> std::io::Result<()> {
    // Linux applies a nice value to one thread, where POSIX demands the whole process (setpriority(2), "C
    // library/kernel differences"): so this needs the thread's id, and leaves the other threads alone.
    let thread = rustix::thread::gettid();
    Ok(rustix::process::setpriority_process(Some(thread), 19)?)
}
