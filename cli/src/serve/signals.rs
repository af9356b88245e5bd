//! The signals that the server handles: SIGTERM and SIGINT end it, SIGHUP reloads certificates.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
/// Meaning of a signal.
pub(crate) enum Action {
    /// End the server; with the signal's name.
    End(&'static str),
    /// SIGHUP: reload files. Not a reason to end, even when it means that the terminal is gone.
    HangUp,
}

pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Begins to handle the signals. From now on their default actions are off: each must be awaited.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Action {
        tokio::select! {
            _ = self.terminate.recv() => Action::End("SIGTERM"),
            _ = self.interrupt.recv() => Action::End("SIGINT"),
            _ = self.hang_up.recv() => Action::HangUp,
        }
    }

    /// Waits for the next signal that ends the server.
    pub(crate) async fn end(&mut self) -> &'static str {
        loop {
            if let Action::End(signal) = self.next().await {
                return signal;
            }
        }
    }
}
