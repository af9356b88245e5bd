//! Systems under test: Lockkeeper's mutex, and tokio's as the floor.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{Client, Election, Guard, LockPath, Mutex, Semaphore, Session, ZnodePath};
use lockkeeper_store::CreateMode;

use crate::election::Candidate;
use crate::figures::{Row, Times};
use crate::many::Two;
use crate::rounds::Contender;
use crate::semaphore::Quota;
use crate::workloads::{Case, Workload};

/// One client's handle to a lock.
pub(crate) trait Lock: Clone + Send + Sync + 'static {
    type Guard: Send + 'static;

    fn lock(&self) -> impl Future<Output = Self::Guard> + Send;

    fn unlock(guard: Self::Guard) -> impl Future<Output = ()> + Send;

    /// A number that grows in the order of arrival, where the system has one.
    fn token(guard: &Self::Guard) -> Option<i64>;

    /// Waits until so many are in the queue, the holder included, and know whom they wait for.
    /// Each has asked for its place before.
    fn settled(&self, queued: usize) -> impl Future<Output = ()> + Send;

    /// Waits until one more, who has asked for its place before, stands in the queue and waits.
    fn settled_again(&self) -> impl Future<Output = ()> + Send;
}

/// The store under test, and a session of its own that looks on.
pub(crate) struct Keeper {
    url: String,
    observer: Session,
    _client: Client,
}

impl Keeper {
    pub(crate) async fn connect(url: &str) -> Self {
        let client = lockkeeper::connect(url).await.expect("the store answers");
        let observer = client.session().await.expect("a session");
        Self {
            url: url.into(),
            observer,
            _client: client,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn in_process(&self) -> bool {
        self.observer.timeout().is_none()
    }

    /// The handles to mutexes that a case needs.
    pub(crate) async fn locks(&self, case: &Case) -> Vec<Ours> {
        let handle = |client: &Client, path: LockPath, place| Ours {
            mutex: Mutex::new(client, path).expect("a valid path"),
            place,
        };
        self.handles(case, handle).await
    }

    /// The handles to elections that a case needs.
    pub(crate) async fn elections(&self, case: &Case) -> Vec<Candidate> {
        let handle = |client: &Client, path: LockPath, place| {
            Candidate::new(Election::new(client, path).expect("a valid path"), place)
        };
        self.handles(case, handle).await
    }

    /// The handles to two locks each that a case needs.
    pub(crate) async fn pairs(&self, case: &Case) -> Vec<Two> {
        let made = AtomicUsize::new(0);
        let handle = |client: &Client, path: LockPath, place| {
            let is_reversed = made.fetch_add(1, Ordering::Relaxed) % 2 == 1;
            Two::new(client.clone(), &path, is_reversed, place)
        };
        self.handles(case, handle).await
    }

    /// The handles to semaphores of one permit that a case needs.
    pub(crate) async fn semaphores(&self, case: &Case) -> Vec<Quota> {
        let handle = |client: &Client, path: LockPath, place| {
            Quota::new(
                Semaphore::new(client, path, 1).expect("a valid path"),
                place,
            )
        };
        self.handles(case, handle).await
    }

    /// The handles that a case needs: each client has a session of its own.
    pub(crate) async fn handles<L>(
        &self,
        case: &Case,
        handle: impl Fn(&Client, LockPath, Place) -> L,
    ) -> Vec<L> {
        let path = self.fresh_path();
        let mut clients = Vec::new();
        for _ in 0..case.clients {
            clients.push(lockkeeper::connect(&*self.url).await.expect("a session"));
        }
        let place = || Place {
            observer: self.observer.clone(),
        };
        match case.workload {
            Workload::W4 => (0..case.n)
                .map(|key| (&clients[key % clients.len()], path.key(&key.to_string())))
                .map(|(client, path)| handle(client, path, place()))
                .collect(),
            _ => clients
                .iter()
                .map(|client| handle(client, path.clone(), place()))
                .collect(),
        }
    }

    fn fresh_path(&self) -> LockPath {
        static USED: AtomicUsize = AtomicUsize::new(0);
        let number = USED.fetch_add(1, Ordering::Relaxed);
        let run = std::process::id();
        LockPath::new(format!("/bench/{run}-{number}")).expect("a valid path")
    }

    /// Lower bounds of an acquire on a remote store: a create and a delete with nothing around them;
    /// and the way of most recipes, which list only when the create has been answered.
    pub(crate) async fn raw(&self, case: Case) -> [Contender; 2] {
        assert_eq!(case.workload, Workload::W1);
        let path = self.fresh_path().as_znode().clone();
        let made = self.observer.create_all(&path, CreateMode::Persistent);
        made.await.expect("a parent");
        [("create", false), ("create, then list", true)].map(|(name, list)| {
            let (session, parent) = (self.observer.clone(), path.clone());
            Contender::new(name, &self.url, move |time| {
                raw_round(session.clone(), parent.clone(), list, time)
            })
        })
    }
}

async fn raw_round(session: Session, parent: ZnodePath, list: bool, time: Duration) -> Row {
    let entry = parent.join("raw-lock-").expect("a valid path");
    let (mut acquires, mut releases) = (Times::default(), Times::default());
    let start = Instant::now();
    while start.elapsed() < time {
        let asked = Instant::now();
        let create = session.create(&entry, "", CreateMode::EphemeralSequential);
        let (path, _) = create.await.expect("created");
        if list {
            session.get_children(&parent).await.expect("listed");
        }
        acquires.push(asked.elapsed());
        let left = Instant::now();
        session.delete(&path, None).await.expect("deleted");
        releases.push(left.elapsed());
    }
    let mut row = Row::new();
    acquires.write(&mut row, "acquire");
    releases.write(&mut row, "release");
    row
}

/// A handle to Lockkeeper's mutex.
#[derive(Clone)]
pub(crate) struct Ours {
    mutex: Mutex,
    place: Place,
}

/// Observer of queues while they are joined.
#[derive(Clone)]
pub(crate) struct Place {
    observer: Session,
}

/// Longest time in which a contender on a remote store finds its predecessor.
pub(crate) const REMOTE_PAUSE: Duration = Duration::from_millis(5);

impl Place {
    async fn pause_if_remote(&self, pause: Duration) {
        if self.observer.timeout().is_some() {
            tokio::time::sleep(pause).await;
        }
    }

    /// See [`Lock::settled`].
    pub(crate) async fn settled(&self, queue: &ZnodePath, queued: usize) {
        let listed = || self.observer.get_all_children_number(queue);
        while listed().await.expect("a list") < queued {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.pause_if_remote(100 * REMOTE_PAUSE).await;
    }

    /// See [`Lock::settled_again`].
    pub(crate) async fn settled_again(&self) {
        self.pause_if_remote(REMOTE_PAUSE).await;
    }
}

impl Lock for Ours {
    type Guard = Guard;

    async fn lock(&self) -> Guard {
        self.mutex.lock().await.expect("granted")
    }

    async fn unlock(guard: Guard) {
        guard.release().await.expect("released");
    }

    fn token(guard: &Guard) -> Option<i64> {
        Some(guard.fencing_token().as_i64())
    }

    async fn settled(&self, queued: usize) {
        self.place.settled(self.mutex.path(), queued).await;
    }

    async fn settled_again(&self) {
        self.place.settled_again().await;
    }
}

/// tokio's mutex, which is fair as well; nothing of it outlives the process.
#[derive(Clone)]
pub(crate) struct TokioLock(&'static tokio::sync::Mutex<()>);

impl TokioLock {
    /// The handles that a case needs. The locks are leaked: their guards borrow them, which costs
    /// less than sharing.
    pub(crate) fn many(case: &Case) -> Vec<Self> {
        let new = || Self(Box::leak(Box::default()));
        match case.workload {
            Workload::W4 => (0..case.n).map(|_| new()).collect(),
            _ => vec![new(); case.clients],
        }
    }
}

impl Lock for TokioLock {
    type Guard = tokio::sync::MutexGuard<'static, ()>;

    async fn lock(&self) -> Self::Guard {
        self.0.lock().await
    }

    async fn unlock(guard: Self::Guard) {
        drop(guard);
    }

    fn token(_guard: &Self::Guard) -> Option<i64> {
        None
    }

    async fn settled(&self, _queued: usize) {}

    async fn settled_again(&self) {}
}
