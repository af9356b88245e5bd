//! [`Messages`]: the front's output on stderr. The front never waits for a write, because a terminal may block output
//! (Ctrl-S) and the reader of a pipe may not read.

use std::io::{self, Write};
use std::sync::mpsc::{SyncSender, sync_channel};

use rustix::termios::tcgetwinsize;
use tokio::sync::oneshot;

use super::channel::Waiting;
use crate::locks::names::escaped_lines;
use crate::locks::table::fitted;

const ROOM: usize = 64;

pub(super) struct Messages {
    texts: SyncSender<String>,
    written: oneshot::Receiver<()>,
}

impl Messages {
    pub(super) fn start() -> io::Result<Self> {
        let (texts, next) = sync_channel::<String>(ROOM);
        let (end, written) = oneshot::channel::<()>();
        let write = move || {
            let _end = end;
            for text in next {
                // Use a single write, because other processes may write to the same terminal. An error means that
                // stderr has no reader.
                let _ = io::stderr().write_all(text.as_bytes());
            }
        };
        std::thread::Builder::new()
            .name("lockkeeper-stderr".into())
            .spawn(write)?;
        Ok(Self { texts, written })
    }

    pub(super) fn say(&self, text: &str) {
        let text = escaped_lines(text);
        let _ = self.texts.try_send(format!("lockkeeper: {text}\n"));
    }

    /// Shows the position on one terminal line, which the next call overwrites. A dumb terminal gets a new line each
    /// time.
    pub(super) fn show_wait(&self, waiting: Option<&Waiting>) {
        let text = waiting.map_or(String::new(), |waiting| {
            let holder = waiting.holder.as_deref();
            let holder = holder.map_or(String::new(), |holder| format!(", held by {holder}"));
            format!("lockkeeper: waiting, {} ahead{holder}", waiting.ahead)
        });
        let text = match (crate::output::has_dumb_terminal(), waiting) {
            (true, None) => return,
            (true, Some(_)) => format!("{text}\n"),
            // Leave the last column free, because some terminals wrap there, and a wrapped line cannot be overwritten.
            (false, _) => format!("\r\x1b[2K{}", fitted(&text, columns() - 1)),
        };
        let _ = self.texts.try_send(text);
    }

    pub(super) async fn written(self) {
        drop(self.texts);
        let _ = self.written.await;
    }
}

fn columns() -> usize {
    let size = tcgetwinsize(io::stderr()).ok();
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { 80 } else { columns }
}
