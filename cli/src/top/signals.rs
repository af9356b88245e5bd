//! [`Signals`]: the signals that end the command, and SIGCONT.
//!
//! A terminal whose program or connection hangs takes no output and blocks the command in a write.
//! [`end_when_blocked`] therefore also waits for the ending signals on a separate thread.

use std::io;
use std::time::Duration;

use rustix::process::Signal;
use tokio::runtime::Builder;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::timeout;

use super::screen;

/// How long the command may take to end after a signal, before we assume that the terminal blocks it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Maximum time between the handling of two signals that arrived together. If a job is stopped again too early, only
/// the next signal ends it.
const TOGETHER: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    End,
    Continue,
}

pub(super) struct Signals {
    end: Ends,
    continued: unix::Signal,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        end_when_blocked()?;
        Ok(Self {
            end: Ends::listen()?,
            continued: signal(SignalKind::from_raw(Signal::CONT.as_raw()))?,
        })
    }

    pub(super) async fn ended(&mut self) {
        self.end.first().await;
    }

    pub(super) async fn next(&mut self) -> Action {
        tokio::select! {
            biased;
            () = self.end.first() => Action::End,
            _ = self.continued.recv() => Action::Continue,
        }
    }

    /// Returns `true` if an ending signal arrived together with SIGCONT. A job that is ended while stopped gets both,
    /// and different threads may handle them in either order.
    pub(super) async fn end_follows(&mut self) -> bool {
        timeout(TOGETHER, self.end.first()).await.is_ok()
    }
}

struct Ends([unix::Signal; 4]);

impl Ends {
    fn listen() -> io::Result<Self> {
        Ok(Self([
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::quit())?,
        ]))
    }

    async fn first(&mut self) {
        let [terminate, interrupt, hang_up, quit] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hang_up.recv() => {}
            _ = quit.recv() => {}
        }
    }
}

/// Ends the process if it does not react to a signal because the terminal blocks it.
fn end_when_blocked() -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let mut end = {
        let _context = runtime.enter();
        Ends::listen()?
    };
    let wait = move || {
        runtime.block_on(end.first());
        std::thread::sleep(PATIENCE);
        // This restores the modes without a write. The screen stays as it is.
        screen::restore_modes();
        std::process::exit(0);
    };
    let thread = std::thread::Builder::new().name("lockkeeper-signals".into());
    thread.spawn(wait)?;
    Ok(())
}
