//! The recipes, as something that is taken and let go.

use std::future::Future;

use lockkeeper::{
    Client, Election, Guard, Leadership, LockPath, MultiGuard, Mutex, Permit, ReadGuard, RwLock,
    Semaphore, WriteGuard, lock_all,
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
    type Held: Send + 'static;

    /// The ways to take it.
    const SIDES: &'static [Side] = &[Side::Write];

    fn client(&self) -> &Client;

    fn take(&self, side: Side) -> impl Future<Output = Self::Held> + Send;

    fn leave(held: Self::Held) -> impl Future<Output = ()> + Send;

    /// Grows in the order of arrival.
    fn token(held: &Self::Held) -> i64;
}

pub(crate) fn mutex(client: &Client, path: LockPath) -> Mutex {
    Mutex::new(client, path).expect("a valid path")
}

impl Subject for Mutex {
    type Held = Guard;

    fn client(&self) -> &Client {
        Mutex::client(self)
    }

    async fn take(&self, _side: Side) -> Guard {
        self.lock().await.expect("granted")
    }

    async fn leave(held: Guard) {
        held.release().await.expect("released");
    }

    fn token(held: &Guard) -> i64 {
        held.fencing_token().as_i64()
    }
}

pub(crate) fn rwlock(client: &Client, path: LockPath) -> RwLock {
    RwLock::new(client, path).expect("a valid path")
}

impl Subject for RwLock {
    type Held = Guard;

    const SIDES: &'static [Side] = &[Side::Write, Side::Read];

    fn client(&self) -> &Client {
        RwLock::client(self)
    }

    async fn take(&self, side: Side) -> Guard {
        let granted = match side {
            Side::Read => self.read().await.map(ReadGuard::into_guard),
            Side::Write => self.write().await.map(WriteGuard::into_guard),
        };
        granted.expect("granted")
    }

    async fn leave(held: Guard) {
        held.release().await.expect("released");
    }

    fn token(held: &Guard) -> i64 {
        held.fencing_token().as_i64()
    }
}

/// Permits of a semaphore.
pub(crate) const PERMITS: usize = 3;

/// A semaphore of which one permit at a time is taken.
#[derive(Clone)]
pub(crate) struct Permits(Semaphore);

impl Permits {
    pub(crate) fn new(client: &Client, path: LockPath) -> Self {
        Self(Semaphore::new(client, path, PERMITS as u32).expect("a valid path"))
    }
}

impl Subject for Permits {
    type Held = Permit;

    fn client(&self) -> &Client {
        self.0.client()
    }

    async fn take(&self, _side: Side) -> Permit {
        self.0.acquire().await.expect("granted")
    }

    async fn leave(held: Permit) {
        held.release().await.expect("released");
    }

    fn token(held: &Permit) -> i64 {
        held.fencing_token().as_i64()
    }
}

/// A campaign in an election, and its resignation.
#[derive(Clone)]
pub(crate) struct Stand(Election);

impl Stand {
    pub(crate) fn new(client: &Client, path: LockPath) -> Self {
        Self(Election::new(client, path).expect("a valid path"))
    }
}

impl Subject for Stand {
    type Held = Leadership;

    fn client(&self) -> &Client {
        self.0.client()
    }

    async fn take(&self, _side: Side) -> Leadership {
        self.0.campaign("bench").await.expect("elected")
    }

    async fn leave(held: Leadership) {
        held.resign().await.expect("resigned");
    }

    fn token(held: &Leadership) -> i64 {
        held.epoch().as_i64()
    }
}

/// Two locks at once.
#[derive(Clone)]
pub(crate) struct Two {
    client: Client,
    keys: [LockPath; 2],
}

impl Two {
    pub(crate) fn new(client: &Client, path: LockPath) -> Self {
        Self {
            client: client.clone(),
            keys: ["a", "b"].map(|key| path.key(key)),
        }
    }
}

impl Subject for Two {
    type Held = MultiGuard;

    fn client(&self) -> &Client {
        &self.client
    }

    async fn take(&self, _side: Side) -> MultiGuard {
        lock_all(&self.client, &self.keys).await.expect("granted")
    }

    async fn leave(held: MultiGuard) {
        held.release().await.expect("released");
    }

    fn token(held: &MultiGuard) -> i64 {
        held.fencing_token().as_i64()
    }
}
