//! The store under test, and its locks.

use std::time::{Duration, Instant};

use lockkeeper::{Client, LockPath, Session, ZnodePath};
use lockkeeper_store::CreateMode;

use crate::common::fresh_name;
use crate::common::lock::{Ours, Place};
use crate::common::more_recipes::Two;
use crate::common::recipes::{BenchLock, Side};
use crate::figures::{Row, Times, WriteTimes};
use crate::rounds::Contender;
use crate::workloads::{Case, Workload};

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

    pub(crate) fn place(&self) -> Place {
        Place::new(&self.observer)
    }

    /// Returns the handles for a case. Each client has its own session.
    pub(crate) async fn locks<S: BenchLock>(&self, case: &Case) -> Vec<Ours<S>> {
        let path = LockPath::new(format!("/bench/{}", fresh_name())).expect("a valid path");
        let mut clients = Vec::new();
        for _ in 0..case.clients {
            clients.push(lockkeeper::connect(&*self.url).await.expect("a session"));
        }
        let handle = |client: &Client, path: LockPath| Ours {
            subject: S::new(client, path),
            side: Side::Write,
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

    /// Returns handles to pairs of locks, every other one in the opposite order.
    pub(crate) async fn pairs(&self, case: &Case) -> Vec<Ours<Two>> {
        let mut pairs = self.locks::<Two>(case).await;
        for pair in pairs.iter_mut().skip(1).step_by(2) {
            pair.subject.reverse();
        }
        pairs
    }

    /// Lower bounds of an acquire on a remote store: a bare create and delete, and the way of most recipes, which list
    /// only after the create was answered.
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
