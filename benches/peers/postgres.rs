//! Postgres as a peer: advisory locks of a session. The server queues.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use lockkeeper::LockError;
use rustix::process::Signal;
use testkit::{ChildProcess, TempFolder, free_address, with_death_signal};

use super::Keyed;
use super::pipe::{Pipe, Protocol};
use crate::common::lock::{Lock, REMOTE_PAUSE};
use crate::common::socket::Address;
use crate::process;
use crate::workloads::{Case, Relayed, Workload};

pub(crate) struct Postgres {
    pool: Pool,
    cases: usize,
    process: ChildProcess,
    _folder: TempFolder,
}

impl Postgres {
    pub(crate) async fn start() -> Result<Self, String> {
        process::need("postgresql", || programs().is_some())?;
        let programs = programs().expect("found, or installed");
        let (folder, port) = (TempFolder::short(), free_address().port());
        let user = user()?;
        if let Some((uid, gid)) = user {
            let owned = chown(folder.path(), Some(uid), Some(gid));
            owned.map_err(|error| format!("chown: {error}"))?;
        }
        let command = |program: &str| {
            // A killed Postgres would leave its processes and shared memory behind.
            let mut command = with_death_signal("setpriv");
            command.args(["--pdeathsig", "QUIT"]);
            command.arg(programs.join(program));
            command.current_dir(folder.path());
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            command
        };
        let data = folder.at("data");
        let mut initdb = command("initdb");
        initdb.args(["--auth=trust", "--username=bench", "--no-sync"]);
        initdb.args(["--encoding=UTF8", "--locale=C", "--pgdata"]);
        let made = initdb.arg(&data).output();
        let made = made.map_err(|error| format!("initdb: {error}"))?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr);
            return Err(format!("initdb: {said}"));
        }
        let mut postgres = command("postgres");
        postgres
            .arg("-D")
            .arg(&data)
            .arg("-p")
            .arg(port.to_string());
        postgres.args(["-h", "127.0.0.1", "-k", "", "-N", MOST_SESSIONS]);
        let status = || std::fs::read_to_string(data.join("postmaster.pid"));
        let is_ready = || status().is_ok_and(|lines| lines.contains("\nready"));
        Ok(Self {
            pool: Pool {
                port,
                idle: Arc::default(),
            },
            cases: 0,
            process: process::start(&mut postgres, &folder, is_ready)?,
            _folder: folder,
        })
    }

    pub(crate) fn address(&self) -> String {
        self.pool.port.to_string()
    }

    /// Returns the handles for a case. Each holder takes a session from the pool, because Postgres would grant the same
    /// session its lock twice.
    pub(crate) async fn locks(&mut self, case: &Case) -> Vec<PostgresLock> {
        // Two more than clients, because a waiter queues again before the guard that it passed on is released.
        self.pool.fill(case.clients + 2).await;
        self.cases += 1;
        let key = (self.cases * 1_000_000) as i64;
        match case.workload {
            Workload::W4 => {
                let shared: Vec<_> = (0..case.clients).map(|_| self.pool.take()).collect();
                let lock = |number: usize| PostgresLock {
                    key: key + number as i64,
                    sessions: Sessions::Shared(shared[number % shared.len()].clone()),
                };
                (0..case.n).map(lock).collect()
            }
            _ => {
                let lock = |_| PostgresLock {
                    key,
                    sessions: Sessions::Pooled(self.pool.clone()),
                };
                (0..case.clients).map(lock).collect()
            }
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.process.signal(Signal::QUIT);
        let _ = self.process.wait();
    }
}

/// Postgres refuses more sessions.
const MOST_SESSIONS: &str = "1200";

/// Returns the folder of `initdb` and `postgres`, which Debian does not put into the path.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok();
    let versions = versions.into_iter().flatten().flatten();
    let folders = versions.map(|version| version.path().join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = folders.chain(std::env::split_paths(&path)).collect();
    folders.retain(|folder| folder.join("initdb").exists() && folder.join("postgres").exists());
    folders.into_iter().max()
}

/// Returns the user created by Debian's package, if we are root, because Postgres refuses to run as root.
fn user() -> Result<Option<(u32, u32)>, String> {
    use std::os::unix::fs::MetadataExt;
    let me = std::fs::metadata("/proc/self").map_err(|error| error.to_string())?;
    if me.uid() != 0 {
        return Ok(None);
    }
    let users = std::fs::read_to_string(Path::new("/etc/passwd"));
    let users = users.map_err(|error| format!("/etc/passwd: {error}"))?;
    let user = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_meant = fields.next() == Some("postgres");
        let ids = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        is_meant.then_some(ids)
    });
    user.map(Some)
        .ok_or("there is no user postgres to run it as".into())
}

#[derive(Clone)]
struct Pool {
    port: u16,
    idle: Arc<Mutex<Vec<Pipe<Messages>>>>,
}

impl Pool {
    async fn fill(&self, count: usize) {
        while self.idle.lock().expect("no panic").len() < count {
            let session = open(self.port).await;
            self.put(session);
        }
    }

    fn take(&self) -> Pipe<Messages> {
        let idle = self.idle.lock().expect("no panic").pop();
        idle.expect("there is a session for each who asks")
    }

    fn put(&self, session: Pipe<Messages>) {
        self.idle.lock().expect("no panic").push(session);
    }
}

async fn open(port: u16) -> Pipe<Messages> {
    let session = Pipe::<Messages>::connect(&Address::loopback(port)).await;
    let session = session.expect("postgres answers");
    let mut start = Vec::new();
    start.extend_from_slice(&[0, 3, 0, 0]);
    start.extend_from_slice(b"user\0bench\0database\0postgres\0\0");
    session.ask(with_length(&start)).await.expect_ok();
    for (name, function) in [("l", "pg_advisory_lock"), ("u", "pg_advisory_unlock")] {
        let mut body = format!("{name}\0SELECT {function}($1)\0").into_bytes();
        body.extend_from_slice(&1_i16.to_be_bytes());
        body.extend_from_slice(&BIGINT.to_be_bytes());
        let mut prepare = message(b'P', &body);
        prepare.extend_from_slice(&message(b'S', &[]));
        session.ask(prepare).await.expect_ok();
    }
    session
}

/// Postgres' type number.
const BIGINT: i32 = 20;

#[derive(Clone)]
pub(crate) struct PostgresLock {
    key: i64,
    sessions: Sessions,
}

#[derive(Clone)]
enum Sessions {
    /// A session for each holder or waiter.
    Pooled(Pool),
    /// One session for many uncontended keys.
    Shared(Pipe<Messages>),
}

impl PostgresLock {
    pub(crate) async fn connect(port: &str, key: &str) -> Self {
        let session = open(port.parse().expect("a port")).await;
        Self {
            key: key.parse().expect("a number"),
            sessions: Sessions::Shared(session),
        }
    }
}

/// A lock that a session holds. Dropping it requests the release without waiting.
pub(crate) struct PostgresGuard {
    session: Option<Pipe<Messages>>,
    lock: PostgresLock,
}

impl PostgresLock {
    fn session(&self) -> Pipe<Messages> {
        match &self.sessions {
            Sessions::Pooled(pool) => pool.take(),
            Sessions::Shared(session) => session.clone(),
        }
    }

    fn give_back(&self, session: Pipe<Messages>) {
        if let Sessions::Pooled(pool) = &self.sessions {
            pool.put(session);
        }
    }
}

impl Lock for PostgresLock {
    type Guard = PostgresGuard;

    async fn lock(&self) -> Result<PostgresGuard, LockError> {
        let session = self.session();
        session.ask(execute("l", self.key)).await.expect_ok();
        Ok(PostgresGuard {
            session: Some(session),
            lock: self.clone(),
        })
    }

    async fn unlock(mut guard: PostgresGuard) -> Result<(), LockError> {
        let session = guard.session.take().expect("still held");
        let answer = session.ask(execute("u", guard.lock.key)).await;
        assert!(answer.expect_ok(), "it was held");
        guard.lock.give_back(session);
        Ok(())
    }

    fn token(_guard: &PostgresGuard) -> Option<i64> {
        None
    }

    async fn settled(&self, _queued: usize) -> Result<(), LockError> {
        tokio::time::sleep(100 * REMOTE_PAUSE).await;
        Ok(())
    }
}

impl Relayed for PostgresLock {
    async fn settled_again(&self) {
        tokio::time::sleep(REMOTE_PAUSE).await;
    }
}

impl Keyed for PostgresLock {
    fn key(&self) -> String {
        self.key.to_string()
    }
}

impl Drop for PostgresGuard {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            drop(session.send(execute("u", self.lock.key)));
            // The session can be reused immediately, because its requests are answered in order, the release first.
            self.lock.give_back(session);
        }
    }
}

/// Binds a key to a prepared statement, runs it and ends the transaction.
fn execute(statement: &str, key: i64) -> Vec<u8> {
    let mut bind = format!("\0{statement}\0").into_bytes();
    // One format (binary), one parameter with its length, and one result format (binary).
    for short in [1_i16, 1, 1] {
        bind.extend_from_slice(&short.to_be_bytes());
    }
    bind.extend_from_slice(&8_i32.to_be_bytes());
    bind.extend_from_slice(&key.to_be_bytes());
    for short in [1_i16, 1] {
        bind.extend_from_slice(&short.to_be_bytes());
    }
    let mut bytes = message(b'B', &bind);
    bytes.extend_from_slice(&message(b'E', &[0, 0, 0, 0, 0]));
    bytes.extend_from_slice(&message(b'S', &[]));
    bytes
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&with_length(body));
    bytes
}

fn with_length(body: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + body.len() as i32).to_be_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

/// The needed part of Postgres' protocol. An answer is everything up to `ReadyForQuery`.
pub(crate) struct Messages;

pub(crate) struct Answer {
    error: Option<String>,
    /// True if a row contained `true`.
    is_true: bool,
}

impl Answer {
    fn expect_ok(self) -> bool {
        if let Some(error) = self.error {
            panic!("postgres: {error}");
        }
        self.is_true
    }
}

impl Protocol for Messages {
    type Answer = Answer;

    fn parse(bytes: &[u8]) -> Option<(usize, Answer)> {
        let (mut at, mut error, mut is_true) = (0, None, false);
        loop {
            let kind = *bytes.get(at)?;
            let length = bytes.get(at + 1..at + 5)?.try_into().expect("4 bytes");
            let end = at + 1 + i32::from_be_bytes(length) as usize;
            let body = bytes.get(at + 5..end)?;
            at = end;
            match kind {
                b'E' => error = Some(String::from_utf8_lossy(body).into_owned()),
                b'D' => is_true = body.last() == Some(&1),
                b'Z' => return Some((at, Answer { error, is_true })),
                _ => {}
            }
        }
    }
}
