//! An observer: a session of its own that sees in which order contenders arrive.

use lockkeeper::{Client, Error, LockPath, Session, ZnodePath};
use lockkeeper_store::{CreateMode, EventKind, PersistentWatcher, WatchMode, WatchedEvent, Zxid};
use tokio::task::JoinHandle;

/// The znode that ends the watch: whoever has seen it made has seen all that was made before.
const END: &str = "end-of-run";

/// A contender that joined the queue.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// The name of its znode.
    pub(crate) entry: String,
    /// The zxid of its create; `None` where the server does not tell and the znode went before it
    /// could be read.
    pub(crate) czxid: Option<Zxid>,
}

/// Arrivals that the observer has seen.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// The contenders, in the order in which the store told of them.
    pub(crate) seen: Vec<Arrival>,
    /// Number of interruptions in which arrivals may have gone unseen.
    pub(crate) gaps: usize,
}

/// Watches the queue of one lock.
pub(crate) struct Observer {
    session: Session,
    lock: LockPath,
    watch: JoinHandle<Arrivals>,
}

impl Observer {
    /// Starts to watch. Everybody who joins the queue after this has returned is seen.
    pub(crate) async fn start(client: &Client, lock: &LockPath) -> Result<Self, Error> {
        let session = client.session().await?;
        let mode = WatchMode::PersistentRecursive;
        let watcher = session.add_watch(lock.as_znode(), mode).await?;
        let watch = tokio::spawn(watch(session.clone(), lock.clone(), watcher));
        Ok(Self {
            session,
            lock: lock.clone(),
            watch,
        })
    }

    /// Ends the watch, and answers all that it has seen. Leaves nothing of the lock behind.
    pub(crate) async fn finish(self) -> Result<Arrivals, Error> {
        let end = end_of(&self.lock);
        self.session.create_all(&end, CreateMode::Ephemeral).await?;
        let arrivals = match self.watch.await {
            Ok(arrivals) => arrivals,
            Err(error) => return Err(Error::Protocol(format!("the observer failed: {error}"))),
        };
        let parents = std::iter::successors(Some(end), |path| path.parent());
        for path in parents.take_while(|path| !path.is_root()) {
            match self.session.delete(&path, None).await {
                Ok(()) | Err(Error::NoNode { .. }) => {}
                Err(Error::NotEmpty { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(arrivals)
    }
}

async fn watch(session: Session, lock: LockPath, mut watcher: PersistentWatcher) -> Arrivals {
    let mut arrivals = Arrivals::default();
    while let Some(event) = watcher.next().await {
        match event {
            Ok(event) if event.kind != EventKind::NodeCreated => {}
            Ok(event) if event.path == *lock.as_znode() => {}
            Ok(event) if event.path.name() == END => break,
            Ok(event) => arrivals.seen.push(Arrival {
                czxid: czxid(&session, &event).await,
                entry: event.path.name().to_owned(),
            }),
            Err(error) => {
                arrivals.gaps += 1;
                // After a loss the end may have gone unheard, too.
                let ended = session.exists(&end_of(&lock)).await;
                if error.is_session_end() || !matches!(ended, Ok(None)) {
                    break;
                }
            }
        }
    }
    arrivals
}

fn end_of(lock: &LockPath) -> ZnodePath {
    let end = lock.as_znode().join(END);
    end.expect("a fixed name of letters and dashes is valid")
}

/// The zxid of a create. ZooKeeper before 3.9 does not say it in the event, so the znode is read.
async fn czxid(session: &Session, event: &WatchedEvent) -> Option<Zxid> {
    match event.zxid {
        Some(zxid) => Some(zxid),
        None => Some(session.exists(&event.path).await.ok()??.czxid),
    }
}
