//! The file of a listening Unix socket. The server creates the file with its final permissions, replaces the file of a
//! killed server, and removes its own file at a clean stop.
//!
//! A server locks the directory while it starts or stops, so that it cannot replace or remove another server's new
//! socket.

use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, connect};
use tokio::net::{UnixListener, UnixSocket, UnixStream};

use super::ServerError;
use super::listener::BACKLOG;

/// A socket's file, removed on drop. Drop this before the socket stops listening. Otherwise another server may mistake
/// the file for a leftover of a killed server.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    id: FileId,
}

/// A listening Unix socket for a program's own use. [`bind`](Self::bind) replaces a file that a killed program has left
/// behind, but not the file of a running program. Dropping the listener removes the file.
#[derive(Debug)]
pub struct SocketListener {
    // First field, so that the file is removed while the socket still listens.
    file: SocketFile,
    listener: UnixListener,
}

impl SocketListener {
    /// Listens at a path on the current tokio runtime, with these permissions of the socket's file. Connecting requires
    /// write permission.
    ///
    /// # Errors
    /// [`ServerError::UnixSocketInUse`] if another program listens on the path, and [`ServerError::UnixSocket`] if the
    /// path cannot be used.
    pub fn bind(path: impl AsRef<Path>, mode: u32) -> Result<Self, ServerError> {
        let (listener, file) = listen(path.as_ref(), mode)?;
        Ok(Self { file, listener })
    }

    /// Returns the absolute path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Accepts a connection. Cancel safe.
    ///
    /// # Errors
    /// Operating system errors, usually because no file descriptors are left. Another call may succeed.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept().await?;
        Ok(stream)
    }
}

/// Identity of a file. It includes the socket's creation time, because file systems reuse inode numbers.
#[derive(Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    created: (i64, i64),
}

impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            created: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

pub(super) fn listen(path: &Path, mode: u32) -> Result<(UnixListener, SocketFile), ServerError> {
    let refused = |reason: String| ServerError::UnixSocket {
        path: path.to_owned(),
        reason,
    };
    let failed = |error: io::Error| refused(error.to_string());
    // With an absolute path we find the file again even after the working directory has changed.
    let path = std::path::absolute(path).map_err(failed)?;
    let address = SocketAddrUnix::new(&path).map_err(|error| match error {
        Errno::NAMETOOLONG => refused(format!(
            "the path has {} bytes, more than a Unix socket's address can hold ({MAX_PATH})",
            path.as_os_str().len()
        )),
        error => failed(error.into()),
    })?;
    let lock = DirectoryLock::acquire(&path, LONGEST_START).map_err(failed)?;
    match occupant(&path, &address).map_err(failed)? {
        Occupant::None => {}
        Occupant::Abandoned => fs::remove_file(&path).map_err(failed)?,
        Occupant::Alive => return Err(ServerError::UnixSocketInUse { path }),
        Occupant::Foreign => {
            return Err(refused("a file that is no socket has this path".into()));
        }
    }
    let created = create(&path, mode)
        .and_then(|socket| Ok((socket, FileId::from(&fs::symlink_metadata(&path)?))));
    let (socket, id) = created.map_err(failed)?;
    let file = SocketFile { path, id };
    // The umask may have removed permissions from the file, so set them again before the socket listens.
    let listening = fs::set_permissions(file.path(), Permissions::from_mode(mode))
        .and_then(|()| socket.listen(BACKLOG));
    // Release the lock before returning an error. An error drops `file`, which acquires the lock again.
    drop(lock);
    Ok((listening.map_err(failed)?, file))
}

fn create(path: &Path, mode: u32) -> io::Result<UnixSocket> {
    let socket = UnixSocket::new_stream()?;
    // On Linux the file gets the socket's permissions, less the umask. On other systems this call fails, and the file
    // has the umask's default permissions until `listen` sets the mode.
    let handle = File::from(socket.as_fd().try_clone_to_owned()?);
    let _ = handle.set_permissions(Permissions::from_mode(mode));
    socket.bind(path)?;
    Ok(socket)
}

const MAX_PATH: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

#[derive(Debug, PartialEq, Eq)]
enum Occupant {
    None,
    Abandoned,
    Alive,
    /// A file, a directory or a link, which we never delete.
    Foreign,
}

fn occupant(path: &Path, address: &SocketAddrUnix) -> io::Result<Occupant> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => return Ok(Occupant::Foreign),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Occupant::None),
        Err(error) => return Err(error),
    }
    // The probe is non-blocking, so a server that accepts no connections cannot block us.
    let probe = UnixSocket::new_stream()?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => Ok(Occupant::Abandoned),
        Err(Errno::NOENT) => Ok(Occupant::None),
        // A server is also listening if its queue of connections is full (`AGAIN`) or its socket is not a stream socket
        // (`PROTOTYPE`).
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(Occupant::Alive),
        Err(error) => Err(error.into()),
    }
}

impl SocketFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Without the lock, leave the file in place. The next server replaces it.
        let Ok(_lock) = DirectoryLock::acquire(&self.path, LONGEST_STOP) else {
            return;
        };
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| FileId::from(&found) == self.id) {
            let removed = fs::remove_file(&self.path);
            if let Err(error) = removed {
                tracing::warn!(path = %self.path.display(), %error, "socket file not removed");
            }
        }
    }
}

struct DirectoryLock {
    _directory: Option<File>,
}

/// Limits of the wait for the lock. Other servers hold it only for a few milliseconds.
const LONGEST_START: Duration = Duration::from_secs(5);
const LONGEST_STOP: Duration = Duration::from_millis(500);

const LOCK_RETRY: Duration = Duration::from_millis(5);

impl DirectoryLock {
    fn acquire(path: &Path, limit: Duration) -> io::Result<Self> {
        let parent = path.parent().unwrap_or(path);
        let directory = File::open(parent).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("its directory {}: {error}", parent.display()),
            )
        })?;
        let until = Instant::now() + limit;
        loop {
            match directory.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(LOCK_RETRY);
                }
                Err(TryLockError::WouldBlock) => {
                    let why = "its directory is locked by another program";
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
                }
                // The file system has no locks, so continue without a lock. Servers in such a directory must not start
                // at the same time.
                Err(TryLockError::Error(_)) => return Ok(Self { _directory: None }),
            }
        }
        Ok(Self {
            _directory: Some(directory),
        })
    }
}

#[cfg(test)]
mod tests;
