//! Redis as a peer: a lock is a key that is set where it is absent, and deleted by a script that first compares
//! its token. Clients do not queue: they retry after a pause.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use lockkeeper::LockError;
use testkit::{ChildProcess, TempFolder, free_address, with_death_signal};

use super::Keyed;
use super::pipe::{Pipe, Protocol};
use crate::common::lock::{Lock, REMOTE_PAUSE};
use crate::common::socket::Address;
use crate::process;
use crate::workloads::{Case, Relayed, Workload};

/// A Redis server that is started for the run.
pub(crate) struct Server {
    address: SocketAddr,
    _process: ChildProcess,
    folder: TempFolder,
}

/// Options of a server that writes nothing to the disk.
pub(crate) const VOLATILE: [&str; 2] = ["--appendonly", "no"];

/// Options of a server that syncs each write to its append-only file before it answers.
pub(crate) const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

impl Server {
    /// Starts a server with these options.
    pub(crate) fn start(options: &[&str]) -> Result<Self, String> {
        let is_there = || Command::new("redis-server").arg("-v").output().is_ok();
        process::need("redis-server", is_there)?;
        let (folder, address) = (TempFolder::short(), free_address());
        let mut command = with_death_signal("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        command.arg("--unixsocket").arg(folder.at("socket"));
        command.args(["--save", ""]).args(options).arg("--dir");
        command.arg(folder.path());
        let is_ready = || TcpStream::connect(address).is_ok();
        Ok(Self {
            address,
            _process: process::start(&mut command, &folder, is_ready)?,
            folder,
        })
    }

    /// Returns its address by TCP.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A Redis server, and connections to it.
pub(crate) struct Redis {
    tcp: Pool,
    unix: Pool,
    unlock: String,
    cases: usize,
    server: Server,
}

/// Transport of connections to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Tcp,
    Unix,
}

/// Connections to one of its sockets.
struct Pool {
    address: Address,
    connections: Vec<Pipe<Resp>>,
}

impl Pool {
    fn of(address: Address) -> Self {
        let connections = Vec::new();
        Self {
            address,
            connections,
        }
    }

    async fn fill(&mut self, count: usize) {
        while self.connections.len() < count {
            let connection = Pipe::connect(&self.address).await;
            self.connections.push(connection.expect("redis answers"));
        }
    }
}

/// Script with which a holder deletes its key.
const UNLOCK: &str = "if redis.call('get', KEYS[1]) == ARGV[1] \
    then return redis.call('del', KEYS[1]) else return 0 end";

/// Lifetime of a lock that is not released.
pub(crate) const HELD_FOR: Duration = Duration::from_secs(30);

/// Bounds of the longest pause before a retry: it doubles each time, up to what common clients of Redis
/// wait from the first time on (redis-py 100 ms, node-redlock 200 ms). The pause itself is random.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(200);

impl Redis {
    /// Starts a server with these options.
    pub(crate) async fn start(options: &[&str]) -> Result<Self, String> {
        let server = Server::start(options)?;
        let mut tcp = Pool::of(Address::Tcp(server.address()));
        tcp.fill(1).await;
        Ok(Self {
            unlock: load_unlock(&tcp.connections[0]).await,
            tcp,
            unix: Pool::of(Address::Unix(server.folder.at("socket"))),
            cases: 0,
            server,
        })
    }

    pub(crate) fn address(&self) -> String {
        self.server.address().to_string()
    }

    /// Returns the handles that a case needs: each client has its own connection.
    pub(crate) async fn locks(&mut self, way: Way, case: &Case) -> Vec<RedisLock> {
        let pool = match way {
            Way::Tcp => &mut self.tcp,
            Way::Unix => &mut self.unix,
        };
        pool.fill(case.clients).await;
        self.cases += 1;
        let count = match case.workload {
            Workload::W4 => case.n,
            _ => case.clients,
        };
        let lock = |number: usize| RedisLock {
            connection: pool.connections[number % case.clients].clone(),
            key: match case.workload {
                Workload::W4 => format!("bench:{}:{number}", self.cases),
                _ => format!("bench:{}", self.cases),
            },
            unlock: self.unlock.clone(),
            held_for: HELD_FOR,
        };
        (0..count).map(lock).collect()
    }
}

/// Loads the script with which a holder deletes its key; returns its name.
async fn load_unlock(connection: &Pipe<Resp>) -> String {
    match connection
        .ask(command_of(&["SCRIPT", "LOAD", UNLOCK]))
        .await
    {
        Answer::Text(name) => name,
        answer => panic!("redis takes no script: {answer:?}"),
    }
}

/// A client's handle to a lock.
#[derive(Clone)]
pub(crate) struct RedisLock {
    connection: Pipe<Resp>,
    key: String,
    unlock: String,
    held_for: Duration,
}

impl RedisLock {
    /// Connects a client, whose lock ends after `held_for`.
    pub(crate) async fn connect(address: &str, key: &str, held_for: Duration) -> Self {
        let address = Address::Tcp(address.parse().expect("an address"));
        let connection = Pipe::connect(&address).await.expect("redis answers");
        Self {
            unlock: load_unlock(&connection).await,
            connection,
            key: key.into(),
            held_for,
        }
    }
}

/// A key that this client has set. Dropping it requests its deletion, and does not wait.
pub(crate) struct RedisGuard {
    connection: Pipe<Resp>,
    unlock: Option<Vec<u8>>,
}

impl Lock for RedisLock {
    type Guard = RedisGuard;

    async fn lock(&self) -> Result<RedisGuard, LockError> {
        let token = format!("{:016x}{:016x}", random(), random());
        let held_for = self.held_for.as_millis().to_string();
        let set = ["SET", &self.key, &token, "NX", "PX", &held_for];
        let mut backoff = SHORTEST;
        loop {
            match self.connection.ask(command_of(&set)).await {
                Answer::Text(_) => break,
                Answer::Nothing => {
                    let share = random() as f64 / u64::MAX as f64;
                    tokio::time::sleep(backoff.mul_f64(share)).await;
                    backoff = LONGEST.min(2 * backoff);
                }
                answer => panic!("redis: {answer:?}"),
            }
        }
        let unlock = ["EVALSHA", &self.unlock, "1", &self.key, &token];
        Ok(RedisGuard {
            connection: self.connection.clone(),
            unlock: Some(command_of(&unlock)),
        })
    }

    async fn unlock(mut guard: RedisGuard) -> Result<(), LockError> {
        let unlock = guard.unlock.take().expect("still held");
        let answer = guard.connection.ask(unlock).await;
        assert_eq!(answer, Answer::Number(1), "it was still ours");
        Ok(())
    }

    fn token(_guard: &RedisGuard) -> Option<i64> {
        None
    }

    /// There is no queue: waits for a time in which each client retries a few times.
    async fn settled(&self, _queued: usize) -> Result<(), LockError> {
        tokio::time::sleep(LONGEST).await;
        Ok(())
    }
}

impl Relayed for RedisLock {
    async fn settled_again(&self) {
        tokio::time::sleep(REMOTE_PAUSE).await;
    }
}

impl Keyed for RedisLock {
    fn key(&self) -> String {
        self.key.clone()
    }
}

impl Drop for RedisGuard {
    fn drop(&mut self) {
        if let Some(unlock) = self.unlock.take() {
            drop(self.connection.send(unlock));
        }
    }
}

/// Returns a random number, from the keys of the standard library's hash maps.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Redis' protocol, as far as it is needed here.
pub(crate) struct Resp;

#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Text(String),
    Number(i64),
    Nothing,
    Error(String),
}

fn command_of(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    bytes.into_bytes()
}

impl Protocol for Resp {
    type Answer = Answer;

    fn parse(bytes: &[u8]) -> Option<(usize, Answer)> {
        let end = bytes.windows(2).position(|two| two == b"\r\n")?;
        let line = std::str::from_utf8(&bytes[..end]).expect("redis writes text");
        let (kind, rest) = line.split_at(1);
        let number = || rest.parse::<i64>().expect("a number");
        let answer = match kind {
            "+" => Answer::Text(rest.to_owned()),
            "-" => Answer::Error(rest.to_owned()),
            ":" => Answer::Number(number()),
            "$" if number() < 0 => Answer::Nothing,
            "$" => {
                let (start, length) = (end + 2, number() as usize);
                let text = bytes.get(start..start + length + 2)?;
                let text = String::from_utf8_lossy(&text[..length]).into_owned();
                return Some((start + length + 2, Answer::Text(text)));
            }
            _ => panic!("redis says {line:?}"),
        };
        Some((end + 2, answer))
    }
}
