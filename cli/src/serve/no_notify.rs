//! Stand-in for `notify` on systems without systemd. It does nothing.

use std::time::Duration;

pub(crate) fn ready() {}

pub(crate) fn stopping() {}

pub(crate) fn alive() {}

pub(crate) fn watchdog_limit() -> Option<Duration> {
    None
}
