//! [`Signals`]: those that end the command, and the one that continues it.
//!
//! The first end it on every terminal. One that takes no output, as its program or its connection stands still, blocks
//! the command in a write: [`end_when_blocked`] waits for these signals in a thread of its own.

use std::io;
use std::time::Duration;

use rustix::process::Signal;
use tokio::runtime::Builder;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::timeout;

use super::screen;

/// Time in which the command ends by itself after a signal, unless the terminal blocks it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time between the handlers of two signals that came together, at most. A job that is stopped again too early is
/// ended only by the next signal.
const TOGETHER: Duration = Duration::from_millis(250);

/// Meaning of a signal.
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
    /// Begins to handle the signals.
    pub(super) fn listen() -> io::Result<Self> {
        end_when_blocked()?;
        Ok(Self {
            end: Ends::listen()?,
            continued: signal(SignalKind::from_raw(Signal::CONT.as_raw()))?,
        })
    }

    /// Waits for a signal that ends the command.
    pub(super) async fn ended(&mut self) {
        self.end.first().await;
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> Action {
        tokio::select! {
            biased;
            () = self.end.first() => Action::End,
            _ = self.continued.recv() => Action::Continue,
        }
    }

    /// Returns true if a signal that ends the command came with the one that continued it: a job that is ended while it
    /// is stopped gets both, and any two threads may handle them, in either order.
    pub(super) async fn end_follows(&mut self) -> bool {
        timeout(TOGETHER, self.end.first()).await.is_ok()
    }
}

/// The signals that end the command.
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

/// Ends the process after a signal that it does not follow, since the terminal blocks it.
fn end_when_blocked() -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let mut end = {
        let _context = runtime.enter();
        Ends::listen()?
    };
    let wait = move || {
        runtime.block_on(end.first());
        std::thread::sleep(PATIENCE);
        // Modes are restored without a write. The screen stays as it is.
        screen::restore_modes();
        std::process::exit(0);
    };
    let thread = std::thread::Builder::new().name("lockkeeper-signals".into());
    thread.spawn(wait)?;
    Ok(())
}
