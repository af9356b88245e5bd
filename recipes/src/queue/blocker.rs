//! Watching the one that blocks an entry.

use lockkeeper_store::{Error, Session, Watcher, ZnodePath};

use crate::metadata::LockMetadata;
use crate::names::is_writer;

/// A node that is watched until it is gone.
pub(crate) struct Blocker {
    /// `None` when it has gone already.
    pub(crate) watcher: Option<Watcher>,
    /// Whether it is known under which names it may stand there after its deletion. Entries of ours
    /// are converted between reader and writer under names that follow from each other. A writer of
    /// Curator's (since 5.5, CURATOR-621) becomes a reader in a new znode of the same number and any
    /// name, which only a new list shows.
    pub(crate) is_traceable: bool,
    /// True of a znode that is there and not ephemeral: it only has a contender's name, and blocks nobody.
    pub(crate) stays: bool,
}

impl Blocker {
    /// Arms a watch. Of a writer it reads the data too: they tell whether it is one of ours.
    pub(crate) async fn watch(session: &Session, node: &ZnodePath) -> Result<Self, Error> {
        if !is_writer(node.name()) {
            let (stat, watcher) = session.watch_exists(node).await?;
            return Ok(Self {
                stays: stat.as_ref().is_some_and(|stat| !stat.is_ephemeral()),
                watcher: stat.map(|_| watcher),
                is_traceable: true,
            });
        }
        match session.watch_data(node).await {
            Ok((data, stat, watcher)) => Ok(Self {
                watcher: Some(watcher),
                is_traceable: LockMetadata::parse(&data).is_some(),
                stays: !stat.is_ephemeral(),
            }),
            Err(Error::NoNode { .. }) => Ok(Self {
                watcher: None,
                is_traceable: false,
                stays: false,
            }),
            Err(error) => Err(error),
        }
    }
}
