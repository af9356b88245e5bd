//! [`Folder`]: the znode below which a run takes place.

use std::hash::{BuildHasher, Hasher, RandomState};

use lockkeeper::{Client, Error, Session, ZnodePath};
use lockkeeper_store::CreateMode;

use crate::exit::Failure;

/// A new znode. Everything that a run creates is below it.
///
/// It is a container, where the server has them: so are the queues below it, and the server removes them by itself when
/// this process was killed and its sessions have expired.
pub(super) struct Folder(ZnodePath);

/// Requests under way at the same time while a folder is removed.
const AT_ONCE: usize = 256;

/// Attempts to remove a folder to which requests still add that were sent before the end of their sessions.
const ATTEMPTS: usize = 5;

impl Folder {
    /// Creates a znode with this beginning of its path. Does not create its parent.
    pub(super) async fn create(client: &Client, prefix: &str) -> Result<Self, Failure> {
        let prefix: ZnodePath = prefix.parse().map_err(Failure::from)?;
        if prefix.is_root() {
            return Err(Failure::Usage(
                "--prefix needs the beginning of a name, such as /lockkeeper-bench".into(),
            ));
        }
        let session = client.session().await?;
        loop {
            // A random number; the standard library's hash maps have no other use for it.
            let number = RandomState::new().build_hasher().finish() as u32;
            let path: ZnodePath = format!("{prefix}-{number:08x}").parse()?;
            match create(&session, &path).await {
                Ok(()) => {
                    // While the container has a child, the server does not remove it.
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

    /// Removes it, with everything below.
    pub(super) async fn remove(&self, client: &Client) -> Result<(), Error> {
        let mut attempt = 1;
        loop {
            let session = client.session().await?;
            match remove_all(&session, &self.0).await {
                // The client's next session is a new one.
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

/// Creates a container, or a persistent znode where the server has no containers.
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
    // Parents before their children.
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
                // The server removes empty containers, too.
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
        // All are sent before the first is answered: a session's requests are carried out in their order.
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
