//! Facts about a store for ZooKeeper's four-letter commands. Lists are read in pieces, and the store's lock is released
//! in between, so that an operator's request does not delay clients (invariant 15).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::Store;
use crate::core::{Core, Counts, Settings};
use crate::model::error::Error;
use crate::model::path::ZnodePath;
use crate::model::types::SessionId;
#[cfg(feature = "metrics")]
use crate::runtime::histogram::Distribution;

/// Number of slots examined before we release the lock. This takes a few hundred microseconds.
const PIECE: usize = 4_096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotAdmitting {
    /// Clients may still rely on sessions that a restart has ended.
    Pause,
    /// The log has failed, or the disk is full.
    Refused(Error),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) entries: usize,
    /// Limit of the total length of the entries' texts.
    pub(crate) bytes: usize,
}

impl Room {
    fn take(&mut self, bytes: usize) -> bool {
        let fits = self.entries > 0 && bytes <= self.bytes;
        if fits {
            self.entries -= 1;
            self.bytes -= bytes;
        }
        fits
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed<T> {
    pub(crate) list: T,
    pub(crate) is_whole: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expiring {
    pub(crate) at_ms: i64,
    pub(crate) sessions: Vec<SessionId>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) sessions: usize,
    pub(crate) paths: usize,
    pub(crate) watches: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedSession {
    pub(crate) id: SessionId,
    pub(crate) timeout: Option<Duration>,
    pub(crate) is_local: bool,
    pub(crate) identities: Vec<String>,
    pub(crate) watches: usize,
    pub(crate) ephemerals: usize,
}

pub(crate) type Owned = BTreeMap<SessionId, Vec<ZnodePath>>;

pub(crate) type Watching = BTreeSet<(ZnodePath, SessionId)>;

impl Store {
    pub(crate) fn counts(&self) -> Counts {
        self.0.state.lock().core.counts()
    }

    pub(crate) fn unread_bytes(&self) -> usize {
        self.0.state.lock().sessions.unread().bytes()
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn max_unread_bytes(&self) -> usize {
        self.0.state.lock().sessions.unread().limit()
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn stalls(&self) -> Option<Distribution> {
        let state = self.0.state.lock();
        Some(state.stalls.as_ref()?.counted.read())
    }

    /// Checks that the store opens new sessions at this time. Otherwise the error states the reason.
    pub(crate) fn check_admission(&self) -> Result<(), NotAdmitting> {
        if self.0.pause().is_some() {
            return Err(NotAdmitting::Pause);
        }
        match self.0.state.lock().check_session() {
            // The log is merely busy and will have room soon. New sessions wait until then.
            Ok(()) | Err(Error::LimitReached { .. }) => Ok(()),
            Err(error) => Err(NotAdmitting::Refused(error)),
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        self.0.state.lock().core.settings()
    }

    pub(crate) fn place(&self) -> &str {
        let target = self.0.target.as_str();
        target.strip_prefix("file:").unwrap_or(target)
    }

    pub(crate) fn is_at_work(&self) -> bool {
        self.0.state.lock().check_log().is_ok()
    }

    pub(crate) fn log_stats(&self) -> Option<crate::log::LogStats> {
        self.0.log_queue().map(|queue| queue.stats())
    }

    pub(crate) fn endings(&self, mut room: Room) -> Listed<Vec<Expiring>> {
        let (now, unix_ms) = (self.0.clock.now(), self.0.clock.unix_ms());
        let mut endings = Vec::<Expiring>::new();
        let mut after = None;
        loop {
            // Continue after the last key. A position would be wrong if sessions have ended since.
            let piece = self.0.state.lock().core.expiring(after, PIECE);
            let Some((last, _)) = piece.last() else {
                return whole(endings);
            };
            after = Some(*last);
            for ((deadline, _), session) in piece {
                if !room.take(SESSION_BYTES) {
                    return cut(endings);
                }
                // The number is negative for an overdue session.
                let ahead_ms = deadline.as_millis() as i64 - now.as_millis() as i64;
                let at_ms = unix_ms.saturating_add(ahead_ms);
                match endings.last_mut().filter(|last| last.at_ms == at_ms) {
                    Some(last) => last.sessions.push(session),
                    None => endings.push(Expiring {
                        at_ms,
                        sessions: vec![session],
                    }),
                }
            }
        }
    }

    pub(crate) fn ephemerals(&self, mut room: Room) -> Listed<Owned> {
        let mut owned = Owned::new();
        let mut left = self.counts().ephemerals;
        let mut is_whole = true;
        self.walk(Core::znode_slots, |core, slots| {
            core.ephemerals_in(slots, &mut |owner, path| {
                left = left.saturating_sub(1);
                is_whole = is_whole && room.take(path.as_str().len());
                if is_whole {
                    owned.entry(owner).or_default().push(path.clone());
                }
            });
            left > 0 && is_whole
        });
        Listed {
            list: owned,
            is_whole,
        }
    }

    pub(crate) fn sessions(&self) -> Vec<ListedSession> {
        let mut sessions = Vec::new();
        self.walk(Core::session_slots, |core, slots| {
            core.sessions_in(slots, &mut |session| {
                sessions.push(ListedSession {
                    id: session.id,
                    timeout: session.timeout,
                    is_local: session.is_local,
                    identities: session.identities.iter().map(ToString::to_string).collect(),
                    watches: session.watches,
                    ephemerals: 0,
                });
            });
            true
        });
        let mut counts = HashMap::<SessionId, usize>::new();
        self.walk(Core::znode_slots, |core, slots| {
            core.ephemerals_in(slots, &mut |owner, _| {
                *counts.entry(owner).or_default() += 1
            });
            true
        });
        for session in &mut sessions {
            session.ephemerals = counts.get(&session.id).copied().unwrap_or(0);
        }
        sessions
    }

    /// Lists the watches. Omits watches that watch only children, as ZooKeeper does.
    pub(crate) fn watching(&self, mut room: Room) -> Listed<Watching> {
        let mut found = Vec::new();
        let mut is_whole = true;
        self.walk(Core::watch_slots, |core, slots| {
            core.watches_in(slots, &mut |watch| {
                is_whole = is_whole && room.take(watch.path.as_str().len());
                if is_whole {
                    found.push((watch.path.clone(), watch.session));
                }
            });
            is_whole
        });
        Listed {
            list: found.into_iter().collect(),
            is_whole,
        }
    }

    /// Counts the watches that [`watching`](Self::watching) lists, with one bit of memory for each znode and each
    /// session.
    pub(crate) fn watched(&self) -> Watched {
        let mut watched = Watched::default();
        let (mut sessions, mut nodes) = (Marks::default(), Marks::default());
        self.walk(Core::watch_slots, |core, slots| {
            core.watches_in(slots, &mut |watch| {
                watched.watches += 1;
                watched.sessions += usize::from(sessions.mark(watch.session_slot));
                let is_new = watch.node.is_some_and(|node| nodes.mark(node));
                watched.paths += usize::from(is_new);
            });
            true
        });
        // The loop above counts only paths of existing znodes, so add the watched paths without a znode. All of these
        // count, because the lists omit only watches on children, and a missing znode has none.
        watched.paths += self.0.state.lock().core.watched_absences();
        watched
    }

    /// Calls `see` with the core and each piece of the slots, until `see` returns false.
    fn walk(
        &self,
        slots: impl Fn(&Core) -> usize,
        mut see: impl FnMut(&Core, Range<usize>) -> bool,
    ) {
        let mut state = self.0.state.lock();
        let mut at = 0;
        // Call `slots` for each piece, because the table may grow in between.
        while at < slots(&state.core) {
            let piece = at..at + PIECE;
            at = piece.end;
            if !see(&state.core, piece) {
                return;
            }
            MutexGuard::bump(&mut state);
        }
    }
}

const SESSION_BYTES: usize = 20;

fn whole<T>(list: T) -> Listed<T> {
    let is_whole = true;
    Listed { list, is_whole }
}

fn cut<T>(list: T) -> Listed<T> {
    let is_whole = false;
    Listed { list, is_whole }
}

#[derive(Default)]
struct Marks(Vec<u64>);

impl Marks {
    fn mark(&mut self, slot: u32) -> bool {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let was = self.0[word] & bit;
        self.0[word] |= bit;
        was == 0
    }
}
