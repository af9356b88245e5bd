//! Invariant 8: a contender takes its turn only if its own entry is known to exist when nothing ahead blocks it any
//! more. Here its entry and everything ahead are removed just before it looks.

use std::sync::{Arc, Mutex as SyncMutex, PoisonError};

use lockkeeper::{Client, ConnectOptions, LockError, Mutex, RwLock, Store, queue};
use lockkeeper_store::{
    Backend, Connector, CreateMode, ReadOp, Request, Response, Session, ZnodePath,
};
use testkit::{Intercept, intercepted, on_every_backend, unindexed};

use crate::common::*;

on_every_backend! {
    async fn both_go_before_the_entry_ahead_is_asked_about(env: Env) {
        let world = World::new(env).await;
        let remover = Remover::new(world.observing().await);
        let holder = world.mutex().await.lock().await.unwrap();
        let nearest = world.queue_up(&world.mutex().await).await;
        let waiting = Mutex::new(&remover.client(world.env.connector()).await, LOCK).unwrap();
        let waiter = world.queue_up(&waiting).await;
        let mine = queue(&world.observer, LOCK).await.unwrap().remove(2).path;
        remover.arm(&mine, holder.path(), None);
        // A waiter that gives up leaves no marker, so the next one checks whether the holder still exists.
        nearest.abort();
        assert_eq!(refused(waiter).await, LockError::EntryDeleted { entry: mine });
        world.until_count(0).await;
    }
}

#[tokio::test]
async fn the_entry_ahead_turns_out_to_be_no_contender() {
    let store = Store::memory();
    let connector = unindexed(store.connector());
    let observer = store.connect().await.unwrap();
    let session = observer.session().await.unwrap();
    let remover = Remover::new(session.clone());
    let holder = RwLock::new(&observer, LOCK).unwrap().write().await.unwrap();
    let client = remover.client(&connector).await;
    let before = children(&session, LOCK).await;
    let waiter = tokio::spawn(async move { RwLock::new(&client, LOCK)?.write().await });
    until_joined(&session, LOCK, &before).await;
    let mine = queue(&observer, LOCK).await.unwrap().remove(1).path;
    remover.arm(&mine, holder.path(), Some(CreateMode::Persistent));
    // The writer ahead is read again after each change of its data.
    session.set_data(holder.path(), "", None).await.unwrap();
    let refusal = waiter.await.unwrap().unwrap_err();
    assert_eq!(refusal, LockError::EntryDeleted { entry: mine });
}

/// Removes two entries just before a request that asks about one of them.
#[derive(Clone)]
struct Remover {
    session: Session,
    removal: Arc<SyncMutex<Option<Removal>>>,
}

#[derive(Clone)]
struct Removal {
    own: ZnodePath,
    ahead: ZnodePath,
    /// The znode created in place of the entry ahead.
    instead: Option<CreateMode>,
}

impl Remover {
    fn new(session: Session) -> Self {
        let removal = Arc::default();
        Self { session, removal }
    }

    /// Opens a client whose requests can trigger the removal.
    async fn client(&self, connector: &Arc<dyn Connector>) -> Client {
        let remover = self.clone();
        let connector = intercepted(connector.clone(), move || remover.clone());
        let options = ConnectOptions::new().session_timeout(LONG);
        let client = Client::open(connector, "removing".to_owned(), options);
        client.await.unwrap()
    }

    fn arm(&self, own: &ZnodePath, ahead: &ZnodePath, instead: Option<CreateMode>) {
        *self.armed() = Some(Removal {
            own: own.clone(),
            ahead: ahead.clone(),
            instead,
        });
    }

    fn armed(&self) -> std::sync::MutexGuard<'_, Option<Removal>> {
        self.removal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Removal {
    fn precedes(&self, request: &Request) -> bool {
        let is_ahead = |read: &ReadOp| matches!(read, ReadOp::GetData(path) if *path == self.ahead);
        match request {
            // With an index, the store finds the entry ahead.
            Request::GetPredecessor(_) => true,
            Request::GetData { path, watch } => *watch && *path == self.ahead,
            Request::MultiRead(reads) => reads.iter().any(is_ahead),
            _ => false,
        }
    }

    async fn carry_out(self, session: Session) {
        for entry in [&self.own, &self.ahead] {
            session.delete(entry, None).await.unwrap();
        }
        if let Some(mode) = self.instead {
            session.create(&self.ahead, "", mode).await.unwrap();
        }
    }
}

impl Intercept for Remover {
    fn submit(&self, inner: &Arc<dyn Backend>, request: Request) -> Response {
        let Some(removal) = self.armed().take_if(|removal| removal.precedes(&request)) else {
            return inner.submit(request);
        };
        let (session, inner) = (self.session.clone(), inner.clone());
        Response::pending(async move {
            removal.carry_out(session).await;
            inner.submit(request).await
        })
    }
}
