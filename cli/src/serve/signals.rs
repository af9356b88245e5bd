//! The signals that end the server, and the one that does not.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
/// What a signal says.
pub(crate) enum Told {
    /// It is time to go; which signal says so.
    End(&'static str),
    /// SIGHUP: the terminal has gone, which is no reason to go, too; or files are to be read anew.
    HangUp,
}

pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// From now on they are heard.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next of them.
    pub(crate) async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::End("SIGTERM"),
            _ = self.interrupt.recv() => Told::End("SIGINT"),
            _ = self.hang_up.recv() => Told::HangUp,
        }
    }

    /// The next that says that it is time to go.
    pub(crate) async fn end(&mut self) -> &'static str {
        loop {
            if let Told::End(signal) = self.next().await {
                return signal;
            }
        }
    }
}
