//! Contenders lock under load. Grants follow the order of arrival that another session sees.

use std::sync::{Arc, Mutex as StdMutex};

use lockkeeper::{Client, FencingToken, LockPath, Mutex, Session};
use lockkeeper_store::{CreateMode, EventKind, PersistentWatcher, WatchMode, Zxid};
use testkit::on_every_backend;
use tokio::task::JoinSet;

const CLIENTS: usize = 8;
const TURNS: usize = 25;
/// Znode that ends the watch. The store reports changes in order, so every arrival was reported before it.
const END: &str = "end-of-run";

/// The contenders' znodes in order of creation, each with its create's zxid. `None` if the server does not report it
/// and the znode was deleted before it could be read.
type Arrivals = Vec<(String, Option<Zxid>)>;

async fn observe(session: Session, mut watcher: PersistentWatcher) -> Arrivals {
    let mut arrivals = Arrivals::new();
    while let Some(event) = watcher.next().await {
        let event = event.expect("nothing interrupts the watch");
        let is_entry = event.path.as_str().matches('/').count() == 2;
        if event.kind != EventKind::NodeCreated || !is_entry {
            continue;
        }
        if event.path.name() == END {
            break;
        }
        // ZooKeeper before 3.9 does not include it in the event, so we read the znode.
        let czxid = match event.zxid {
            Some(zxid) => Some(zxid),
            None => session
                .exists(&event.path)
                .await
                .unwrap()
                .map(|stat| stat.czxid),
        };
        arrivals.push((event.path.name().to_owned(), czxid));
    }
    arrivals
}

async fn take_turns(
    client: Client,
    lock: LockPath,
    grants: Arc<StdMutex<Vec<(String, FencingToken)>>>,
) {
    let mutex = Mutex::new(&client, lock).unwrap();
    for _ in 0..TURNS {
        let guard = mutex.lock().await.unwrap();
        let grant = (guard.path().name().to_owned(), guard.fencing_token());
        grants.lock().unwrap().push(grant);
        guard.release().await.unwrap();
    }
}

on_every_backend! {
    async fn grants_follow_the_arrivals_that_another_session_sees(env: Env) {
        let lock = LockPath::new("/arrivals").unwrap();
        let client = env.client().await;
        let session = client.session().await.unwrap();
        let watcher = session.add_watch(lock.as_znode(), WatchMode::PersistentRecursive).await.unwrap();
        let observer = tokio::spawn(observe(session.clone(), watcher));

        let grants = Arc::<StdMutex<Vec<_>>>::default();
        let mut contenders = JoinSet::new();
        for _ in 0..CLIENTS {
            contenders.spawn(take_turns(env.client().await, lock.clone(), grants.clone()));
        }
        while let Some(ended) = contenders.join_next().await {
            ended.unwrap();
        }
        let end = lock.as_znode().join(END).unwrap();
        session.create_all(&end, CreateMode::Ephemeral).await.unwrap();

        let arrivals = observer.await.unwrap();
        let (granted, tokens): (Vec<_>, Vec<_>) = grants.lock().unwrap().drain(..).unzip();
        let arrived: Vec<_> = arrivals.iter().map(|(entry, _)| entry.clone()).collect();
        assert_eq!(granted, arrived);
        assert_eq!(granted.len(), CLIENTS * TURNS);
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        // The events arrive in zxid order.
        let czxids: Vec<_> = arrivals.iter().filter_map(|(_, czxid)| *czxid).collect();
        assert!(czxids.is_sorted_by(|a, b| a < b), "{czxids:?}");
    }
}
