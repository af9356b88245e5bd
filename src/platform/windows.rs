//! Windows, for stores in memory.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime};

/// Returns the nanoseconds since the first call, suspended time included.
///
/// [`Instant`] is `QueryPerformanceCounter` here, which counts "the time when the machine was in a sleep state such as
/// standby, hibernate, or connected standby" (Microsoft's documentation of the function).
#[inline]
pub(crate) fn boot_nanos() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

/// Returns the nanoseconds since the first call, suspended time included, as [`boot_nanos`] does.
///
/// The clock that excludes suspended time (`QueryUnbiasedInterruptTime`) has no safe interface. So a store takes a
/// suspension of the machine for a stall of its own, and its sessions expire later, which is always safe.
#[inline]
pub(crate) fn awake_nanos() -> u64 {
    boot_nanos()
}

/// Returns the date in milliseconds since the epoch.
#[inline]
pub(crate) fn unix_ms() -> i64 {
    let date = SystemTime::UNIX_EPOCH.elapsed();
    date.map_or(0, |date| date.as_millis() as i64)
}
