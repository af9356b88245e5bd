//! No systemd, which would be notified.

pub(crate) fn ready() {}

pub(crate) fn stopping() {}
