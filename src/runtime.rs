//! Operating system and executor services: clocks, wakers, detached tasks, randomness, fork detection.

pub(crate) mod clock;
pub(crate) mod detached;
pub(crate) mod future;
pub(crate) mod histogram;
pub(crate) mod platform;
#[cfg_attr(
    not(any(feature = "client", feature = "server")),
    allow(dead_code, reason = "only clients and servers know processes")
)]
pub(crate) mod process;
#[cfg(feature = "simulation")]
pub(crate) mod simnet;
#[cfg(any(test, feature = "test-util"))]
pub(crate) mod splitmix;
pub(crate) mod watch_channel;
