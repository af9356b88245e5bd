//! Windows, for in-memory stores only.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Instant, SystemTime};

/// Returns nanoseconds since the first call, including suspended time.
///
/// [`Instant`] is `QueryPerformanceCounter` here, which counts "the time when the machine was in a sleep state such as
/// standby, hibernate, or connected standby" (Microsoft's documentation).
#[inline]
pub(crate) fn boot_nanos() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

/// Returns [`boot_nanos`], including suspended time.
///
/// The clock that excludes suspended time (`QueryUnbiasedInterruptTime`) has no safe interface. A store therefore
/// mistakes a suspension of the machine for a stall of the process and expires sessions later. This is always safe.
#[inline]
pub(crate) fn awake_nanos() -> u64 {
    boot_nanos()
}

#[inline]
pub(crate) fn unix_ms() -> i64 {
    let date = SystemTime::UNIX_EPOCH.elapsed();
    date.map_or(0, |date| date.as_millis() as i64)
}

// On-disk stores need Unix. Creating their folder fails here, and so does every read and write.

pub(crate) fn make_folder(_: &Path) -> io::Result<()> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "a store on disk needs a Unix system",
    ))
}

pub(crate) fn for_the_owner(_: &mut OpenOptions) {}

pub(crate) fn narrow_to_the_owner(_: &File) -> io::Result<()> {
    Ok(())
}

pub(crate) fn device_and_inode(_: &Metadata) -> (u64, u64) {
    (0, 0)
}

pub(crate) fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn write_all_at(_: &File, _: &[u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn is_alive(_: u32) -> bool {
    true
}

pub(crate) fn lower_thread_priority() -> io::Result<()> {
    Ok(())
}
