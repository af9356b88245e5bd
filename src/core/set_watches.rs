//! `setWatches`: a reconnecting client restores its watches, which ended with its connection. Also finds watches by
//! path, to check or remove them.

use super::sessions::SessionRef;
use super::watches::{WatchKey, WatchKind};
use super::{Core, Effects, Fired, Now};
use crate::model::error::Result;
use crate::model::path::ZnodePath;
use crate::model::types::{AclEntry, Zxid};
use crate::model::watch::{EventKind, WatchMode, WatchUpdate, WatchedEvent};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetWatches {
    /// The last transaction that the client has seen. A watch fires immediately if a later transaction affects it.
    pub(crate) since: Zxid,
    pub(crate) data: Vec<ZnodePath>,
    /// Watches on znodes that did not exist.
    pub(crate) exist: Vec<ZnodePath>,
    pub(crate) child: Vec<ZnodePath>,
    pub(crate) persistent: Vec<ZnodePath>,
    pub(crate) recursive: Vec<ZnodePath>,
    pub(crate) done: usize,
}

impl SetWatches {
    pub(crate) fn lists(&self) -> [&[ZnodePath]; 5] {
        [
            &self.data,
            &self.exist,
            &self.child,
            &self.persistent,
            &self.recursive,
        ]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchFilter {
    Child,
    Data,
    Mode(WatchMode),
    Any,
}

impl WatchFilter {
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
    #[cfg(test)]
    pub(crate) fn set_watches(
        &mut self,
        session: SessionRef,
        asked: &SetWatches,
        now: Now,
        effects: &mut Effects,
    ) -> Result<()> {
        let mut asked = asked.clone();
        let more = self.set_some_watches(session, &mut asked, usize::MAX, now, effects)?;
        debug_assert!(!more);
        Ok(())
    }

    /// Restores watches in order. A watch fires immediately if its znode has changed in the meantime, and is armed
    /// otherwise. Each call stops after `most` units of work, and the caller must repeat the call while it returns
    /// true.
    ///
    /// A watch on an unreadable znode is armed and never fires immediately, so the call reveals no more than `exists`
    /// (invariant 14).
    pub(crate) fn set_some_watches(
        &mut self,
        session: SessionRef,
        asked: &mut SetWatches,
        most: usize,
        now: Now,
        effects: &mut Effects,
    ) -> Result<bool> {
        self.admit(session, now, effects)?;
        let lists = asked.lists();
        let count = lists.into_iter().map(<[_]>::len).sum::<usize>() - asked.done;
        // The first call checks the room for all watches, so that a refusal leaves nothing behind. Later calls check
        // again, because other clients may have used the room.
        let checked = if asked.done == 0 { usize::MAX } else { most };
        let paths = lists.into_iter().flatten().skip(asked.done).take(checked);
        let (number, path_bytes) = paths.fold((0, 0), |(number, bytes), path| {
            (number + 1, bytes + path.as_str().len())
        });
        self.check_watch_room(session, number, path_bytes)?;
        let kinds = [
            Was::Data,
            Was::Missing,
            Was::Child,
            Was::Lasting(WatchKind::Persistent),
            Was::Lasting(WatchKind::Recursive),
        ];
        let mut skipped = asked.done;
        let mut set = 0;
        let before = self.tree.work.total();
        for (was, paths) in kinds.into_iter().zip(lists) {
            let rest = paths.get(skipped..).unwrap_or_default();
            skipped = skipped.saturating_sub(paths.len());
            for path in rest {
                // Limit the work and not the number of watches, because arming a single watch may move many entries of
                // a growing table.
                if self.tree.work.total().wrapping_sub(before) >= most as u64 {
                    break;
                }
                self.tree.work.add(1);
                self.set_watch(session, was, path, asked.since, effects);
                set += 1;
            }
        }
        asked.done += set;
        Ok(set < count)
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
            (node.mzxid, node.pzxid())
        });
        // As for `exists`, a session needs no right to learn that a znode is missing.
        let is_readable = node.is_none_or(|node| {
            let allowed = self.allow(session, node, AclEntry::READ, String::new);
            allowed.is_ok()
        });
        let news = match (was, times) {
            _ if !is_readable => None,
            // Only changes after `since` fire the watch, because the client knows the earlier changes.
            (Was::Data | Was::Child, None) => Some(EventKind::NodeDeleted),
            (Was::Data, Some((mzxid, _))) if mzxid > since => Some(EventKind::NodeDataChanged),
            (Was::Missing, Some(_)) => Some(EventKind::NodeCreated),
            (Was::Child, Some((_, pzxid))) if pzxid > since => Some(EventKind::NodeChildrenChanged),
            _ => None,
        };
        match news {
            Some(kind) => effects.fired.push(Fired {
                // No watch was armed, so the event has no watch key. The slot identifies the session that receives the
                // event.
                watch: WatchKey::NONE,
                slot: session.slot,
                news: WatchUpdate::Event(WatchedEvent {
                    kind,
                    path: path.clone(),
                    zxid: None,
                    predecessor_gone: None,
                }),
                is_last: true,
            }),
            None => {
                self.arm(session, was.kind(), path, node);
            }
        }
    }

    pub(crate) fn find_watches(
        &mut self,
        session: SessionRef,
        path: &ZnodePath,
        which: WatchFilter,
        now: Now,
        effects: &mut Effects,
    ) -> Result<Vec<WatchKey>> {
        self.admit(session, now, effects)?;
        let node = self.tree.find(path.as_str());
        let wants = |kind| which.means(kind);
        let watches = &self.watches;
        Ok(watches.of_session_on(&self.tree, session.slot, path, node, wants))
    }

    /// Disarms a watch of this session. Refuses watches of other sessions, because a client can guess their numbers.
    pub(crate) fn forget_watch(
        &mut self,
        session: SessionRef,
        watch: WatchKey,
        now: Now,
        effects: &mut Effects,
    ) -> Result<bool> {
        self.admit(session, now, effects)?;
        let is_own = self.watches.is_of(session.slot, watch);
        Ok(is_own && self.unwatch(watch))
    }

    pub(crate) fn remove_watches(&mut self, found: &[WatchKey]) -> bool {
        for watch in found {
            self.unwatch(*watch);
        }
        !found.is_empty()
    }
}

/// State of a watch's znode when the watch was armed on the old connection. Determines which changes fire the watch.
#[derive(Clone, Copy)]
enum Was {
    Data,
    Missing,
    Child,
    Lasting(WatchKind),
}

impl Was {
    fn kind(self) -> WatchKind {
        match self {
            Self::Data | Self::Missing => WatchKind::Data,
            Self::Child => WatchKind::Child,
            Self::Lasting(kind) => kind,
        }
    }
}
