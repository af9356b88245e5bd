//! Does nothing on systems without systemd.

use std::time::Duration;

pub(crate) fn ready() {}

pub(crate) fn stopping() {}

pub(crate) fn alive() {}

pub(crate) fn watchdog_limit() -> Option<Duration> {
    None
}
