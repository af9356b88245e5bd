//! [`Messages`]: what the front writes to stderr, which may be a terminal that takes no output (Ctrl-S), or a pipe that
//! is not read. The front never waits for it.

use std::io::{self, Write};
use std::sync::mpsc::{SyncSender, sync_channel};

use tokio::sync::oneshot;

use super::channel::Waiting;

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
        let _ = self.texts.try_send(format!("lockkeeper: {text}\n"));
    }

    /// Shows the position on a terminal, in one line that is written over, and removed when the wait is over.
    pub(super) fn show_wait(&self, waiting: Option<&Waiting>) {
        let text = waiting.map_or(String::new(), |waiting| {
            let holder = waiting.holder.as_deref();
            let holder = holder.map_or(String::new(), |holder| format!(", held by {holder}"));
            format!("lockkeeper: waiting, {} ahead{holder}", waiting.ahead)
        });
        let _ = self.texts.try_send(format!("\r\x1b[2K{text}"));
    }

    /// Waits until all is written. When this is dropped, the rest is lost.
    pub(super) async fn written(self) {
        drop(self.texts);
        let _ = self.written.await;
    }
}
