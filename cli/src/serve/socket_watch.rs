//! Notices that a Unix socket's file was removed, for example by systemd at a logout. Without the file, no client can
//! reach the server, and the server would only keep its data directory locked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tracing::warn;

pub(crate) async fn removed(path: &Path) {
    let (path, (tell, told)) = (path.to_owned(), tokio::sync::oneshot::channel());
    let watching = std::thread::Builder::new().name("lockkeeper-socket".into());
    let started = watching.spawn(move || match watch(&path) {
        Ok(()) => drop(tell.send(())),
        Err(error) => unwatched(&path, &error),
    });
    if let Err(error) = started {
        unwatched(&PathBuf::new(), &error);
    }
    // An error means that the file is not watched.
    if told.await.is_err() {
        std::future::pending().await
    }
}

fn unwatched(path: &Path, error: &io::Error) {
    warn!(path = %path.display(), %error, "the socket's file is not watched: its removal does not end the server");
}

fn watch(path: &Path) -> io::Result<()> {
    let events = init(CreateFlags::CLOEXEC)?;
    // The system reports an unmount of the file system even without a flag.
    let kinds = WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF;
    add_watch(&events, path.parent().unwrap_or(path), kinds)?;
    let mut buffer = [0; 4_096];
    // Check for the file only after adding the watch, so that no removal goes unnoticed.
    while fs::symlink_metadata(path).is_ok() {
        rustix::io::read(&events, &mut buffer)?;
    }
    Ok(())
}
