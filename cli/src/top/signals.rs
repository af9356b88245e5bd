//! [`Signals`]: the signals that end the command, and SIGCONT.
//!
//! A hanging terminal accepts no output and blocks the command in a write. A separate thread ([`end_when_blocked`])
//! therefore also waits for the signals that end the command.

use std::io;
use std::time::Duration;

use rustix::process::Signal;
use tokio::runtime::Builder;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::timeout;

use super::screen;

/// Time for the command to end after a signal. Afterwards we assume that the terminal blocks the command.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time to wait after SIGCONT for a signal that ends the command, before we stop the job again. Both signals may have
/// arrived together.
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

    /// Returns `true` if a signal that ends the command arrived together with SIGCONT. A stopped job receives both
    /// signals when it is ended, and different threads may handle them in either order.
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

fn end_when_blocked() -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let mut end = {
        let _context = runtime.enter();
        Ends::listen()?
    };
    let wait = move || {
        runtime.block_on(end.first());
        std::thread::sleep(PATIENCE);
        // Restore only the modes, because this needs no write. The content of the screen remains.
        screen::restore_modes();
        std::process::exit(0);
    };
    let thread = std::thread::Builder::new().name("lockkeeper-signals".into());
    thread.spawn(wait)?;
    Ok(())
}
