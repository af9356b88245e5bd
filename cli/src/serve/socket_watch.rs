//! The end of a Unix socket's file: systemd removes `$XDG_RUNTIME_DIR` when a user has logged out, and others clean up
//! `/tmp`. A server without the file cannot be reached, and yet keeps the data directory locked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tracing::warn;

/// Waits until no file has this path any more.
pub(crate) async fn removed(path: &Path) {
    let (path, (tell, told)) = (path.to_owned(), tokio::sync::oneshot::channel());
    // A thread of its own, which sleeps in the kernel, and ends with the process.
    let watching = std::thread::Builder::new().name("lockkeeper-socket".into());
    let started = watching.spawn(move || match watch(&path) {
        Ok(()) => drop(tell.send(())),
        Err(error) => unwatched(&path, &error),
    });
    if let Err(error) = started {
        unwatched(&PathBuf::new(), &error);
    }
    // An error when the file is not watched.
    if told.await.is_err() {
        std::future::pending().await
    }
}

fn unwatched(path: &Path, error: &io::Error) {
    warn!(path = %path.display(), %error, "the socket's file is not watched: its removal does not end the server");
}

fn watch(path: &Path) -> io::Result<()> {
    let events = init(CreateFlags::CLOEXEC)?;
    // The end of the file system, as of a tmpfs, is told in any case.
    let kinds = WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF;
    add_watch(&events, path.parent().unwrap_or(path), kinds)?;
    let mut buffer = [0; 4_096];
    // After the watch was added: a file that was removed before is not there now, and any later removal is told.
    while fs::symlink_metadata(path).is_ok() {
        rustix::io::read(&events, &mut buffer)?;
    }
    Ok(())
}
