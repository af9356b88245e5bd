//! Observer: a separate session that sees the order in which contenders arrive.

use lockkeeper::{Client, Error, LockPath, Session, ZnodePath};
use lockkeeper_store::{CreateMode, EventKind, PersistentWatcher, WatchMode};
use tokio::task::JoinHandle;

/// Arrivals that the observer has seen.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// Names of the contenders' znodes, in the order of their creation.
    pub(crate) entries: Vec<String>,
    /// Number of interruptions in which arrivals may have gone unseen.
    pub(crate) gaps: usize,
}

/// Watches the queue of one lock.
pub(crate) struct Observer {
    session: Session,
    /// Znode that ends the watch. The store reports changes in order, so every arrival was reported before it.
    end: ZnodePath,
    watch: JoinHandle<Arrivals>,
}

impl Observer {
    /// Starts to watch. Every contender that joins the queue after this has returned is seen.
    pub(crate) async fn start(client: &Client, lock: &LockPath) -> Result<Self, Error> {
        let session = client.session().await?;
        let end = lock.as_znode().join("end-of-run");
        let end = end.expect("a fixed name of letters and dashes is valid");
        let mode = WatchMode::PersistentRecursive;
        let watcher = session.add_watch(lock.as_znode(), mode).await?;
        let watch = tokio::spawn(watch(session.clone(), end.clone(), watcher));
        Ok(Self {
            session,
            end,
            watch,
        })
    }

    /// Ends the watch and returns all that it has seen. Deletes the lock's znodes.
    pub(crate) async fn finish(self) -> Result<Arrivals, Error> {
        let mode = CreateMode::Ephemeral;
        self.session.create_all(&self.end, mode).await?;
        let arrivals = self.watch.await.expect("the watch does not panic");
        let parents = std::iter::successors(Some(self.end), |path| path.parent());
        for path in parents.take_while(|path| !path.is_root()) {
            match self.session.delete(&path, None).await {
                Ok(()) | Err(Error::NoNode { .. }) => {}
                // Another program's lock is beside it.
                Err(Error::NotEmpty { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(arrivals)
    }
}

async fn watch(session: Session, end: ZnodePath, mut watcher: PersistentWatcher) -> Arrivals {
    let mut arrivals = Arrivals::default();
    let lock = end.parent();
    while let Some(event) = watcher.next().await {
        match event {
            Ok(event) if event.kind != EventKind::NodeCreated => {}
            Ok(event) if event.path == end => break,
            // The lock's own znode, which the first contender creates, is above the queue.
            Ok(event) if event.path.parent() != lock => {}
            Ok(event) => arrivals.entries.push(event.path.name().to_owned()),
            Err(error) => {
                arrivals.gaps += 1;
                // The interruption may have swallowed the event that ends the watch.
                let ended = session.exists(&end).await;
                if error.is_session_end() || !matches!(ended, Ok(None)) {
                    break;
                }
            }
        }
    }
    arrivals
}
