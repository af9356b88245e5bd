//! Redis as a peer: a lock is a key that is set if absent, and deleted by a script that checks its token first. Clients
//! do not queue, but retry after a pause.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, Cmd, cmd};
use lockkeeper::LockError;
use testkit::{ChildProcess, TempFolder, free_address, with_death_signal};

use super::Keyed;
use crate::common::lock::{Lock, REMOTE_PAUSE};
use crate::process;
use crate::workloads::{Case, Relayed, Workload};

pub(crate) struct Server {
    address: SocketAddr,
    _process: ChildProcess,
    folder: TempFolder,
}

/// Options of a server that writes nothing to disk.
pub(crate) const VOLATILE: [&str; 2] = ["--appendonly", "no"];

/// Options of a server that syncs each write to its append-only file before it answers.
pub(crate) const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

impl Server {
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

    /// Returns its TCP address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

pub(crate) struct Redis {
    tcp: Pool,
    unix: Pool,
    unlock: String,
    cases: usize,
    server: Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Tcp,
    Unix,
}

struct Pool {
    url: String,
    connections: Vec<MultiplexedConnection>,
}

impl Pool {
    fn of(url: String) -> Self {
        let connections = Vec::new();
        Self { url, connections }
    }

    async fn fill(&mut self, count: usize) {
        while self.connections.len() < count {
            self.connections.push(connect(&self.url).await);
        }
    }
}

/// Opens a connection whose requests have no time limit, because the machine may be overloaded.
async fn connect(url: &str) -> MultiplexedConnection {
    let mut connection = Client::open(url)
        .expect("a URL")
        .get_multiplexed_async_connection()
        .await
        .expect("redis answers");
    connection.set_response_timeout(HELD_FOR);
    connection
}

const UNLOCK: &str = "if redis.call('get', KEYS[1]) == ARGV[1] \
    then return redis.call('del', KEYS[1]) else return 0 end";

/// Lifetime of a lock that is not released.
pub(crate) const HELD_FOR: Duration = Duration::from_secs(30);

/// Bounds of the maximum pause before a retry. It doubles each time, up to the constant pause of common clients
/// (redis-py 100 ms, node-redlock 200 ms). The actual pause is random.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(200);

impl Redis {
    pub(crate) async fn start(options: &[&str]) -> Result<Self, String> {
        let server = Server::start(options)?;
        let mut tcp = Pool::of(format!("redis://{}", server.address()));
        tcp.fill(1).await;
        Ok(Self {
            unlock: load_unlock(&mut tcp.connections[0]).await,
            tcp,
            unix: Pool::of(format!(
                "redis+unix://{}",
                server.folder.at("socket").display()
            )),
            cases: 0,
            server,
        })
    }

    pub(crate) fn address(&self) -> String {
        self.server.address().to_string()
    }

    /// Returns the handles for a case. Each client has its own connection.
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

async fn load_unlock(connection: &mut MultiplexedConnection) -> String {
    let mut load = cmd("SCRIPT");
    let load = load.arg("LOAD").arg(UNLOCK);
    load.query_async(connection).await.expect("a script")
}

#[derive(Clone)]
pub(crate) struct RedisLock {
    connection: MultiplexedConnection,
    key: String,
    unlock: String,
    held_for: Duration,
}

impl RedisLock {
    /// Connects a client whose lock ends after `held_for`.
    pub(crate) async fn connect(address: &str, key: &str, held_for: Duration) -> Self {
        let mut connection = connect(&format!("redis://{address}")).await;
        Self {
            unlock: load_unlock(&mut connection).await,
            connection,
            key: key.into(),
            held_for,
        }
    }
}

/// A key that this client has set. Dropping it requests the deletion without waiting.
pub(crate) struct RedisGuard {
    connection: MultiplexedConnection,
    unlock: Option<Cmd>,
}

impl Lock for RedisLock {
    type Guard = RedisGuard;

    async fn lock(&self) -> Result<RedisGuard, LockError> {
        let token = format!("{:016x}{:016x}", random(), random());
        let mut set = cmd("SET");
        set.arg(&self.key).arg(&token).arg("NX");
        set.arg("PX").arg(self.held_for.as_millis() as u64);
        let mut connection = self.connection.clone();
        let mut backoff = SHORTEST;
        while set
            .query_async::<Option<String>>(&mut connection)
            .await
            .expect("redis answers")
            .is_none()
        {
            let share = random() as f64 / u64::MAX as f64;
            tokio::time::sleep(backoff.mul_f64(share)).await;
            backoff = LONGEST.min(2 * backoff);
        }
        let mut unlock = cmd("EVALSHA");
        unlock.arg(&self.unlock).arg(1).arg(&self.key).arg(&token);
        Ok(RedisGuard {
            connection,
            unlock: Some(unlock),
        })
    }

    async fn unlock(mut guard: RedisGuard) -> Result<(), LockError> {
        let unlock = guard.unlock.take().expect("still held");
        let deleted: i64 = unlock
            .query_async(&mut guard.connection)
            .await
            .expect("redis answers");
        assert_eq!(deleted, 1, "it was still ours");
        Ok(())
    }

    fn token(_guard: &RedisGuard) -> Option<i64> {
        None
    }

    /// Without a queue, waits long enough for each client to retry a few times.
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
            let mut connection = self.connection.clone();
            tokio::spawn(async move { unlock.exec_async(&mut connection).await });
        }
    }
}

/// Returns a random number from the keys of the standard library's hash maps.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
