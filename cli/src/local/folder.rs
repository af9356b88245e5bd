//! [`Folder`]: the paths of the per-user store, checked for owner and mode.
//!
//! Only the user may write to these folders, because a program that can replace the store, its lock or the socket link
//! decides who holds a lock.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha1::{Digest, Sha1};

/// The system's limit on the length of a socket path, in bytes.
const MAX_SOCKET_PATH: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(super) fn find() -> Result<Self, String> {
        let home = home()?;
        let state = state_home(env("XDG_STATE_HOME"), &home)?;
        if state.starts_with(&home) && matches!(home.try_exists(), Ok(false)) {
            return Err(format!(
                "the home {} does not exist: set HOME or XDG_STATE_HOME to a folder that does, or name a store with --url",
                home.display()
            ));
        }
        let path = state.join("lockkeeper").join(machine());
        // Check before creating any folder. Otherwise root, running with another user's environment, would leave its
        // own folders among that user's files.
        check_above(&path)?;
        for folder in [&state, &state.join("lockkeeper"), &path] {
            create(folder).map_err(|why| {
                format!(
                    "the folder {} cannot be created: {why}; set XDG_STATE_HOME to one that can, or name a store with \
                     --url",
                    folder.display()
                )
            })?;
        }
        check_private(&state.join("lockkeeper"))?;
        check_private(&path)?;
        let folder = Self { path };
        let is_text = folder.path.to_str().is_some_and(|path| !path.contains('?'));
        if !is_text {
            return Err(format!(
                "{} cannot be part of a URL (it is not UTF-8, or has a question mark): set XDG_STATE_HOME to another folder",
                folder.path.display()
            ));
        }
        let bytes = folder.private_socket().as_os_str().len();
        if bytes > MAX_SOCKET_PATH {
            return Err(format!(
                "{} has {bytes} bytes, more than a socket's path can have ({MAX_SOCKET_PATH}): set XDG_STATE_HOME to a \
                 shorter folder, the same in every environment, or name a store with --url",
                folder.private_socket().display(),
            ));
        }
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn store(&self) -> PathBuf {
        self.path.join("store")
    }

    pub(super) fn link(&self) -> PathBuf {
        self.path.join("socket")
    }

    pub(super) fn start_lock(&self) -> PathBuf {
        self.path.join("start")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.path.join("server.log")
    }

    /// Returns the possible paths of the socket, best first. They are not cached, because the folder in
    /// `$XDG_RUNTIME_DIR` may be deleted at logout while a command still runs.
    pub(super) fn sockets(&self) -> Vec<PathBuf> {
        let runtime = env("XDG_RUNTIME_DIR").and_then(runtime).map(|runtime| {
            // Name the socket after the data folder, because another data folder is another store.
            let name = &hash(self.path.as_os_str().as_bytes())[..16];
            runtime.join(format!("{name}.sock"))
        });
        let fits = |path: &PathBuf| path.as_os_str().len() <= MAX_SOCKET_PATH;
        let runtime = runtime.filter(fits);
        runtime.into_iter().chain([self.private_socket()]).collect()
    }

    fn private_socket(&self) -> PathBuf {
        self.path.join("server.sock")
    }
}

fn env(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns the user's home, even if cron or a service manager has not set `$HOME`.
pub(crate) fn home() -> Result<PathBuf, String> {
    if let Some(home) = env("HOME") {
        return Ok(home.into());
    }
    let uid = nix::unistd::geteuid();
    match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => Ok(user.dir),
        _ => Err(format!(
            "HOME is not set, and user {uid} has no home: set HOME, or name a store with --url"
        )),
    }
}

/// Returns the folder for persistent state. Ignores a relative `$XDG_STATE_HOME`, as the XDG Base Directory
/// Specification requires.
fn state_home(variable: Option<OsString>, home: &Path) -> Result<PathBuf, String> {
    let state = variable.map(PathBuf::from).filter(|it| it.is_absolute());
    match state {
        Some(state) => Ok(state),
        None if home.is_absolute() => Ok(home.join(".local/state")),
        None => Err(format!(
            "HOME is {}, which is not an absolute path: set HOME, or name a store with --url",
            home.display()
        )),
    }
}

/// Returns the name of this machine's folder. The name is a hash, because machine-id(5) asks programs not to expose the
/// id.
fn machine() -> String {
    let files = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
    let mut ids = files.iter().filter_map(|file| fs::read(file).ok());
    // In a container image, the file may be empty or contain the word `uninitialized`.
    let id = ids.find_map(|id| Some(id.trim_ascii().to_owned()).filter(|id| id.len() == 32));
    let id = id.unwrap_or_else(|| rustix::system::uname().nodename().to_bytes().to_owned());
    hash(&[b"lockkeeper ", id.as_slice()].concat())[..16].to_owned()
}

fn hash(bytes: &[u8]) -> String {
    let digits = Sha1::digest(bytes);
    digits.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns our socket folder in `$XDG_RUNTIME_DIR`, or `None` if the runtime folder is missing (for example after a
/// logout), belongs to another user, or is open to other users.
fn runtime(variable: OsString) -> Option<PathBuf> {
    let runtime = PathBuf::from(variable);
    if !runtime.is_absolute() || check_private(&runtime).is_err() {
        return None;
    }
    let own = runtime.join("lockkeeper");
    create(&own).ok()?;
    check_private(&own).ok()?;
    Some(own)
}

fn create(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

const OTHERS: u32 = 0o077;

fn check_private(folder: &Path) -> Result<(), String> {
    let (shown, found) = (folder.display(), metadata(folder)?);
    check_owner(folder, &found)?;
    if found.mode() & OTHERS != 0 {
        return Err(format!(
            "{shown} is open to other users (mode {:03o}), who could decide who holds a lock: `chmod 700 {shown}`",
            found.mode() & 0o777
        ));
    }
    Ok(())
}

fn check_owner(folder: &Path, found: &Metadata) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    if found.uid() == own {
        return Ok(());
    }
    Err(format!(
        "{} belongs to user {}, and this process to user {own}: is this the environment of another user, as with `sudo -E`? Set HOME \
         and XDG_STATE_HOME, or name a store with --url",
        folder.display(),
        found.uid()
    ))
}

/// Checks the folders above the data folder. The nearest existing folder must belong to this user. A world-writable
/// folder is allowed only with the sticky bit, because any user could otherwise replace the folders below it.
fn check_above(folder: &Path) -> Result<(), String> {
    let mut existing = folder
        .ancestors()
        .filter(|it| it.exists())
        .map(|it| it.canonicalize().map_err(|error| refused(it, &error)));
    let nearest = existing.next().unwrap_or_else(|| Ok("/".into()))?;
    check_owner(&nearest, &metadata(&nearest)?)?;
    for folder in nearest.ancestors() {
        let mode = metadata(folder)?.mode();
        let (is_open, is_sticky) = (mode & 0o002 != 0, mode & 0o1000 != 0);
        if is_open && !is_sticky {
            let shown = folder.display();
            return Err(format!(
                "{shown} can be written by every user, who could replace the store in it: `chmod o-w {shown}`"
            ));
        }
    }
    Ok(())
}

fn metadata(folder: &Path) -> Result<Metadata, String> {
    let found = fs::metadata(folder).map_err(|error| refused(folder, &error))?;
    match found.is_dir() {
        true => Ok(found),
        false => Err(format!("{} is not a folder", folder.display())),
    }
}

fn refused(folder: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_state_home_is_ignored_and_a_relative_home_refused() {
        let state = |variable: Option<&str>, home: &str| {
            state_home(variable.map(Into::into), home.as_ref())
        };
        let default = Ok("/home/ann/.local/state".into());
        assert_eq!(state(None, "/home/ann"), default);
        assert_eq!(state(Some("state"), "/home/ann"), default);
        assert_eq!(state(Some("/var/state"), "ann"), Ok("/var/state".into()));
        assert!(state(None, "ann").unwrap_err().contains("HOME is ann"));
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        let root = metadata(Path::new("/")).unwrap();
        // This process may be root, so compare with the actual owner.
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(
            check_owner(Path::new("/"), &root).is_ok(),
            root.uid() == own
        );
    }
}
