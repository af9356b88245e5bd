//! The interface of every lock that is measured, and Lockkeeper's recipes behind it.

use std::future::Future;
use std::time::{Duration, Instant};

use lockkeeper::{Client, LockPath, Session, ZnodePath};
use lockkeeper_store::CreateMode;

use crate::common::fresh_name;
use crate::common::recipes::{self, Side, Subject, Two};
use crate::figures::{Row, Times};
use crate::rounds::Contender;
use crate::workloads::{Case, Workload};

/// One client's handle to a lock.
pub(crate) trait Lock: Clone + Send + Sync + 'static {
    type Guard: Send + 'static;

    fn lock(&self) -> impl Future<Output = Self::Guard> + Send;

    fn unlock(guard: Self::Guard) -> impl Future<Output = ()> + Send;

    /// A number that grows in the order of arrival, where the system has one.
    fn token(guard: &Self::Guard) -> Option<i64>;

    /// Waits until so many contenders are in the queue, the holder included, and have found their predecessors.
    /// Each has sent its request before.
    fn settled(&self, queued: usize) -> impl Future<Output = ()> + Send;

    /// Waits until one more contender, which has sent its request before, is in the queue and waits.
    fn settled_again(&self) -> impl Future<Output = ()> + Send;
}

/// The store under test, with a session that observes it.
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

    /// Returns an observer of queues.
    pub(crate) fn place(&self) -> Place {
        let observer = self.observer.clone();
        Place { observer }
    }

    /// Returns the handles that a case needs: each client has its own session.
    pub(crate) async fn locks<S: Subject>(&self, case: &Case) -> Vec<Ours<S>> {
        let path = LockPath::new(format!("/bench/{}", fresh_name())).expect("a valid path");
        let mut clients = Vec::new();
        for _ in 0..case.clients {
            clients.push(lockkeeper::connect(&*self.url).await.expect("a session"));
        }
        let handle = |client: &Client, path: LockPath| Ours {
            subject: S::new(client, path),
            place: self.place(),
        };
        match case.workload {
            Workload::W4 => (0..case.n)
                .map(|key| (&clients[key % clients.len()], path.key(&key.to_string())))
                .map(|(client, path)| handle(client, path))
                .collect(),
            _ => clients
                .iter()
                .map(|client| handle(client, path.clone()))
                .collect(),
        }
    }

    /// Returns handles to two locks each; every other one names them in the opposite order.
    pub(crate) async fn pairs(&self, case: &Case) -> Vec<Ours<Two>> {
        let mut pairs = self.locks::<Two>(case).await;
        for pair in pairs.iter_mut().skip(1).step_by(2) {
            pair.subject.reverse();
        }
        pairs
    }

    /// Lower bounds of an acquire on a remote store: a create and a delete with nothing around them;
    /// and the way of most recipes, which list only when the create has been answered.
    pub(crate) async fn raw(&self, case: Case) -> [Contender; 2] {
        assert_eq!(case.workload, Workload::W1);
        let path = ZnodePath::new(format!("/bench/{}", fresh_name())).expect("a valid path");
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

/// A handle to one of Lockkeeper's recipes.
#[derive(Clone)]
pub(crate) struct Ours<S> {
    pub(crate) subject: S,
    place: Place,
}

impl<S: Subject> Lock for Ours<S> {
    type Guard = S::Held;

    async fn lock(&self) -> S::Held {
        self.subject.take(Side::Write).await
    }

    async fn unlock(guard: S::Held) {
        recipes::leave(guard).await;
    }

    fn token(guard: &S::Held) -> Option<i64> {
        Some(recipes::token(guard))
    }

    async fn settled(&self, queued: usize) {
        for queue in self.subject.queues() {
            self.place.settled(queue, queued + S::PARENTS).await;
        }
    }

    async fn settled_again(&self) {
        self.place.settled_again().await;
    }
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
        self.queued(queue, queued).await;
        self.pause_if_remote(100 * REMOTE_PAUSE).await;
    }

    /// Waits until so many contenders are in the queue, the holder included.
    pub(crate) async fn queued(&self, queue: &ZnodePath, queued: usize) {
        let listed = || self.observer.get_all_children_number(queue);
        while listed().await.expect("a list") < queued {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// See [`Lock::settled_again`].
    pub(crate) async fn settled_again(&self) {
        self.pause_if_remote(REMOTE_PAUSE).await;
    }
}
