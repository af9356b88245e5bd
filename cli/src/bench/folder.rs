//! [`Folder`]: the znode that contains everything of a run.

use std::hash::{BuildHasher, Hasher, RandomState};

use lockkeeper::{Client, Error, Session, ZnodePath};
use lockkeeper_store::CreateMode;

use crate::exit::Failure;

/// A new znode that contains everything a run creates.
///
/// It is a container if the server supports containers, like the queues below it. The server therefore removes it even
/// if this process was killed, once the sessions have expired.
pub(super) struct Folder(ZnodePath);

/// Limit of concurrent requests while a folder is removed.
const AT_ONCE: usize = 256;

/// Attempts to remove a folder. Requests sent before their session ended may still add to it.
const ATTEMPTS: usize = 5;

impl Folder {
    /// Creates a znode with this path prefix. Does not create its parent.
    pub(super) async fn create(client: &Client, prefix: &str) -> Result<Self, Failure> {
        let prefix: ZnodePath = prefix.parse().map_err(Failure::from)?;
        if prefix.is_root() {
            return Err(Failure::Usage(
                "--prefix needs the beginning of a name, such as /lockkeeper-bench".into(),
            ));
        }
        let session = client.session().await?;
        loop {
            // The standard library's only source of random numbers.
            let number = RandomState::new().build_hasher().finish() as u32;
            let path: ZnodePath = format!("{prefix}-{number:08x}").parse()?;
            match create(&session, &path).await {
                Ok(()) => {
                    // The server does not remove a container that has a child.
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

/// Creates a container, or a persistent znode if the server has no containers.
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
    // Lists parents before their children, to delete in reverse.
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
                // The server also removes empty containers.
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
        // Send all requests before awaiting the first answer. A session's requests are executed in order.
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
