//! The signals that the server handles: SIGTERM and SIGINT end it, SIGHUP reloads the configuration.

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
    /// SIGXFSZ is handled, and nothing is done: a write beyond the limit of a file's size is an error of that write, as on
    /// a full disk, and not the end of the process.
    _file_size: Signal,
    /// True if SIGHUP came while only the end was waited for.
    has_hung_up: bool,
}

impl Signals {
    /// Begins to handle the signals. From now on their default actions are off: each must be awaited.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            _file_size: signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?,
            has_hung_up: false,
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
            match self.next().await {
                Action::End(signal) => return signal,
                Action::HangUp => self.has_hung_up = true,
            }
        }
    }

    /// Returns true, once, if SIGHUP came in a call of [`end`](Self::end): its files may have been read before.
    pub(crate) fn take_hang_up(&mut self) -> bool {
        std::mem::take(&mut self.has_hung_up)
    }
}
