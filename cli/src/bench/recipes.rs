//! The recipes behind one interface. Shared by `lockkeeper bench` and the benchmarks in `benches/`.

use std::future::Future;

use lockkeeper::{
    Client, Election, Guard, Leadership, LockError, LockGuard, LockPath, MultiGuard, Mutex, Permit,
    ReadGuard, RwLock, Semaphore, WriteGuard, ZnodePath, lock_all,
};

/// Mode of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Read,
    Write,
}

impl Side {
    /// Returns the suffix that distinguishes it from the other side, of a recipe that has these sides.
    pub(crate) fn suffix(self, sides: &[Self]) -> &'static str {
        match self {
            _ if sides.len() == 1 => "",
            Self::Read => " read",
            Self::Write => " write",
        }
    }
}

/// A recipe for one client.
pub(crate) trait Subject: Clone + Send + Sync + 'static {
    type Held: LockGuard;

    /// Modes of an acquire.
    const SIDES: &'static [Side] = &[Side::Write];

    /// Number of znodes below a queue's path that are no contenders.
    const PARENTS: usize = 0;

    fn new(client: &Client, path: LockPath) -> Self;

    fn client(&self) -> &Client;

    /// Returns the paths below which contenders queue.
    fn queues(&self) -> Vec<&ZnodePath>;

    fn take(&self, side: Side) -> impl Future<Output = Result<Self::Held, LockError>> + Send;

    /// Returns the part of the lock that an acquire in this mode takes, of [`WHOLE`].
    fn share(_side: Side) -> u32 {
        WHOLE
    }
}

/// The whole of a lock: its holder excludes all others.
pub(crate) const WHOLE: u32 = 1 << 20;

/// Returns a grant's token, which grows in the order of arrival.
pub(crate) fn token(held: &impl LockGuard) -> i64 {
    held.fencing_token().as_i64()
}

impl Subject for Mutex {
    type Held = Guard;

    fn new(client: &Client, path: LockPath) -> Self {
        Self::new(client, path).expect("a valid path")
    }

    fn client(&self) -> &Client {
        self.client()
    }

    fn queues(&self) -> Vec<&ZnodePath> {
        vec![self.path()]
    }

    async fn take(&self, _side: Side) -> Result<Guard, LockError> {
        self.lock().await
    }
}

impl Subject for RwLock {
    type Held = Guard;

    const SIDES: &'static [Side] = &[Side::Write, Side::Read];

    fn new(client: &Client, path: LockPath) -> Self {
        Self::new(client, path).expect("a valid path")
    }

    fn client(&self) -> &Client {
        self.client()
    }

    fn queues(&self) -> Vec<&ZnodePath> {
        vec![self.path()]
    }

    async fn take(&self, side: Side) -> Result<Guard, LockError> {
        match side {
            Side::Read => self.read().await.map(ReadGuard::into_guard),
            Side::Write => self.write().await.map(WriteGuard::into_guard),
        }
    }

    fn share(side: Side) -> u32 {
        match side {
            Side::Read => 1,
            Side::Write => WHOLE,
        }
    }
}

/// A semaphore of this many permits, of which one at a time is taken.
#[derive(Clone)]
pub(crate) struct Permits<const COUNT: u32>(Semaphore);

impl<const COUNT: u32> Subject for Permits<COUNT> {
    type Held = Permit;

    // `locks`, `leases` and `permits`.
    const PARENTS: usize = 3;

    fn new(client: &Client, path: LockPath) -> Self {
        Self(Semaphore::new(client, path, COUNT).expect("a valid path"))
    }

    fn client(&self) -> &Client {
        self.0.client()
    }

    fn queues(&self) -> Vec<&ZnodePath> {
        vec![self.0.path()]
    }

    async fn take(&self, _side: Side) -> Result<Permit, LockError> {
        self.0.acquire().await
    }

    fn share(_side: Side) -> u32 {
        WHOLE / COUNT
    }
}

impl Subject for Election {
    type Held = Leadership;

    fn new(client: &Client, path: LockPath) -> Self {
        Self::new(client, path).expect("a valid path")
    }

    fn client(&self) -> &Client {
        self.client()
    }

    fn queues(&self) -> Vec<&ZnodePath> {
        vec![self.path()]
    }

    async fn take(&self, _side: Side) -> Result<Leadership, LockError> {
        self.campaign("bench").await
    }
}

/// Two locks, acquired together by `lock_all`.
#[derive(Clone)]
pub(crate) struct Two {
    client: Client,
    locks: [LockPath; 2],
}

impl Two {
    /// Names the locks in the opposite order.
    pub(crate) fn reverse(&mut self) {
        self.locks.reverse();
    }
}

impl Subject for Two {
    type Held = MultiGuard;

    fn new(client: &Client, path: LockPath) -> Self {
        Self {
            client: client.clone(),
            locks: ["a", "b"].map(|key| path.key(key)),
        }
    }

    fn client(&self) -> &Client {
        &self.client
    }

    fn queues(&self) -> Vec<&ZnodePath> {
        self.locks.iter().map(|lock| lock.as_znode()).collect()
    }

    async fn take(&self, _side: Side) -> Result<MultiGuard, LockError> {
        lock_all(&self.client, &self.locks).await
    }
}
