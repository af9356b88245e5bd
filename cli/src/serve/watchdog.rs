//! Signs of life for systemd's watchdog, which restarts a server that sends none.
//!
//! A task on the server's own runtime sends a sign of life whenever the check of `/healthz` succeeds, which takes the
//! store's lock. A separate thread would continue to send such signs even if the server served no client any more.

use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tracing::{info, warn};

use super::health::ServerHealth;
use super::notify;
use crate::http::Health;

pub(super) fn start(health: ServerHealth) {
    let Some(limit) = notify::watchdog_limit() else {
        return;
    };
    info!(seconds = limit.as_secs_f64(), "watched by systemd");
    tokio::spawn(give_signs(limit, health));
}

async fn give_signs(limit: Duration, health: ServerHealth) {
    // Half of the limit, as sd_watchdog_enabled(3) recommends.
    let mut ticks = tokio::time::interval(limit / 2);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match health.check_alive() {
            Ok(()) => notify::alive(),
            Err(reason) => warn!(reason, "systemd's watchdog is not notified"),
        }
    }
}
