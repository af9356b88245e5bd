//! Starts the server of the per-user store. Only one start runs at a time, even if processes are killed midway.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{LocalStore, Peer, peer_at};
use crate::executable;

/// Number of attempts to start the server. A new attempt follows only if the server was killed right after its start.
const ATTEMPTS: usize = 10;

impl LocalStore {
    /// Starts the server unless it already listens, and blocks until it listens. An error contains the server's own
    /// reason.
    pub(super) fn start(&self) -> Result<Peer, String> {
        for _ in 0..ATTEMPTS {
            let lock = self.lock_start()?;
            // Check again while holding the lock, because another process may just have started the server.
            if let Some(peer) = self.peer()? {
                return Ok(peer);
            }
            if !self.find_server()? {
                self.run_server(lock)?;
            }
            if let Some(peer) = self.peer()? {
                return Ok(peer);
            }
        }
        Err(format!(
            "the server of {} ends as soon as it is started: see {}",
            self.folder.path().display(),
            self.folder.log().display()
        ))
    }

    /// Takes the lock for starting the server. The system releases the lock when no process has the file open any more.
    fn lock_start(&self) -> Result<File, String> {
        let path = self.folder.start_lock();
        let lock = || {
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).write(true).mode(0o600);
            let file = options.open(&path)?;
            loop {
                match file.lock() {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    locked => return locked.map(|()| file),
                }
            }
        };
        lock().map_err(|error| format!("{} cannot be locked: {error}", path.display()))
    }

    /// Looks for a server that listens but has lost the link to its socket, and restores the link.
    fn find_server(&self) -> Result<bool, String> {
        for socket in self.folder.sockets() {
            if peer_at(&socket)?.is_some() {
                self.lead_to(&socket)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn lead_to(&self, socket: &Path) -> Result<(), String> {
        let (link, new) = (self.folder.link(), self.folder.path().join("socket.new"));
        let lead = || {
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            symlink(socket, &new)?;
            fs::rename(&new, &link)
        };
        lead().map_err(|error| format!("{} cannot be written: {error}", link.display()))
    }

    fn run_server(&self, lock: File) -> Result<(), String> {
        let [socket, ..] = &self.folder.sockets()[..] else {
            unreachable!("the data folder has a place for the socket");
        };
        self.lead_to(socket)?;
        let failed = |what: &str, error: &io::Error| {
            let folder = self.folder.path().display();
            format!("the server of {folder} cannot be started: {what}{error}")
        };
        let log = Log::open(self.folder.log()).map_err(|error| failed("its log: ", &error))?;
        let executable =
            executable::listed().map_err(|error| failed("this executable: ", &error))?;
        let mut command = Command::new(&executable);
        command.args(["detach", "--"]).args(self.arguments(socket));
        // Pass the lock as the server's stdin. The server keeps the lock until it listens.
        command.stdin(lock).stdout(Stdio::piped());
        command.stderr(log.writer().map_err(|error| failed("its log: ", &error))?);
        let what = format!("{}: ", executable.display());
        let mut child = command.spawn().map_err(|error| failed(&what, &error))?;
        let stdout = child.stdout.take().expect("it is a pipe");
        // The child ends as soon as it has started the server. Ignore an error, because this wait fails if SIGCHLD is
        // ignored.
        let _ = child.wait();
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        if read.is_ok() && line.starts_with("lockkeeper ready") {
            return Ok(());
        }
        match log.reason() {
            Some(reason) => Err(format!(
                "the server of {} cannot be started: {reason}; its log is {}",
                self.folder.path().display(),
                self.folder.log().display()
            )),
            None => Ok(()),
        }
    }

    fn arguments(&self, socket: &Path) -> Vec<OsString> {
        let mut listen = OsString::from("--listen=unix:");
        listen.push(socket);
        let idle = std::env::var_os("LOCKKEEPER_LOCAL_IDLE").filter(|it| !it.is_empty());
        let mut arguments = vec!["serve".into(), listen, "--data".into()];
        arguments.push(self.folder.store().into());
        arguments.extend(["--idle-exit".into(), idle.unwrap_or_else(|| "10m".into())]);
        let fixed = [
            // A predecessor that is ending or was just killed may still have the store open.
            "--open-timeout=1m",
            "--tick=1s",
            "--max-session-timeout=10m",
            // Use few resources, because the server runs in the background on the user's machine.
            "--threads=1",
            "--busy-poll=0",
            "--max-memory=256M",
            // All clients belong to one user.
            "--max-connections-per-address=16384",
        ];
        arguments.extend(fixed.map(Into::into));
        arguments
    }
}

/// The log file that all servers append to. `start` is the file's length in bytes when the current server was started.
struct Log {
    path: PathBuf,
    start: u64,
}

/// Maximum size in bytes. A longer log is renamed when the next server starts.
const MAX_LOG: u64 = 1 << 20;

const MAX_REASON: u64 = 64 << 10;

impl Log {
    fn open(path: PathBuf) -> io::Result<Self> {
        if fs::metadata(&path).is_ok_and(|found| found.len() > MAX_LOG) {
            fs::rename(&path, path.with_extension("log.old"))?;
        }
        let mut log = Self { path, start: 0 };
        log.start = log.writer()?.metadata()?.len();
        Ok(log)
    }

    fn writer(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600);
        options.open(&self.path)
    }

    fn reason(&self) -> Option<String> {
        let mut file = File::open(&self.path).ok()?;
        file.seek(SeekFrom::Start(self.start)).ok()?;
        let mut bytes = Vec::new();
        file.take(MAX_REASON).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let reason = |line: &str| line.strip_prefix("lockkeeper: ").map(str::to_owned);
        let mut lines = text.lines().rev();
        lines.find_map(|line| {
            let panicked = || line.contains("internal error").then(|| line.to_owned());
            reason(line).or_else(panicked)
        })
    }
}
