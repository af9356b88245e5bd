//! [`Loan`]: the lent client in one Lockkeeper session, with the ephemeral znodes that this session has created.
//!
//! ZooKeeper deletes ephemeral znodes when its session ends. But the ZooKeeper session belongs to the program and
//! continues after the Lockkeeper session was closed. So a closed Lockkeeper session deletes its znodes one by one
//! (invariant 7).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_store::{Create, Error, Op, OpReply, Result, SessionStatus, ZnodePath};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use zookeeper_client as zk;

use crate::session::spawn;

/// Shortest and longest pause before a refused delete is retried. Each pause is twice as long as the previous one.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Prefix of the names of recipes' entries. A UUID follows this prefix, so no other client uses the same name.
const UNIQUE: &str = "_c_";

/// A lent client. When its last user drops it, the entries that remain are deleted.
pub(crate) struct Loan {
    pub(crate) client: zk::Client,
    status: Arc<SessionStatus>,
    entries: Mutex<Entries>,
    on_return: Mutex<Option<oneshot::Sender<()>>>,
}

#[derive(Debug, Default)]
struct Entries {
    made: HashSet<ZnodePath>,
    /// Paths, without the number, of ephemeral creates whose replies were lost. Their names are unique.
    lost: HashSet<ZnodePath>,
}

impl Loan {
    pub(crate) fn new(client: zk::Client, status: Arc<SessionStatus>) -> Self {
        Self {
            client,
            status,
            entries: Mutex::default(),
            on_return: Mutex::default(),
        }
    }

    pub(crate) fn returned(&self) -> oneshot::Receiver<()> {
        let (send, returned) = oneshot::channel();
        *self.on_return.lock() = Some(send);
        returned
    }

    pub(crate) fn created(&self, create: &Create, made: &Result<ZnodePath>) {
        if !create.mode.is_ephemeral() {
            return;
        }
        let mut entries = self.entries.lock();
        match made {
            Ok(path) => drop(entries.made.insert(path.clone())),
            Err(error) if error.is_ambiguous() && create.path.name().starts_with(UNIQUE) => {
                entries.lost.insert(create.path.clone());
            }
            Err(_) => {}
        }
    }

    pub(crate) fn multi(&self, ops: &[Op], made: &Result<Vec<OpReply>>) {
        for (at, op) in ops.iter().enumerate() {
            match (op, made) {
                (Op::Create(create), Err(error)) => self.created(create, &Err(error.clone())),
                (Op::Create(create), Ok(replies)) => {
                    if let Some(OpReply::Created { path, .. }) = replies.get(at) {
                        self.created(create, &Ok(path.clone()));
                    }
                }
                (Op::Delete { path, .. }, Ok(_)) => self.deleted(path),
                _ => {}
            }
        }
    }

    pub(crate) fn deleted(&self, path: &ZnodePath) {
        let mut entries = self.entries.lock();
        entries.made.remove(path);
        // If a create with a lost reply made this znode, the znode has now been deleted, so forget the create.
        entries
            .lost
            .retain(|lost| !path.as_str().starts_with(lost.as_str()));
    }

    /// Deletes znodes in the background. The loan is only returned after that.
    pub(crate) fn undo(self: &Arc<Self>, made: Vec<ZnodePath>) {
        let loan = self.clone();
        spawn(async move {
            for path in made {
                delete(&loan.client, &loan.status, &path).await;
                loan.deleted(&path);
            }
        });
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let entries = std::mem::take(self.entries.get_mut());
        // If the session is over, it deletes the entries itself. A forked child must not delete them, because it has
        // none of the parent's connections.
        let is_over =
            self.client.state().is_terminated() || self.status.end() == Some(Error::Forked);
        if is_over || entries.made.is_empty() && entries.lost.is_empty() {
            return;
        }
        let (client, status) = (self.client.clone(), self.status.clone());
        let on_return = self.on_return.get_mut().take();
        spawn(async move {
            entries.delete(&client, &status).await;
            drop(on_return);
        });
    }
}

impl Entries {
    async fn delete(self, client: &zk::Client, status: &SessionStatus) {
        // Create all futures before we await the first, because the crate sends a request when its future is created.
        let made = self.made.iter();
        let sent: Vec<_> = made
            .map(|path| (path, client.delete(path.as_str(), None)))
            .collect();
        for (path, deleted) in sent {
            if !is_done(status, path, deleted.await) {
                delete(client, status, path).await;
            }
        }
        for create in &self.lost {
            // The list only shows the znode for certain after a write on the same connection (invariant 8). This delete
            // is such a write. It deletes nothing, because no znode has this name without a number.
            delete(client, status, create).await;
            let Some(parent) = create.parent() else {
                continue;
            };
            for name in children(client, status, &parent).await {
                if let (true, Ok(path)) = (name.starts_with(create.name()), parent.join(&name)) {
                    delete(client, status, &path).await;
                }
            }
        }
    }
}

/// Deletes a znode. Retries until the znode no longer exists, the session has ended, or we have no permission.
async fn delete(client: &zk::Client, status: &SessionStatus, path: &ZnodePath) {
    let mut pause = SHORTEST_PAUSE;
    while !is_done(status, path, client.delete(path.as_str(), None).await) {
        status.clock().sleep(pause).await;
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}

/// Lists the children of a znode. Retries in the same cases as `delete`.
async fn children(client: &zk::Client, status: &SessionStatus, path: &ZnodePath) -> Vec<String> {
    let mut pause = SHORTEST_PAUSE;
    loop {
        let listed = client.list_children(path.as_str()).await;
        let (names, listed) = match listed {
            Ok(names) => (names, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        };
        if is_done(status, path, listed) {
            return names;
        }
        status.clock().sleep(pause).await;
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}

fn is_done(status: &SessionStatus, path: &ZnodePath, answer: Result<(), zk::Error>) -> bool {
    let Err(error) = answer else { return true };
    match error {
        zk::Error::NoNode
        | zk::Error::SessionExpired
        | zk::Error::AuthFailed
        | zk::Error::ClientClosed => true,
        // Waiting does not help. Either we have no permission, or the connection's task has ended together with the
        // program's executor.
        zk::Error::NoAuth | zk::Error::UnexpectedError(_) => {
            tracing::warn!(session = %status.id(), %path, %error, "clean-up given up");
            true
        }
        error => {
            tracing::debug!(session = %status.id(), %path, %error, "clean-up repeated");
            false
        }
    }
}
