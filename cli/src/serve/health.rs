//! [`ServerHealth`]: the health of `lockkeeper serve`, from its start to its end.

use std::sync::{Arc, OnceLock};

use hyper::header::HeaderMap;
use lockkeeper_store::{NotReady, ServerMonitor};
use parking_lot::RwLock;

use crate::http::Health;
use crate::http::token::Token;

#[derive(Clone, Default)]
pub(super) struct ServerHealth(Arc<State>);

#[derive(Default)]
struct State {
    monitor: OnceLock<ServerMonitor>,
    token: RwLock<Option<Token>>,
}

impl ServerHealth {
    pub(super) fn started(&self, monitor: ServerMonitor) {
        let _ = self.0.monitor.set(monitor);
    }

    pub(super) fn set_token(&self, token: Option<Token>) {
        *self.0.token.write() = token;
    }
}

impl Health for ServerHealth {
    fn check_alive(&self) -> Result<(), String> {
        match self.0.monitor.get().map(ServerMonitor::check_ready) {
            Some(Err(failure @ NotReady::StoreFailed(_))) => Err(failure.to_string()),
            _ => Ok(()),
        }
    }

    fn check_ready(&self) -> Result<(), String> {
        match self.0.monitor.get() {
            None => Err("the server is starting: its store is being opened".into()),
            Some(monitor) => monitor.check_ready().map_err(|reason| reason.to_string()),
        }
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let token = self.0.token.read();
        token.as_ref().is_none_or(|token| token.is_in(headers))
    }
}
