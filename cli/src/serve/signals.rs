//! The server's signals: SIGTERM and SIGINT end it, SIGHUP reloads the configuration.

use std::{fmt, io};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::info;

pub(crate) enum Action {
    End(&'static str),
    /// SIGHUP reloads files. It does not end the server, even if the server's terminal is gone.
    HangUp,
}

#[derive(Clone, Copy)]
pub(crate) enum StopReason {
    Signal(&'static str),
    Other(&'static str),
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Signal(text) | Self::Other(text)) = self;
        f.write_str(text)
    }
}

pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    /// We catch SIGXFSZ, so that a write beyond the file size limit fails like a write to a full disk and does not end
    /// the process.
    _file_size: Signal,
    has_hung_up: bool,
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            _file_size: signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?,
            has_hung_up: false,
        })
    }

    pub(crate) async fn next(&mut self) -> Action {
        tokio::select! {
            _ = self.terminate.recv() => Action::End("SIGTERM"),
            _ = self.interrupt.recv() => Action::End("SIGINT"),
            _ = self.hang_up.recv() => Action::HangUp,
        }
    }

    pub(crate) async fn end(&mut self) -> &'static str {
        loop {
            match self.next().await {
                Action::End(signal) => return signal,
                Action::HangUp => self.has_hung_up = true,
            }
        }
    }

    pub(crate) async fn forced_end(&mut self, reason: StopReason) -> &'static str {
        // The sender of the first signal may not know that the server already stops for another reason, so wait for a
        // second signal.
        if let StopReason::Other(_) = reason {
            let signal = self.end().await;
            info!(
                signal,
                "already stopping; another signal stops the server immediately"
            );
        }
        self.end().await
    }

    pub(crate) fn take_hang_up(&mut self) -> bool {
        std::mem::take(&mut self.has_hung_up)
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn the_first_signal_of_a_server_that_stops_by_itself_is_not_the_second() {
        let mut signals = Signals::listen().unwrap();
        for signal in [Signal::TERM, Signal::INT] {
            kill_process(getpid(), signal).unwrap();
        }
        signals.forced_end(StopReason::Other("drained")).await;
        let third = tokio::time::timeout(std::time::Duration::ZERO, signals.end()).await;
        assert!(third.is_err(), "it took one signal for two");
    }
}
