//! [`Messages`]: what the front writes to stderr, which may be a terminal that takes no output (Ctrl-S), or a pipe that
//! is not read. The front never waits for it.

use std::io::{self, Write};
use std::sync::mpsc::{SyncSender, sync_channel};

use rustix::termios::tcgetwinsize;
use tokio::sync::oneshot;

use super::channel::Waiting;
use crate::locks::names::escaped_lines;
use crate::locks::table::fitted;

/// Texts that wait to be written; the next ones are dropped.
const ROOM: usize = 64;

pub(super) struct Messages {
    texts: SyncSender<String>,
    /// Closed when all is written.
    written: oneshot::Receiver<()>,
}

impl Messages {
    pub(super) fn start() -> io::Result<Self> {
        let (texts, next) = sync_channel::<String>(ROOM);
        let (end, written) = oneshot::channel::<()>();
        let write = move || {
            let _end = end;
            for text in next {
                // In one write, because others may write to the same terminal. An error means that it is not read.
                let _ = io::stderr().write_all(text.as_bytes());
            }
        };
        std::thread::Builder::new()
            .name("lockkeeper-stderr".into())
            .spawn(write)?;
        Ok(Self { texts, written })
    }

    /// Prints a line.
    pub(super) fn say(&self, text: &str) {
        let text = escaped_lines(text);
        let _ = self.texts.try_send(format!("lockkeeper: {text}\n"));
    }

    /// Shows the position on a terminal, in one line that is written over, and removed when the wait is over. A terminal
    /// that has no controls gets a line each time.
    pub(super) fn show_wait(&self, waiting: Option<&Waiting>) {
        let text = waiting.map_or(String::new(), |waiting| {
            let holder = waiting.holder.as_deref();
            let holder = holder.map_or(String::new(), |holder| format!(", held by {holder}"));
            format!("lockkeeper: waiting, {} ahead{holder}", waiting.ahead)
        });
        let text = match (crate::output::has_dumb_terminal(), waiting) {
            (true, None) => return,
            (true, Some(_)) => format!("{text}\n"),
            // A line that reaches the last column wraps on some terminals, and could not be written over.
            (false, _) => format!("\r\x1b[2K{}", fitted(&text, columns() - 1)),
        };
        let _ = self.texts.try_send(text);
    }

    /// Waits until all is written. When this is dropped, the rest is lost.
    pub(super) async fn written(self) {
        drop(self.texts);
        let _ = self.written.await;
    }
}

/// Returns the width of the terminal, as it is now.
fn columns() -> usize {
    let size = tcgetwinsize(io::stderr()).ok();
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { 80 } else { columns }
}
