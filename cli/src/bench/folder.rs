//! [`Folder`]: the znode below which a run creates all other znodes.

use std::hash::{BuildHasher, Hasher, RandomState};

use lockkeeper::{Client, Error, Session, ZnodePath};
use lockkeeper_store::CreateMode;

use crate::exit::Failure;

/// A new znode that contains everything that a run creates.
///
/// If the server supports containers, this znode and the queues below it are containers. The server then removes them
/// after the sessions have expired, even if this process was killed.
pub(super) struct Folder(ZnodePath);

const AT_ONCE: usize = 256;

/// Number of attempts to remove a folder. An attempt fails if the server is still executing an ended session's earlier
/// requests, which add znodes.
const ATTEMPTS: usize = 5;

impl Folder {
    /// Creates a znode at `prefix` plus a random number. The parent must exist.
    pub(super) async fn create(client: &Client, prefix: &str) -> Result<Self, Failure> {
        let prefix: ZnodePath = prefix.parse().map_err(Failure::from)?;
        if prefix.is_root() {
            return Err(Failure::Usage(
                "--prefix needs the beginning of a name, such as /lockkeeper-bench".into(),
            ));
        }
        let session = client.session().await?;
        loop {
            // `RandomState` is the only source of random numbers in the standard library.
            let number = RandomState::new().build_hasher().finish() as u32;
            let path: ZnodePath = format!("{prefix}-{number:08x}").parse()?;
            match create(&session, &path).await {
                Ok(()) => {
                    // Give the folder a child, because the server does not remove a container that has children.
                    let owner = path.join("owner")?;
                    let text = format!("lockkeeper bench, pid {}", std::process::id());
                    session.create(&owner, text, CreateMode::Ephemeral).await?;
                    return Ok(Self(path));
                }
                Err(Error::NodeExists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn path(&self) -> &ZnodePath {
        &self.0
    }

    pub(super) async fn remove(&self, client: &Client) -> Result<(), Error> {
        let mut attempt = 1;
        loop {
            let session = client.session().await?;
            match remove_all(&session, &self.0).await {
                // Try again. If the session has expired, the client opens a new session.
                Err(
                    Error::NotEmpty { .. } | Error::ConnectionLoss | Error::SessionExpired { .. },
                ) if attempt < ATTEMPTS => {
                    attempt += 1;
                }
                removed => return removed,
            }
        }
    }
}

async fn create(session: &Session, path: &ZnodePath) -> Result<(), Error> {
    let created = session.create(path, "", CreateMode::Container).await;
    match created {
        Err(Error::Unimplemented { .. }) => {
            session.create(path, "", CreateMode::Persistent).await?;
            Ok(())
        }
        created => created.map(drop),
    }
}

async fn remove_all(session: &Session, top: &ZnodePath) -> Result<(), Error> {
    // List parents before their children, and delete in reverse order.
    let mut found = vec![top.clone()];
    let mut listed = 0;
    while listed < found.len() {
        let end = found.len().min(listed + AT_ONCE);
        let lists: Vec<_> = found[listed..end]
            .iter()
            .map(|path| (path.clone(), session.get_children(path)))
            .collect();
        listed = end;
        for (path, list) in lists {
            let (names, _) = match list.await {
                Err(Error::NoNode { .. }) => continue,
                list => list?,
            };
            for name in names {
                found.push(path.join(&name)?);
            }
        }
    }
    found.reverse();
    for some in found.chunks(AT_ONCE) {
        // Send a whole chunk before awaiting the first reply. The session executes requests in the order in which they
        // were sent, so children are still deleted before their parents.
        let deletes: Vec<_> = some.iter().map(|path| session.delete(path, None)).collect();
        for delete in deletes {
            match delete.await {
                Ok(()) | Err(Error::NoNode { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
