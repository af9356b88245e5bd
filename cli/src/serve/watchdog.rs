//! Signs of life for systemd's watchdog, which restarts a server that sends none.
//!
//! A task on the server's own runtime repeats the check of `/healthz`, which takes the store's lock, and sends a sign
//! of life if it succeeds. A separate thread would keep sending signs of life even if the server no longer served any
//! client.

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
