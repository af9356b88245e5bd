//! What a client that comes back to its server wants of its watches; and watches that are looked for
//! and taken back by their paths, as over a wire.

use super::sessions::SessionRef;
use super::watches::{WatchKey, WatchKind};
use super::{Core, Effects, Fired, Now};
use crate::error::Result;
use crate::path::ZnodePath;
use crate::types::{EventKind, WatchMode, WatchedEvent, Zxid};

/// The watches that a client had on its former connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetWatches {
    /// The last zxid that the client has seen: what came later fires at once.
    pub(crate) since: Zxid,
    pub(crate) data: Vec<ZnodePath>,
    /// On znodes that were not there.
    pub(crate) exist: Vec<ZnodePath>,
    pub(crate) child: Vec<ZnodePath>,
    pub(crate) persistent: Vec<ZnodePath>,
    pub(crate) recursive: Vec<ZnodePath>,
}

/// Which of a session's watches on a path are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Child,
    /// Of getData and exists.
    Data,
    Mode(WatchMode),
    Any,
}

impl Which {
    fn means(self, kind: WatchKind) -> bool {
        match self {
            Self::Child => kind == WatchKind::Child,
            Self::Data => kind == WatchKind::Data,
            Self::Mode(WatchMode::Persistent) => kind == WatchKind::Persistent,
            Self::Mode(WatchMode::PersistentRecursive) => kind == WatchKind::Recursive,
            Self::Any => true,
        }
    }
}

impl Core {
    /// Arms again what has nothing to tell, and fires the rest, list by list, in order. The events are
    /// of no transaction: they say how things stand now.
    pub(crate) fn set_watches(
        &mut self,
        session: SessionRef,
        asked: &SetWatches,
        now: Now,
        effects: &mut Effects,
    ) -> Result<()> {
        self.admit(session, now, effects)?;
        let lists = [
            (Was::Data, &asked.data),
            (Was::Missing, &asked.exist),
            (Was::Child, &asked.child),
            (Was::Kept(WatchKind::Persistent), &asked.persistent),
            (Was::Kept(WatchKind::Recursive), &asked.recursive),
        ];
        let count = lists.iter().map(|(_, paths)| paths.len()).sum();
        let paths = lists.iter().flat_map(|(_, paths)| paths.iter());
        let path_bytes = paths.map(|path| path.as_str().len()).sum();
        self.check_watch_room(session, count, path_bytes)?;
        for (was, paths) in lists {
            for path in paths {
                self.set_watch(session, was, path, asked.since, effects);
            }
        }
        Ok(())
    }

    fn set_watch(
        &mut self,
        session: SessionRef,
        was: Was,
        path: &ZnodePath,
        since: Zxid,
        effects: &mut Effects,
    ) {
        let node = self.tree.find(path.as_str());
        let times = node.map(|node| {
            let node = self.tree.node(node);
            (node.mzxid, node.pzxid)
        });
        let news = match (was, times) {
            (Was::Data | Was::Child, None) => Some(EventKind::NodeDeleted),
            (Was::Data, Some((mzxid, _))) if mzxid > since => Some(EventKind::NodeDataChanged),
            (Was::Missing, Some(_)) => Some(EventKind::NodeCreated),
            (Was::Child, Some((_, pzxid))) if pzxid > since => Some(EventKind::NodeChildrenChanged),
            _ => None,
        };
        match news {
            Some(kind) => effects.fired.push(Fired {
                watch: WatchKey::NONE,
                slot: session.slot,
                event: WatchedEvent {
                    kind,
                    path: path.clone(),
                    zxid: None,
                    departure: None,
                },
                waiter: None,
                is_last: true,
            }),
            None => {
                self.arm(session, was.kind(), path, node);
            }
        }
    }

    /// Whether a session has such a watch on a path.
    pub(crate) fn has_watch(
        &mut self,
        session: SessionRef,
        path: &ZnodePath,
        which: Which,
        now: Now,
        effects: &mut Effects,
    ) -> Result<bool> {
        self.admit(session, now, effects)?;
        Ok(!self.watches_on(session, path, which).is_empty())
    }

    /// Takes a session's watches on a path back; whether there were any.
    pub(crate) fn remove_watches(
        &mut self,
        session: SessionRef,
        path: &ZnodePath,
        which: Which,
        now: Now,
        effects: &mut Effects,
    ) -> Result<bool> {
        self.admit(session, now, effects)?;
        let found = self.watches_on(session, path, which);
        for watch in &found {
            self.unwatch(*watch);
        }
        Ok(!found.is_empty())
    }

    fn watches_on(&self, session: SessionRef, path: &ZnodePath, which: Which) -> Vec<WatchKey> {
        let node = self.tree.find(path.as_str());
        let (tree, sessions) = (&self.tree, &self.sessions);
        let wants = |kind| which.means(kind);
        self.watches
            .of_session_on(tree, sessions, session.slot, path, node, wants)
    }
}

/// What a watch was for when it was armed.
#[derive(Clone, Copy)]
enum Was {
    Data,
    Missing,
    Child,
    Kept(WatchKind),
}

impl Was {
    fn kind(self) -> WatchKind {
        match self {
            Self::Data | Self::Missing => WatchKind::Data,
            Self::Child => WatchKind::Child,
            Self::Kept(kind) => kind,
        }
    }
}
