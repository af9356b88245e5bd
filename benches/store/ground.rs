//! The store that a case is measured on, and its sessions.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use lockkeeper::{Client, Session, Store, StoreOptions, ZnodePath};
use lockkeeper_store::{Create, CreateMode, Op};

use crate::args::Args;
use crate::common::fresh_name;
use crate::options::Durability;

/// A fresh store or, on a server that others may use, a fresh znode.
pub(crate) struct Ground {
    store: Option<Store>,
    url: String,
    folder: Option<PathBuf>,
    /// Sessions live as long as their clients.
    clients: Vec<Client>,
    root: ZnodePath,
}

impl Ground {
    pub(crate) async fn fresh(args: &Args) -> Self {
        Self::new(args, args.folder().map(|parent| fresh_folder(&parent))).await
    }

    /// Opens the store in this folder, or a fresh one without a folder.
    pub(crate) async fn new(args: &Args, folder: Option<PathBuf>) -> Self {
        let store = match &folder {
            Some(folder) => Some(open(folder, args).await),
            None if args.url.starts_with("memory:") => Some(Store::memory()),
            None => None,
        };
        let mut ground = Self {
            store,
            url: args.url.clone(),
            folder,
            clients: Vec::new(),
            root: ZnodePath::new(format!("/bench-{}", fresh_name())).expect("a valid path"),
        };
        let session = ground.session().await;
        let made = session.create(&ground.root, "", CreateMode::Persistent);
        made.await.expect("a znode to work below");
        ground
    }

    pub(crate) async fn session(&mut self) -> Session {
        let client = match &self.store {
            Some(store) => store.connect().await,
            None => lockkeeper::connect(&*self.url).await,
        };
        let client = client.expect("the store answers");
        let session = client.session().await.expect("a session");
        self.clients.push(client);
        session
    }

    pub(crate) async fn sessions(&mut self, count: usize) -> Vec<Session> {
        let mut sessions = Vec::with_capacity(count);
        for _ in 0..count {
            sessions.push(self.session().await);
        }
        sessions
    }

    /// Returns the parent of all created znodes.
    pub(crate) fn root(&self) -> &ZnodePath {
        &self.root
    }

    /// Returns the folder of the store's files, if any.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Deletes everything. The caller has dropped its sessions, because a store is closed after its last one.
    pub(crate) async fn end(mut self) {
        if self.store.is_none() {
            let session = self.session().await;
            delete_all(&session, self.root.clone()).await;
        }
        for client in &self.clients {
            client.close().await.expect("closed");
        }
        drop((self.clients, self.store));
        if let Some(folder) = &self.folder {
            remove_folder(folder);
        }
    }
}

/// Opens the store in a folder, off the async threads.
async fn open(folder: &Path, args: &Args) -> Store {
    let durability = match args.durability() {
        Durability::Fsync => lockkeeper_store::Durability::Fsync,
        Durability::DelayedRestart => lockkeeper_store::Durability::DelayedRestart,
        Durability::None => lockkeeper_store::Durability::None,
    };
    let mut options = StoreOptions::new().durability(durability);
    if let Some(bytes) = args.segment_bytes {
        options = options.segment_bytes(bytes, bytes);
    }
    let folder = folder.to_owned();
    let opened = tokio::task::spawn_blocking(|| Store::file_with(folder, options));
    opened.await.expect("no panic").expect("the store opens")
}

/// Number of znodes in one multi and below one parent.
const BATCH: usize = 500;

pub(crate) async fn fill(ground: &mut Ground, znodes: usize, bytes: usize) {
    let sessions = ground.sessions(FILLERS).await;
    let data = Bytes::from(vec![b'x'; bytes]);
    let fillers: Vec<_> = sessions
        .into_iter()
        .enumerate()
        .map(|(number, session)| {
            let (root, data) = (ground.root().clone(), data.clone());
            let batches = (0..znodes.div_ceil(BATCH)).skip(number).step_by(FILLERS);
            tokio::spawn(async move {
                for batch in batches {
                    let count = BATCH.min(znodes - batch * BATCH);
                    let parent = root.join(&format!("part-{batch:06}")).expect("valid");
                    make_batch(&session, parent, count, &data).await;
                }
            })
        })
        .collect();
    for filler in fillers {
        filler.await.expect("a filler ends well");
    }
}

const FILLERS: usize = 8;

async fn make_batch(session: &Session, parent: ZnodePath, count: usize, data: &Bytes) {
    let create = |path: ZnodePath, data: Bytes| {
        Op::Create(Create {
            path,
            data,
            mode: CreateMode::Persistent,
            acl: session.acl().clone(),
        })
    };
    let mut ops = vec![create(parent.clone(), Bytes::new())];
    ops.extend((0..count).map(|number| {
        let path = parent.join(&format!("znode-{number:06}")).expect("valid");
        create(path, data.clone())
    }));
    session.multi(ops).await.expect("made");
}

/// Deletes a znode and everything below it.
async fn delete_all(session: &Session, top: ZnodePath) {
    let mut deep = vec![top];
    let mut at = 0;
    while at < deep.len() {
        let (names, _) = session.get_children(&deep[at]).await.expect("a list");
        let path = deep[at].clone();
        deep.extend(names.iter().map(|name| path.join(name).expect("valid")));
        at += 1;
    }
    for batch in deep.rchunks(1_000) {
        // Send all before awaiting the first, the deepest first.
        let deleted: Vec<_> = batch
            .iter()
            .rev()
            .map(|path| session.delete(path, None))
            .collect();
        for deleted in deleted {
            deleted.await.expect("deleted");
        }
    }
}

/// Creates a new folder in `parent`.
pub(crate) fn fresh_folder(parent: &Path) -> PathBuf {
    let folder = parent.join(format!("lockkeeper-bench-{}", fresh_name()));
    std::fs::create_dir_all(&folder).expect("a folder for the store");
    folder
}

pub(crate) fn remove_folder(folder: &Path) {
    std::fs::remove_dir_all(folder).expect("what was made can be removed");
}
