//! [`ServerHealth`]: the health of `lockkeeper serve`, from its start to its end.

use std::sync::{Arc, OnceLock};

use lockkeeper_store::{NotReady, ServerMonitor};

use crate::http::Health;

/// Health of the server's process. A clone is the same.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerHealth(Arc<OnceLock<ServerMonitor>>);

impl ServerHealth {
    /// Records that the server listens.
    pub(super) fn started(&self, monitor: ServerMonitor) {
        // Cannot be set already: a process has one server.
        let _ = self.0.set(monitor);
    }
}

impl Health for ServerHealth {
    fn check_alive(&self) -> Result<(), String> {
        match self.0.get().map(ServerMonitor::check_ready) {
            Some(Err(failure @ NotReady::StoreFailed(_))) => Err(failure.to_string()),
            _ => Ok(()),
        }
    }

    fn check_ready(&self) -> Result<(), String> {
        match self.0.get() {
            None => Err("the server is starting: its store is being opened".into()),
            Some(monitor) => monitor.check_ready().map_err(|reason| reason.to_string()),
        }
    }
}
