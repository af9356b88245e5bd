//! [`Signals`]: the signals of a process, one after the other.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Signals that this process handles, from the creation of this on.
pub(super) struct Signals(UnboundedReceiver<Signal>);

impl Signals {
    /// Begins to handle signals. One that the process was told to ignore stays ignored, here and in the command: `nohup`
    /// means that.
    pub(super) fn listen(to: &[Signal]) -> io::Result<Self> {
        let (sender, receiver) = unbounded_channel();
        for &kind in to {
            // Without a handler the system would wait for children by itself, and forget their statuses.
            if kind != Signal::CHILD && is_ignored(kind) {
                continue;
            }
            let mut arrivals = signal(SignalKind::from_raw(kind.as_raw()))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while arrivals.recv().await.is_some() && sender.send(kind).is_ok() {}
            });
        }
        Ok(Self(receiver))
    }

    /// Waits for the next signal. Cancel safe.
    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}

/// Returns true if the signal was ignored when this process began; false where the system does not tell.
fn is_ignored(signal: Signal) -> bool {
    // As `SigIgn:	0000000000001000`: bit N - 1 stands for signal N.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}
