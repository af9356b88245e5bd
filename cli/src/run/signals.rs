//! [`Signals`]: a stream of the signals that a process receives.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

pub(super) struct Signals(UnboundedReceiver<Signal>);

impl Signals {
    /// Starts to handle signals. Signals that were ignored at our start stay ignored, because `nohup` relies on that.
    pub(super) fn listen(to: &[Signal]) -> io::Result<Self> {
        let (sender, receiver) = unbounded_channel();
        for &kind in to {
            // Always handle SIGCHLD, because the kernel discards the statuses of children while SIGCHLD is ignored.
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

    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }
}

fn is_ignored(signal: Signal) -> bool {
    // In `SigIgn:	0000000000001000`, bit N - 1 is signal N.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}
